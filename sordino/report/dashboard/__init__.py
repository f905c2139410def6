"""Live dashboard of a run in a browser: its HTTP server, read-only, for this machine alone unless it has a certificate
and a token.

A request must name the right host (else a foreign page whose name resolves to this machine could read the run), carry
the token where there is one, and ask for one of five paths by GET.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from sordino.errors import ConfigError
from sordino.receipts import private
from sordino.report import frame
from sordino.report.dashboard import page, run_state
from sordino.report.dashboard.page import AGAIN, Cursor, Listener, cursor
from sordino.report.dashboard.run_state import EVERY, WatchedRun
from sordino.transport.tls import Certificates, host_and_port

TOKEN = 16  # bytes
READERS = 64  # connections at a time
PATIENCE = 10.0  # seconds that a caller may take to ask
PULSE = 15.0  # seconds after which a stream says that it is there
HTML, CSS, SCRIPT = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8"
PLAIN, STREAM = "text/plain; charset=utf-8", "text/event-stream; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"  # the text format of Prometheus
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard(ThreadingHTTPServer):
    """HTTP server of one run's page."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, run: WatchedRun, bind: str, tls: Certificates | None = None, token: str | None = None) -> None:
        host, port = host_and_port(bind)
        check(host, run, tls is not None, token is not None)
        self.shown = WatchedRun(run.folder) if run.evaluator else run  # for metrics, which go on to others
        self.run, self.token, self.tls = run, token, None if tls is None else _context(tls)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.over = threading.Event()
        self._room = threading.BoundedSemaphore(READERS)
        try:
            super().__init__((host, port), _Caller)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {bind}", why=str(error), fix="choose a free port of this machine", code="no-port"
            ) from None
        names = ("127.0.0.1", "localhost", "::1") if _is_loopback(host) else ()
        self.names = frozenset({*names, host, *(() if tls is None else tls.hosts)})

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def link(self) -> str:
        """Address for a browser, without a token."""
        host = str(self.server_address[0])
        name = next(iter(sorted(self.names - {host})), host) if self.tls is not None else host
        return f"http{'s' if self.tls else ''}://{f'[{name}]' if ':' in name else name}:{self.port}/"

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Accept a connection while there is room."""
        assert isinstance(request, socket.socket)
        if not self._room.acquire(blocking=False):
            request.close()
            return
        request.settimeout(PATIENCE)
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Serve one connection in a thread of its own: a slow handshake blocks no other."""
        assert isinstance(request, socket.socket)
        try:
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # it is gone, or does not speak TLS
            request.close()
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that break off."""

    def server_close(self) -> None:
        self.over.set()
        super().server_close()

    def knows(self, host: str) -> bool:
        """True where a Host header names this server."""
        try:
            address = urlsplit(f"//{host}")
            return address.hostname in self.names and (address.port or (443 if self.tls else 80)) == self.port
        except ValueError:
            return False

    def admits(self, shown: Sequence[str]) -> bool:
        """True where no token is asked for, or one of those shown is right; compared in constant time."""
        if self.token is None:
            return True
        right = self.token.encode()
        return any(hmac.compare_digest(one.encode(errors="replace"), right) for one in shown)


class _Caller(BaseHTTPRequestHandler):
    """Handler of one connection's requests."""

    server: Dashboard
    server_version, sys_version = "sordino", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        if self.path == "/healthz":  # a probe knows no name and no token, and learns nothing of the run
            self._say(HTTPStatus.OK, "ok")
            return
        if not self.server.knows(self.headers.get("Host", "")):
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "This is another host.")
            return
        asked = urlsplit(self.path)
        given = parse_qs(asked.query, max_num_fields=4)
        if asked.path == "/" and "token" in given and self.server.admits(given["token"]):
            self._enter()
        elif not self.server.admits(self._shown()):
            self._say(HTTPStatus.UNAUTHORIZED, "Open the link with the token that `sordino dashboard` printed.")
        elif asked.path == "/":
            now = self.server.run.look()
            self._say(HTTPStatus.OK, page.page(self.server.run, now, str(cursor(now))), HTML)
        elif asked.path == "/page.css":
            self._say(HTTPStatus.OK, frame.style(), CSS)
        elif asked.path == "/page.js":
            self._say(HTTPStatus.OK, page.script(), SCRIPT)
        elif asked.path == "/metrics":
            shown = self.server.shown
            self._say(HTTPStatus.OK, run_state.metrics(shown, shown.look()), METRICS)
        elif asked.path == "/stream":
            self._stream(self.headers.get("Last-Event-ID") or given.get("from", [""])[0])
        else:
            self._say(HTTPStatus.NOT_FOUND, "There is nothing of that name.")

    def _only_get(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "This page is only read.", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _only_get

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer malformed requests with the headers of all other answers."""
        self._say(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: an address may hold a token."""

    def _shown(self) -> list[str]:
        """Tokens of a request, from its header and its cookie."""
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        found = [bearer.strip()] if kind.lower() == "bearer" else []
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return found
        return found if cookie is None else [*found, cookie.value]

    @property
    def _cookie(self) -> str:
        return f"sordino-{self.server.port}"  # a browser sends a cookie to all ports of a host

    def _enter(self) -> None:
        """Move the token from the address into a cookie, and redirect."""
        secure = "; Secure" if self.server.tls is not None else ""
        cookie = f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/{secure}"
        self._say(HTTPStatus.SEE_OTHER, "", Location="/", **{"Set-Cookie": cookie})

    def _say(self, status: HTTPStatus, text: str, kind: str = PLAIN, **more: str) -> None:
        body = text.encode()
        self._head(status, kind, **more, **{"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, **more: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, at: str) -> None:
        run, listener = self.server.run, Listener(Cursor.read(at))
        self._head(HTTPStatus.OK, STREAM)
        self.wfile.write(f"retry: {AGAIN}\n\n".encode())
        sent_at = time.monotonic()
        while not self.server.over.is_set():
            for one in listener.more(run, run.look()):
                self.wfile.write(one.encode())
                sent_at = time.monotonic()
            if time.monotonic() - sent_at > PULSE:
                self.wfile.write(b": still here\n\n")
                sent_at = time.monotonic()
            self.server.over.wait(EVERY)


# access --------------------------------------------------------------------------------------------------------


def check(host: str, run: WatchedRun, tls: bool, token: bool) -> None:
    """Refuse an address that other machines reach without certificate and token."""
    if not _is_loopback(host) and not (tls and token):
        missing = " and ".join(name for name, there in (("certificate", tls), ("token", token)) if not there)
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no {missing}",
            why="anyone who reaches it could read the state of the run and all traffic to this page",
            fix="listen at 127.0.0.1, or give --certificates and --token-file",
            code="open-dashboard",
        )
    if run.evaluator and run.real and not token:
        raise ConfigError(
            "the evaluator's dashboard needs a token",
            why="every user of this machine can open its ports, and this page holds what only the evaluator may see",
            fix="give --token-file",
            code="open-dashboard",
        )


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN)


def token_of(path: Path) -> tuple[str, bool]:
    """The token in a file that its owner alone can read, made where there is none; and whether it is new."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):  # another process has just written it
            private.write(path, f"{new_token()}\n".encode(), new=True)
        return path.read_text(encoding="utf-8").strip(), True
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if path.stat().st_mode & 0o077:
        why, fix = "other users of this machine can read it", f"chmod 600 {path}"
    elif len(token) < len(new_token()) or not token.isascii() or not token.isprintable() or set(token) & set(' ";,\\'):
        why, fix = "it is too short, or has characters that a cookie cannot hold", "name a file that is not there yet"
    else:
        return token, False
    raise ConfigError(f"the token in {path} cannot be used", why=why, fix=fix, code="weak-token")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _context(tls: Certificates) -> ssl.SSLContext:
    tls.read()  # its errors say what is wrong with the files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.chain, tls.key)
    return context
