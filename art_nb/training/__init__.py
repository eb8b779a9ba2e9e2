"""The policy learns: LoRA on a base model, trajectories as token sequences, advantages, and TRL's loss on them.

Knows torch, TRL, PEFT and Unsloth. Knows nothing about tasks, judges, or how an answer was sampled.
"""
