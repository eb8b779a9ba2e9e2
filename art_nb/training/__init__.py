"""Training: a policy with a LoRA adapter, token sequences, advantages, and GRPO and SFT updates with TRL's losses.

Depends on torch, TRL, PEFT and Unsloth (optional). From `art_nb` it uses `storage`, `trajectories`, `types` and parts of
`inference`: tokenising messages, finding common prefixes, and the attention and policy classes that the sampler runs.
Does not depend on the sampler: trajectories from any source can be trained on. Does not depend on tasks, judges or backends.
"""
