"""Errors that reach a client over HTTP: a status code, and a body in the format of OpenAI's API."""

from __future__ import annotations

import logging
from typing import Any

import openai

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "server_error"}


class StatusError(Exception):
    """Rejects a request with an HTTP status, a message and response headers."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments: Ray sends exceptions between processes."""
        return type(self), (self.status, str(self)), {"headers": self.headers}


def status_of(error: Exception) -> int:
    """Return the HTTP status for an exception; 500 if it is unexpected."""
    if isinstance(error, StatusError):
        return error.status
    if isinstance(error, openai.APIStatusError):
        return error.status_code
    if isinstance(error, FileNotFoundError) and not error.filename:  # of the operating system, its message has a path
        return 404
    return 400 if isinstance(error, ValueError | ArithmeticError) else 500


def error_body(error: Exception) -> dict[str, Any]:
    """Return the response body for an exception; for an unexpected one only its class, as its message may contain paths."""
    status = status_of(error)
    if status >= 500 and not isinstance(error, StatusError):
        message, kind = f"internal server error ({type(error).__name__}); see the server's log", "server_error"
    else:
        message, kind = getattr(error, "message", None) or str(error), ERROR_TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def logged_error(error: Exception, operation: str) -> dict[str, Any]:
    """Return `error_body`; log an exception of status 500 or more with its traceback. operation: named in the log."""
    if status_of(error) >= 500:
        logging.getLogger("art_nb.serving").error("%s failed", operation, exc_info=error)
    return error_body(error)
