"""`LivePage`: the live page of a server (`art-nb serve`) inside a notebook, through JupyterLab's proxy."""

from __future__ import annotations

import html

import traitlets

from .view import View, module


class LivePage(View):
    """The page in a frame if JupyterLab has jupyter-server-proxy and runs on the server's machine, else a link.

    address: the server's URL, e.g. "http://127.0.0.1:8000". code: a one-time login code, not the server's token.
    """

    _esm = module("live_page")
    address = traitlets.Unicode().tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)

    def __init__(self, address: str, code: str = "") -> None:
        super().__init__(address=address, code=code)

    def summary(self) -> str:
        return f"The live page of the server at {self.address}"

    def static_png(self) -> None:
        return None

    def static_html(self) -> str:
        return html.escape(self.summary())
