"""The tasks that a model learns in this course, one folder each: rules, environment, players, criteria, side by side.

A task is plain Python. It knows nothing about models and training.
"""
