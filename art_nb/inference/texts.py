"""Tokens as text: one by one, and an answer as it grows. Knows nothing of sampling."""

from __future__ import annotations

from functools import lru_cache

CONTEXT = 4  # tokens decoded again before new ones: some tokenizers write the first token of a text otherwise
MOST_AGAIN = 16  # tokens that are decoded again before decoding starts further on


class Texts:
    """What the tokens of a fast tokenizer say: control tokens included, no blank left out.

    bytes: the tokens that are one byte each, "<0x0A>" say, of a tokenizer whose other tokens are letters. It shows bytes in
    a row as one text if that is whole characters, else each as "\ufffd".
    """

    def __init__(self, tokenizer):
        self._backend = tokenizer.backend_tokenizer
        ids = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.bytes = frozenset(token for token in ids if token is not None)
        self.of_token = lru_cache(None)(lambda token: self.of([token]))

    def of(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)


class GrowingText:
    """The text of one answer, asked for again and again while it gets tokens: only its end is decoded anew."""

    def __init__(self, texts: Texts):
        self._texts = texts
        self._start = 0  # where decoding starts
        self._known, self._again = "", 0  # the text of what is not decoded any more; how much of it is decoded all the same

    def of(self, tokens: list[int], end: int) -> str:
        """What decoding `tokens[:end]` gives. Tokens only come behind those of the last call."""
        text = self._known + self._texts.of(tokens[self._start : end])[self._again :]
        if end - self._start > MOST_AGAIN and tokens[end - 1] not in self._texts.bytes and not text.endswith("\ufffd"):
            self._start = end - CONTEXT
            self._known, self._again = text, len(self._texts.of(tokens[self._start : end]))
        return text
