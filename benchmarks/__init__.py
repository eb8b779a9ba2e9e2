"""Benchmarks. Each prints one JSON line, most of them with a ratio to a baseline; RESULTS.md records the output."""
