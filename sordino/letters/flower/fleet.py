"""The server's end of Flower: a link of its own in this process, and letters through it."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sordino.errors import ConfigError
from sordino.letters.carrier import Arrived, Carrier, Writes
from sordino.letters.certificates import Certificates
from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.door import Door
from sordino.letters.flower.exchange import Exchange
from sordino.letters.flower.passes import Passes
from sordino.letters.grpc_line import host_and_port

CONNECTIONS = 1024
_STOPPING = 3  # seconds for requests that are being answered


class Fleet(Carrier):
    """Sites that ask for letters over Flower's Fleet API.

    A letter is sent again by itself, when its site asks for the next one and has not answered: `again` stays None.
    """

    def __init__(
        self,
        bind: str,
        run: str,
        names: Sequence[str],
        keys: Mapping[str, Ed25519PublicKey],
        most: int,
        tls: Certificates,
        home: Path,
    ) -> None:
        """`names`: of all sites; `keys`: of those that are allowed at this moment; `most`: the longest letter that may
        come, in bytes; `home`: where Flower may put files.
        """
        hush(home)
        self._who, self._tls = list(names), tls
        self._exchange = Exchange(names, most)
        self._passes = Passes(run, keys)
        self._door = Door(run, self._passes, self._exchange)
        self._socket = _listening(bind)
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Fleet:
        self._tls.read()
        config = flower.uvicorn.Config(
            self._door,
            ssl_certfile=str(self._tls.chain),
            ssl_keyfile=str(self._tls.key),
            ssl_ca_certs=str(self._tls.ca),
            ssl_cert_reqs=ssl.CERT_REQUIRED,
            lifespan="off",
            ws="none",
            loop="asyncio",
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_STOPPING,
        )
        self._server = flower.uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._door.closing = True
        for site in self._who:
            self._door.ring(site)
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def peers(self) -> frozenset[str]:
        """Who is allowed and has been heard a moment ago. A process that dies while it waits for a letter is gone at
        once; one that dies at work, or a link that goes dead silently, after some 16 s.
        """
        return frozenset(site for site in self._exchange.peers() if self._passes.key_of(site) is not None)

    @property
    def who(self) -> Sequence[str]:
        return self._who

    def send(self, to: str, letter: Writes) -> int:
        ticket = self._exchange.send(to, letter)
        self._door.ring(to)
        return ticket

    def came(self, seconds: float) -> Sequence[Arrived]:
        return self._exchange.came(seconds)

    def cancel(self, ticket: int) -> None:
        self._exchange.cancel(ticket)


def _listening(bind: str) -> socket.socket:
    """A socket that says it is TCP: for others asyncio leaves small packets waiting, 40 ms each."""
    host, port = host_and_port(bind)
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen at {bind}", why=str(error), fix="choose a free port of this machine", code="no-port"
        ) from None
    listening.listen(CONNECTIONS)
    return listening


def hush(home: Path) -> None:
    """Flower keeps its files here, and says nothing on its own."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.environ["FLWR_HOME"] = str(home)
    for name in ("flwr", "uvicorn.error", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
