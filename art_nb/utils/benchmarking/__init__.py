"""ART's `art.utils.benchmarking`: compare models, steps and splits by their logged trajectories."""
