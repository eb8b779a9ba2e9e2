"""The course around the notebooks: installing it, checking the machine, running a notebook, checking exercises.

Knows every other room. No other room knows this one.
"""
