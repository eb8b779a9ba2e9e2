"""The policy answers: from messages to tokens, from tokens to OpenAI's answer, many conversations in one forward.

Knows a transformers model, a tokenizer and the shapes of OpenAI's API. Knows nothing about training, rewards or tasks.
"""
