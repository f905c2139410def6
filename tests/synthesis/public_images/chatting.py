"""A chat server on this machine that speaks the protocol, well and badly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers with what it was given, in order; the last answer again and again."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.heard: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.slow = 0.0
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: Any) -> None:
        pass  # a client that did not wait for the answer

    def says(self, *texts: str) -> None:
        self.answers += [(200, {}, chat(content=text)) for text in texts]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        answers, heard = self.server.answers, self.server.heard
        heard.append((self.path, dict(self.headers), body))
        time.sleep(self.server.slow)
        status, headers, content = answers[min(len(heard), len(answers)) - 1]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST  # what a redirect would turn the request into

    def log_message(self, *_: Any) -> None:
        pass


def chat(finish: str = "stop", **message: Any) -> bytes:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


def cats(first: int, last: int) -> str:
    return json.dumps([f"cat number {n}" for n in range(first, last)])


def serving() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
