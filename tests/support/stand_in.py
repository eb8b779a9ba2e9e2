"""A local HTTP server as a stand-in for an API: it records every request, and answers by a function."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def standing_in(answer):
    """Yield (url, requests). `answer(method, path, headers, body)` returns (status, a JSON value or bytes)."""
    requests = []

    class StandInHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            requests.append((self.command, self.path, dict(self.headers), body))
            status, response = answer(self.command, self.path, self.headers, body)
            data = response if isinstance(response, bytes) else json.dumps(response).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = do

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), StandInHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
