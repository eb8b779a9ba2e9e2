"""Side-by-side measurements. Each module prints one JSON line with its ratio; RESULTS.md keeps what they printed."""
