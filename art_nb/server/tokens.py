"""The one secret: a bearer token. The disk holds its digest, a browser a signed cookie, and only its owner the token."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from art_nb.storage.checkpoints import write_file

FILE = "token.sha256"
COOKIE_DAYS = 30
CODE_SECONDS = 120.0
MOST_CODES = 64


class Token:
    """Says whether what a client shows is the token.

    digest: sha256 of it, as 32 bytes.
    """

    def __init__(self, digest: bytes) -> None:
        self._digest = digest
        # Cookies of two servers on one host do not overwrite one another.
        self.cookie = f"art_nb_{hmac.digest(digest, b'name', 'sha256').hex()[:12]}"

    def fits(self, given: str) -> bool:
        """Whether it is the token, in a time that tells nothing."""
        return hmac.compare_digest(_digest(given), self._digest)

    def cookie_value(self) -> str:
        """A value that `cookie_fits` for COOKIE_DAYS, also after a restart, and from which the token can't be told."""
        expires = f"{int(time.time()) + COOKIE_DAYS * 86400}"
        return f"{expires}.{self._signed(expires)}"

    def cookie_fits(self, value: str) -> bool:
        """Whether this server gave it, and it has not expired."""
        expires, _, signature = value.partition(".")
        good = hmac.compare_digest(signature.encode(), self._signed(expires).encode())
        return good and int(expires) > time.time()

    def _signed(self, text: str) -> str:
        return hmac.digest(self._digest, f"cookie {text}".encode(), "sha256").hex()


class Codes:
    """Codes that open the live page in the token's place: each once, and for CODE_SECONDS.

    One may stand in an address or in a notebook's output, where the token may not: used, it is worth nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._digests: dict[bytes, float] = {}  # of those that are not used yet, and when they expire

    def make(self) -> str:
        """A new one. Of those that nobody used the oldest go."""
        while len(self._digests) >= MOST_CODES:
            del self._digests[next(iter(self._digests))]
        made = secrets.token_urlsafe(24)
        self._digests[_digest(made)] = self._clock() + CODE_SECONDS
        return made

    def take(self, given: str) -> bool:
        """Whether it is one; from now on it is not."""
        return self._clock() < self._digests.pop(_digest(given), 0.0)


def token_of(folder: Path, given: str | None) -> tuple[Token, str | None]:
    """The token that is given, else that of the folder; at the first start one is made: then it comes as text as well.

    Raises: ValueError when the given one is too short to be a secret, or the file is damaged.
    """
    if given is not None:
        if len(given) < 16:
            raise ValueError("token: it has fewer than 16 characters; leave it out and one is made for you")
        return Token(_digest(given)), None
    path = folder / FILE
    if path.exists():
        stored = path.read_text(encoding="ascii").strip()
        if len(stored) != 64:
            raise ValueError(f"{path} is damaged: delete it, and the next start makes a new token")
        return Token(bytes.fromhex(stored)), None
    made = secrets.token_urlsafe(32)
    write_file(path, _digest(made).hex().encode())
    os.chmod(path, 0o600)
    return Token(_digest(made)), made


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
