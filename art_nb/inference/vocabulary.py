"""A tokenizer's vocabulary as text and bytes, and incremental detokenization. Does not depend on models or requests."""

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

from art_nb.inference.chat import TOOL_END
from art_nb.inference.control_tokens import control_tokens

OVERLAP = 4  # tokens decoded again before new ones, because some tokenizers decode the first token differently
MAX_DECODED = 16  # tokens decoded again before the start of decoding moves on


class Vocabulary:
    """The text of a fast tokenizer's tokens, including control tokens and leading spaces.

    end_tokens: ids of the tokens that end an answer.
    byte_tokens: ids of tokens that are one byte each ("<0x0A>"). A run of them decodes to text if it is valid UTF-8,
        else each decodes to "\ufffd".
    """

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int] = ()):
        self.tokenizer, self.end_tokens, self._backend = tokenizer, frozenset(end_tokens), tokenizer.backend_tokenizer
        ids = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.byte_tokens = frozenset(token for token in ids if token is not None)
        self.tool_end = self._backend.token_to_id(TOOL_END)  # None: it has no token of its own
        first = tokenizer.encode("a", add_special_tokens=False)[-1:]  # some tokenizers remove a leading space
        start = len(self.text(first))
        self.token_text = lru_cache(None)(lambda token: self.text([*first, token])[start:])

    def text(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, even of one that is only part of a character."""
        text = self.token_text(token)
        return self.llguidance.decode_bytes([token]) if "\ufffd" in text else text.encode()

    @cached_property
    def llguidance(self) -> Any:
        """The tokenizer in llguidance's form. Building it takes a second for a large vocabulary."""
        import llguidance

        return llguidance.LLTokenizer(control_tokens(self.tokenizer).as_json(), eos_token=sorted(self.end_tokens))


class IncrementalText:
    """The text of a growing token sequence. Each call decodes only the end of the sequence again."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._start = 0  # index of the first token that the next call decodes
        self._known, self._overlap = "", 0  # final text, and how many of its last characters are decoded again

    def of(self, tokens: list[int], end: int) -> str:
        """Decode `tokens[:end]`. Tokens may only be appended between calls."""
        text = self._known + self._vocabulary.text(tokens[self._start : end])[self._overlap :]
        split = text.endswith("\ufffd") or end and tokens[end - 1] in self._vocabulary.byte_tokens  # mid-character
        if end - self._start > MAX_DECODED and not split:
            self._start = end - OVERLAP
            self._known, self._overlap = text, len(self._vocabulary.text(tokens[self._start : end]))
        return text
