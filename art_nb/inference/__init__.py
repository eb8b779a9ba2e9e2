"""Chat completions from a policy: messages to tokens, tokens to OpenAI's format, many conversations in one forward.

Depends on torch, transformers models and tokenizers, `rollouts.gathering`, and the recording of `trajectories`. Does
not depend on training, rewards or tasks.
"""
