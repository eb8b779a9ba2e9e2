"""Control tokens: only a chat template can write them; their text in a message is encoded as ordinary text.

While a prompt is built, a secret placeholder represents each control token; a message that contains the secret is rejected.
A second tokenizer with the same ids knows control tokens by their placeholders only: `<|im_end|>` is ordinary text to it.
"""

import json
import re
import secrets
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from art_nb.inference.chat import RequestError
from art_nb.inference.provenance import TaintedStr, compile_template


class ControlTokens:
    """The control tokens of a tokenizer: all that were added to its vocabulary, flagged special or not.

    Added tokens of at most one visible character do not count unless flagged special, because no template uses them as
    markers: runs of spaces (Gemma, Phi) and single letters (DeepSeek).

    size: the vocabulary's. compiled: compiles a template's source, once. verified: sources that `verify_template` accepted.

    Raises: ValueError for a slow tokenizer.
    """

    def __init__(self, tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"{type(tokenizer).__name__} is not a fast tokenizer: use AutoTokenizer.from_pretrained")
        self.size = len(tokenizer)
        self.verified: set[str] = set()
        added = [token for token in backend.get_added_tokens_decoder().values() if token.content]
        texts = [token.content for token in added if token.special or len(token.content.strip()) > 1]
        # Placeholders cannot overlap, because only their start has a z. No normaliser changes lower-case letters and digits.
        self._secret = "z" + secrets.token_hex(8)
        self._placeholders = {text: f"{self._secret}{i:06x}" for i, text in enumerate(texts)}
        self._texts = {placeholder: text for text, placeholder in self._placeholders.items()}
        self._any = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
        self._encoder = _with_placeholders(backend, self._placeholders)
        self._in_template = lru_cache(4096)(lambda text: self._any.sub(lambda found: self._placeholders[found[0]], text))
        self.literal = lru_cache(4096)(self._literal)
        self.compiled = lru_cache(None)(lambda source: compile_template(source, self.literal))

    def placeholder(self, text: str) -> str:
        """Return the placeholder of the control token with this text; the text itself if there is none."""
        return self._placeholders.get(text, text)

    def _literal(self, text: str) -> TaintedStr:
        """Return a string literal of a template, with all its characters marked as the template's."""
        made = TaintedStr(text, b"\1" * len(text))
        made.has_control = bool(self._any.search(text))
        return made

    def protect(self, rendered: str) -> str:
        """Replace the control tokens that a template wrote with their placeholders.

        Raises: RequestError when the text contains a placeholder or a lone surrogate.
        """
        text, mask = str.__str__(rendered), getattr(rendered, "mask", b"")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"the end of {text[max(0, error.start - 30) : error.start + 1]!a}"
            raise RequestError(f"a lone surrogate, which is not valid text, at {place}: replace it") from error
        if self._secret in text:
            raise RequestError("messages: they contain a secret of this process, drawn at random")
        parts: list[str] = []
        at = 0
        for run in re.finditer(b"\1+", mask):
            start, end = run.span()
            parts += (text[at:start], self._in_template(text[start:end]))
            at = end
        return "".join([*parts, text[at:]])

    def readable(self, protected: str) -> str:
        """Replace placeholders with the usual text of their control tokens."""
        return re.sub(f"{self._secret}.{{6}}", lambda found: self._texts[found[0]], protected)

    def ids(self, protected: str) -> list[int]:
        """Return token ids. Placeholders become control tokens, everything else is text."""
        return self._encoder.encode(protected, add_special_tokens=False).ids

    def as_json(self) -> str:
        """Serialise the second tokenizer, with all control tokens flagged special."""
        fields = json.loads(self._encoder.to_str())
        for token in fields["added_tokens"]:
            token["special"] |= self._secret in token["content"]
        return json.dumps(fields)


_KNOWN: WeakKeyDictionary[Any, ControlTokens] = WeakKeyDictionary()


def control_tokens(tokenizer) -> ControlTokens:
    """Return the control tokens of a tokenizer, cached until its size changes: a large vocabulary takes a second."""
    known = _KNOWN.get(tokenizer)
    if known is None or known.size != len(tokenizer):
        known = _KNOWN[tokenizer] = ControlTokens(tokenizer)
    return known


def _with_placeholders(backend, placeholders: dict[str, str]):
    """Copy a tokenizer, with the same ids, so that only the placeholders encode to control tokens."""
    from tokenizers import Tokenizer

    fields: dict[str, Any] = json.loads(backend.to_str())
    fields |= {"truncation": None, "padding": None, "post_processor": None}
    for token in fields["added_tokens"]:
        if token["content"] in placeholders:
            token |= {"content": placeholders[token["content"]], "single_word": False}
    model = fields["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {placeholders.get(token, token): i for token, i in model["vocab"].items()}
    else:  # Unigram: pairs of piece and score
        model["vocab"] = [[placeholders.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & placeholders.keys()]
    if model.get("unk_token") in placeholders:
        model["unk_token"] = placeholders[model["unk_token"]]
    return Tokenizer.from_str(json.dumps(fields))
