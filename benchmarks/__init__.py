"""Benchmarks, which print one JSON line, most with a ratio to a baseline (RESULTS.md), and the modules that they share."""
