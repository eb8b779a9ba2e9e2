"""The server as one ASGI application, and the command `art-nb serve`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import openai
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.cors import CORSMiddleware

from art_nb.backends.errors import StatusError, logged_error, status_of
from art_nb.serving import live, openai_routes, training_routes, work_routes
from art_nb.serving.connections import BACKLOG, LimitedProtocol, RepeatedMessages
from art_nb.serving.guard import Guard
from art_nb.serving.metrics import ServerMetrics
from art_nb.serving.settings import Settings, describe_error, repeat_options
from art_nb.serving.state import ServerState
from art_nb.serving.tokens import CODE_SECONDS, COOKIE_DAYS, AccessToken, load_token
from art_nb.storage.checkpoints import lock_folder


def make_app(settings: Settings, token: AccessToken) -> FastAPI:
    """Create the application: all routes, behind the guard. Its lifespan starts and stops the backend's thread."""
    state = ServerState(settings, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.thread.start()
        yield
        state.thread.stop()

    app = FastAPI(
        title="art_nb", version=version("art-nb"), lifespan=lifespan, docs_url=None, redoc_url=None,
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # only for the OpenAPI document: the guard authenticates
        responses={401: {"description": "unauthorized"}, 413: {"description": "too long"}, 429: {"description": "too many"}},
    )  # fmt: skip
    metrics = ServerMetrics(state)
    app.add_middleware(metrics.middleware)
    app.add_middleware(Guard, settings=settings, token=token)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"])
    for kind in (StatusError, openai.APIStatusError, ValueError, ArithmeticError, FileNotFoundError, Exception):
        app.add_exception_handler(kind, _respond_with_error)
    _add_server_routes(app, state, metrics)
    for module in (openai_routes, training_routes, work_routes, live):
        app.include_router(module.routes(state))
    app.include_router(openai_routes.routes(state), prefix="/projects/{project}", include_in_schema=False)
    return app


def _add_server_routes(app: FastAPI, state: ServerState, metrics: ServerMetrics) -> None:
    @app.get("/healthz", tags=["server"])
    def healthz() -> dict[str, str]:
        """Report that the server is running. Requires no token."""
        return {"status": "ok"}

    @app.get("/status", tags=["server"])
    def status() -> dict[str, Any]:
        """Report models, sampling, episodes, workers, and the last progress message."""
        return {
            "version": app.version,
            "uptime_s": round(time.time() - state.started_at),
            "base_models": list(state.settings.base_models),
            **state.status(),
        }

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        """Return metrics for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/codes", tags=["page"])
    async def code() -> dict[str, Any]:
        """Create a code that opens the live page once, at /#code=..., within `seconds`."""
        return {"code": state.login_codes.issue(), "seconds": CODE_SECONDS}

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        """Exchange the token, or a login code, for a cookie."""
        form = parse_qs((await request.body()).decode("latin-1"))
        token, code = (form.get(name, [""])[0].strip() for name in ("token", "code"))
        if not state.token.matches(token) and not state.login_codes.redeem(code):
            raise StatusError(401, "invalid token, or a login code that is invalid, used or expired")
        response = RedirectResponse("./", 303)
        response.set_cookie(
            state.token.cookie_name, state.token.new_cookie(), max_age=COOKIE_DAYS * 86400, httponly=True,
            samesite="strict", secure=request.url.scheme == "https", path=None,  # sent only below a proxy's prefix
        )  # fmt: skip
        return response


async def _respond_with_error(request: Request, error: Exception) -> JSONResponse:
    body = logged_error(error, f"{request.method} {request.url.path}")
    return JSONResponse(body, status_of(error), error.headers if isinstance(error, StatusError) else None)


def serve(options: Sequence[str]) -> int:
    """Run `art-nb serve` until it is interrupted; return its exit code."""
    try:
        settings = Settings(_cli_parse_args=repeat_options(options))
        settings.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # only this user may enter it
        lock = lock_folder(settings.path)  # before a token is created: of two servers that start at once, one fails here
        token, created = load_token(settings.path, settings.token.get_secret_value() if settings.token else None)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(describe_error(error), file=sys.stderr)
        return 2
    for name, source in settings.base_models.items():
        if not Path(source).is_dir():
            print(f"{name}: {source} is loaded from the Hugging Face hub: {Path.cwd()} has no such folder", flush=True)
    if created:  # only its digest is stored: the next start cannot show it
        print(f"token (shown only once): {created}", flush=True)
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        print(f"{settings.host} port {settings.port}: {error.strerror}. Change --host or --port.", file=sys.stderr)
        return 1
    with listening, lock:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listening.getsockname()[1]}"
        print(f"art_nb serves {', '.join(settings.base_models)} at {url}", flush=True)
        config = uvicorn.Config(
            make_app(settings, token), log_level="warning", server_header=False, date_header=False,
            timeout_graceful_shutdown=3, timeout_keep_alive=75, http=LimitedProtocol, backlog=BACKLOG,
            proxy_headers=bool(settings.proxies), forwarded_allow_ips=settings.proxies,
        )  # fmt: skip
        for name in ("asyncio", "uvicorn.error"):
            logging.getLogger(name).addFilter(RepeatedMessages())
        with suppress(KeyboardInterrupt):
            asyncio.run(uvicorn.Server(config).serve([listening]))
    return 0
