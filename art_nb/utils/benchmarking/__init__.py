"""`art.utils.benchmarking`: models and steps compared over splits, by what they logged; as a table and as pictures."""
