"""Control tokens, which a chat template alone may write, and the ids of a text that holds their look-alikes.

While a prompt is put together, each control token stands in it under a secret name. A second tokenizer, of the same ids,
knows the tokens by these names only: `<|im_end|>` is to it what any other text is. So text can't become a control
token, for who writes it doesn't know the names; and a text that holds one is refused.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import jinja2

from art_nb.inference.chat import RequestError
from art_nb.inference.tracing import Traced


class ControlTokens:
    """The control tokens of a tokenizer: all that were added to its vocabulary, flagged special or not.

    Left out are added tokens of at most one visible character, which no template marks anything with: runs of blanks
    (Gemma, Phi) and single letters (DeepSeek).

    size: of the whole vocabulary. templates: compiled for these tokens, by source. checked: sources of those that were
    tried out.

    Raises: ValueError when the tokenizer is none of the fast ones.
    """

    def __init__(self, tokenizer):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"{type(tokenizer).__name__} is no fast tokenizer: load it with AutoTokenizer.from_pretrained")
        self.size = len(tokenizer)
        self.templates: dict[str, jinja2.Template] = {}
        self.checked: set[str] = set()
        added = [token for token in backend.get_added_tokens_decoder().values() if token.content]
        texts = [token.content for token in added if token.special or len(token.content.strip()) > 1]
        # Names can't overlap, for only their start has a z; no normaliser changes lower-case letters and digits.
        self._secret = "z" + secrets.token_hex(8)
        self._names = {text: f"{self._secret}{i:06x}" for i, text in enumerate(texts)}
        self._used: dict[str, str] = {}  # the texts of those names that stand in some prompt
        self._any = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
        self._encoder = _renamed(backend, self._names)
        self._in_template = lru_cache(4096)(lambda text: self._any.sub(self._use, text))
        self.written = lru_cache(4096)(self._written)

    def name(self, text: str) -> str:
        """The name of the control token with this text; the text itself if it is none."""
        return self._names.get(text, text)

    def _written(self, text: str) -> Traced:
        """A string of a template."""
        made = Traced(text, b"\1" * len(text))
        made.names_control = bool(self._any.search(text))
        return made

    def _use(self, found: re.Match) -> str:
        name = self._names[found[0]]
        self._used[name] = found[0]
        return name

    def named(self, text: str) -> str:
        """The text with names in place of the control tokens that a template wrote.

        Raises: RequestError when it holds a name; UnicodeEncodeError when it holds half of a surrogate pair.
        """
        text, mask = str.__str__(text), getattr(text, "mask", b"")
        text.encode()
        if self._secret in text:
            raise RequestError("messages: they hold a secret of this process, drawn at random when it started")
        parts: list[str] = []
        at = 0
        for run in re.finditer(b"\1+", mask):
            start, end = run.span()
            parts += (text[at:start], self._in_template(text[start:end]))
            at = end
        return "".join([*parts, text[at:]])

    def shown(self, named: str) -> str:
        """The text with the control tokens as everybody knows them."""
        for name, text in self._used.items():
            named = named.replace(name, text)
        return named

    def ids(self, named: str) -> list[int]:
        """Token ids. Control tokens are those that stand under their names; all else is text."""
        return self._encoder.encode(named, add_special_tokens=False).ids

    def as_json(self) -> str:
        """The second tokenizer as `tokenizers` writes it, all its control tokens flagged special."""
        fields = json.loads(self._encoder.to_str())
        for token in fields["added_tokens"]:
            token["special"] |= self._secret in token["content"]
        return json.dumps(fields)


_KNOWN: WeakKeyDictionary[Any, ControlTokens] = WeakKeyDictionary()


def control_tokens(tokenizer) -> ControlTokens:
    """Those of the tokenizer, worked out once: with a large vocabulary it takes a second."""
    known = _KNOWN.get(tokenizer)
    if known is None or known.size != len(tokenizer):
        known = _KNOWN[tokenizer] = ControlTokens(tokenizer)
    return known


def _renamed(backend, names: dict[str, str]):
    """A copy of the tokenizer with the same ids, in which the given tokens have other names, and are made of no text."""
    from tokenizers import Tokenizer

    fields: dict[str, Any] = json.loads(backend.to_str())
    fields |= {"truncation": None, "padding": None, "post_processor": None}
    for token in fields["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "single_word": False}
    model = fields["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:  # Unigram: pairs of piece and score
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return Tokenizer.from_str(json.dumps(fields))
