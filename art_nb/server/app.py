"""The server as one ASGI application, and `art-nb serve`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qs

import openai
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from pydantic import ValidationError

from art_nb.server import live, openai_routes, training_routes, work_routes
from art_nb.server.errors import Refused, error_body, status_of
from art_nb.server.guard import Guard
from art_nb.server.metrics import Metrics
from art_nb.server.pages import LOGIN
from art_nb.server.served import Served, make_served
from art_nb.server.settings import Settings, faults
from art_nb.server.tokens import CODE_SECONDS, COOKIE_DAYS, Token, token_of

log = logging.getLogger("art_nb.server")


def make_app(settings: Settings, token: Token) -> FastAPI:
    """All routes behind the guard. Its lifespan starts and stops the engine."""
    served = make_served(settings, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served.engine.start()
        served.news.open()
        yield
        served.engine.stop()

    app = FastAPI(
        title="art_nb", version=version("art-nb"), lifespan=lifespan, docs_url=None, redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # for the document alone: the guard has looked already
        responses={401: {"description": "no token"}, 413: {"description": "too long"}, 429: {"description": "too many"}},
    )  # fmt: skip
    metrics = Metrics(served)
    app.add_middleware(metrics.middleware)
    app.add_middleware(Guard, settings=settings, token=token, login=LOGIN)
    for kind in (Refused, openai.APIStatusError, ValueError, FloatingPointError, FileNotFoundError, Exception):
        app.add_exception_handler(kind, _failed)
    _common_routes(app, served, metrics)
    app.include_router(openai_routes.routes(served))
    app.include_router(training_routes.routes(served))
    app.include_router(work_routes.routes(served))
    app.include_router(live.routes(served))
    return app


def _common_routes(app: FastAPI, served: Served, metrics: Metrics) -> None:
    @app.get("/healthz", tags=["server"])
    def healthz() -> dict[str, str]:
        """That a server runs. Needs no token."""
        return {"status": "ok"}

    @app.get("/status", tags=["server"])
    def status() -> dict[str, Any]:
        """What goes on."""
        return {
            "version": app.version,
            "uptime_s": round(time.time() - served.started),
            "models": [f"{project}/{name}" for project, name in list(served.registry.specs)],
            "base_models": list(served.settings.base_models),
            "sampling": served.sampling(),
            "work": served.work.counts(),
            "workers": served.work.workers(),
            "last": served.news.last,
        }

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.text(), media_type=metrics.media_type)

    @app.post("/codes", tags=["page"])
    def code() -> dict[str, Any]:
        """A code that opens the live page once, at /#code=..., in the next so many seconds."""
        return {"code": served.codes.make(), "seconds": CODE_SECONDS}

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        """Take the token from the page's form, or a code, and give the browser a cookie for it."""
        form = parse_qs((await request.body()).decode("latin-1"))
        token, code = (form.get(name, [""])[0].strip() for name in ("token", "code"))
        if not served.token.fits(token) and not served.codes.take(code):
            raise Refused(401, "this is not the token, or the code was used or is too old")
        response = RedirectResponse("./", 303)
        response.set_cookie(
            served.token.cookie, served.token.cookie_value(), max_age=COOKIE_DAYS * 86400, httponly=True,
            samesite="strict", secure=request.url.scheme == "https", path=None,  # behind a proxy: only below its prefix
        )  # fmt: skip
        return response


async def _failed(request: Request, error: Exception) -> JSONResponse:
    status = status_of(error)
    if status >= 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(error_body(error), status, getattr(error, "headers", None) if isinstance(error, Refused) else None)


def serve(options: Sequence[str]) -> int:
    """serve models over HTTP, see `art-nb serve --help`"""
    try:
        settings = Settings(_cli_parse_args=list(options))
        token, made = token_of(settings.path, settings.token.get_secret_value() if settings.token else None)
    except ValueError as error:
        print(faults(error) if isinstance(error, ValidationError) else error, file=sys.stderr)
        return 2
    try:
        listening = _listen(settings.host, settings.port)
    except OSError as error:
        print(f"{settings.host} port {settings.port}: {error.strerror}. Choose another with --port.", file=sys.stderr)
        return 1
    with listening:
        url = f"http://{settings.host}:{listening.getsockname()[1]}"
        if made:
            print(f"token (shown this once): {made}", flush=True)
        print(f"art_nb serves {', '.join(settings.base_models) or 'no base model'} at {url}", flush=True)
        config = uvicorn.Config(
            make_app(settings, token), log_level="warning", server_header=False, date_header=False,
            timeout_graceful_shutdown=3, timeout_keep_alive=75,
        )  # fmt: skip
        with suppress(KeyboardInterrupt):  # as one stops it
            asyncio.run(uvicorn.Server(config).serve([listening]))
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)
