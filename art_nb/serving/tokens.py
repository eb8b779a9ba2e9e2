"""The server's access token, and browser cookies and one-time login codes that replace it.

The server stores the SHA-256 digest of a token that it created, and a key for signing cookies, in files that only its user
can read. A browser stores a signed cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from art_nb.inference.bounded import BoundedDict
from art_nb.storage.checkpoints import write_file

FILE, KEY_FILE = "token.sha256", "cookie.key"
COOKIE_DAYS = 30
CODE_SECONDS = 120.0
MAX_CODES = 64


class AccessToken:
    """Checks tokens against the digest of the server's token (SHA-256, 32 bytes), and signs and checks cookies.

    The signing key is derived from `key` and `digest`: the digest alone is not enough, and a new token invalidates cookies.
    """

    def __init__(self, digest: bytes, key: bytes) -> None:
        self._digest, self._key = digest, hmac.digest(key, digest, "sha256")
        # The name differs between servers: those on one host must not overwrite each other's cookies.
        self.cookie_name = f"art_nb_{hmac.digest(digest, b'name', 'sha256').hex()[:12]}"

    def matches(self, token: str) -> bool:
        """Return whether `token` is the server's token, in constant time."""
        return hmac.compare_digest(_digest(token), self._digest)

    def new_cookie(self) -> str:
        """Return a cookie value that is valid for COOKIE_DAYS, also after a restart, and does not reveal the token."""
        expires = f"{int(time.time()) + COOKIE_DAYS * 86400}"
        return f"{expires}.{self._signature(expires)}"

    def accepts_cookie(self, value: str) -> bool:
        """Return whether this server issued the cookie and it has not expired."""
        expires, _, signature = value.partition(".")
        is_signed = hmac.compare_digest(signature.encode(), self._signature(expires).encode())
        return is_signed and int(expires) > time.time()

    def _signature(self, text: str) -> str:
        return hmac.digest(self._key, f"cookie {text}".encode(), "sha256").hex()


class LoginCodes:
    """Codes that log a browser in once, within CODE_SECONDS; they may appear in a URL or a notebook's output."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiry = BoundedDict[bytes, float](MAX_CODES)  # of each unused code, by its digest

    def issue(self) -> str:
        """Create a code. If there are MAX_CODES unused ones, the oldest becomes invalid."""
        code = secrets.token_urlsafe(24)
        self._expiry[_digest(code)] = self._clock() + CODE_SECONDS
        return code

    def redeem(self, code: str) -> bool:
        """Return whether the code is valid, and invalidate it."""
        return self._clock() < self._expiry.pop(_digest(code), 0.0)


def load_token(folder: Path, token: str | None) -> tuple[AccessToken, str | None]:
    """Return an `AccessToken` for `token`, else for the digest in `folder`, else for a new token; and the new token or None.

    Raises: ValueError when `token` has fewer than 16 characters or is not printable ASCII, or a stored file is damaged.
    """
    token = token and token.strip()
    if token is not None and not re.fullmatch("[ -~]{16,}", token):  # an HTTP header can hold it
        raise ValueError("token: expected at least 16 printable ASCII characters; give none to have one created")
    if (key := _stored(folder / KEY_FILE)) is None:
        key = secrets.token_bytes(32)
        write_file(folder / KEY_FILE, key.hex().encode(), private=True)
    if token is not None:
        return AccessToken(_digest(token), key), None
    if stored := _stored(folder / FILE):
        return AccessToken(stored, key), None
    created = secrets.token_urlsafe(32)
    write_file(folder / FILE, _digest(created).hex().encode(), private=True)
    return AccessToken(_digest(created), key), created


def _stored(path: Path) -> bytes | None:
    if not path.exists():
        return None
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"{path} is damaged: delete it, and the next start creates a new one")
    return bytes.fromhex(text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
