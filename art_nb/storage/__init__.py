"""What a run keeps: checkpoints, metrics and trajectories, each on the disk whole or not at all.

Knows files and rows. Knows nothing about what a checkpoint holds or why a number was measured.
"""
