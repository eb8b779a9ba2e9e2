"""An ASGI application served by uvicorn in a thread of this process, for tests."""

import threading
from contextlib import contextmanager

from running_server import free_port


@contextmanager
def serving_app(app):
    """Yields its address."""
    import uvicorn

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
