"""What a client is told when it can't be served: a status and OpenAI's shape of an error."""

from __future__ import annotations

from typing import Any

import openai

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "server_error"}


class Refused(Exception):
    """A request that is not served: its HTTP status, and why."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled whole: Ray hands it from one process to another."""
        return type(self), (self.status, str(self)), {"headers": self.headers}


def status_of(error: Exception) -> int:
    """The HTTP status for what the backend raised; 500 for what it should never raise."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, openai.APIStatusError):
        return error.status_code
    if isinstance(error, FileNotFoundError):
        return 404
    return 400 if isinstance(error, ValueError | FloatingPointError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """The body of an answer to that error. What nobody foresaw is told by its kind alone: its text may hold paths."""
    status = status_of(error)
    if status >= 500 and not isinstance(error, Refused):
        message, kind = f"the server failed ({type(error).__name__}); its log says more", "server_error"
    else:
        message, kind = getattr(error, "message", None) or str(error), KINDS.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
