"""Out of one machine, and into use: many samplers, rented machines, checkpoints for other engines, what a run would cost.

Knows engines that others made (Ray, SkyPilot, llama.cpp's format) and speaks to each in its own words. Knows nothing about
tasks and rewards, and nothing about how a policy samples or learns.
"""
