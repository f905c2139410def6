"""What it costs to bring a message to a site and its answer back: python benchmarks/messages.py [MB ...]

Two processes of this machine, a server and a site that echoes. They speak gRPC with certificates on both ends, as real
sites do, and for comparison a plain TCP connection without any. The two take turns, and medians are compared; every
body that comes back is compared with the one that went. Peak memory is what one echo added to a process: to the server,
which has made its message before, the answer; to the site, the message, which it sends back as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402

from benchmarks.rounds import machine, markdown  # noqa: E402
from sordino.sites.connecting import attend  # noqa: E402
from sordino.sites.grpc_line import claim  # noqa: E402
from sordino.sites.grpc_server import Rpc  # noqa: E402
from sordino.sites.identity import make_certificates  # noqa: E402
from sordino.transport.tls import of_server, of_site  # noqa: E402

HOST, NAME, RUN, MOST = "127.0.0.1", "site", "run", 1 << 30
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))  # nobody listens in on a benchmark
SIZES = (0.001, 3.2, 32, 100, 400)  # MB
FRESH, PEAK = b"fresh", b"peak"  # what a site answers about itself
LENGTH = struct.Struct("<Q")
COLUMNS = ["MB", "line", "seconds", "MB/s", "of TCP", "server's peak MB", "site's peak MB"]


Body: TypeAlias = bytes | bytearray


class Line(NamedTuple):
    name: str
    echo: Callable[[bytes], Body]


class Echo(NamedTuple):
    """One message there and back."""

    seconds: float
    server_kb: int
    site_kb: int


def answer(message: Body) -> Body:
    if message == FRESH:
        return str(fresh_peak()).encode()
    return str(own_peak()).encode() if message == PEAK else message


# the two lines --------------------------------------------------------------------------------------------------------


@contextmanager
def grpc_line(folder: Path) -> Iterator[Line]:
    make_certificates(folder, [HOST], [NAME], 1)
    with (
        Rpc(f"{HOST}:0", RUN, [NAME], MOST, {NAME: KEY.public_key()}, of_server(folder)) as server,
        site("grpc", server.port, folder),
    ):

        def echo(body: bytes) -> bytes:
            server.send(NAME, lambda: body)
            return server.came(600)[0].message

        yield Line("gRPC, certificates", echo)


@contextmanager
def tcp_line(folder: Path) -> Iterator[Line]:
    with (
        closing(socket.create_server((HOST, 0))) as listening,
        site("tcp", listening.getsockname()[1], folder),
        closing(listening.accept()[0]) as line,
    ):

        def echo(body: bytes) -> Body:
            write(line, body)
            return read(line)

        yield Line("TCP", echo)


def write(line: socket.socket, body: Body) -> None:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(LENGTH.pack(len(body)))
    line.sendall(body)


def read(line: socket.socket) -> bytearray:
    (length,) = LENGTH.unpack(line.recv(LENGTH.size, socket.MSG_WAITALL))
    body, at = bytearray(length), 0
    while at < length:
        at += line.recv_into(memoryview(body)[at:])
    return body


@contextmanager
def site(kind: str, port: int, folder: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--site", kind, str(port), str(folder)], cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def be_a_site(kind: str, port: int, folder: Path) -> None:
    if kind == "grpc":
        attend(
            f"{HOST}:{port}",
            NAME,
            lambda message: bytes(answer(message)),
            lambda: False,
            of_site(folder / NAME, NAME),
            MOST,
            lambda it: KEY.sign(claim(RUN, NAME, it)),
        )
    with closing(socket.create_connection((HOST, port))) as line, suppress(struct.error):  # the server has gone
        while True:
            write(line, answer(read(line)))


# what is measured -----------------------------------------------------------------------------------------------------


def once(line: Line, body: bytes) -> Echo:
    site_before, server_before = int(line.echo(FRESH)), fresh_peak()
    begin = time.perf_counter()
    back = line.echo(body)
    seconds, server_after = time.perf_counter() - begin, own_peak()
    if hashlib.sha256(back).digest() != hashlib.sha256(body).digest():
        raise SystemExit(f"{line.name} brought something else back")
    return Echo(seconds, server_after - server_before, int(line.echo(PEAK)) - site_before)


def fresh_peak() -> int:
    """Forgets the peak so far: it counts from here. KB."""
    Path("/proc/self/clear_refs").write_text("5")
    return own_peak()


def own_peak() -> int:
    return next(int(one.split()[1]) for one in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in one)


def row(size: float, line: str, echoes: list[Echo], plain: float) -> dict[str, Any]:
    seconds = statistics.median(one.seconds for one in echoes)
    return {
        "MB": size,
        "line": line,
        "seconds": seconds,
        "MB/s": 2 * size / seconds,
        "of TCP": seconds / plain,
        "server's peak MB": statistics.median(one.server_kb for one in echoes) / 1024,
        "site's peak MB": statistics.median(one.site_kb for one in echoes) / 1024,
    }


def measured(sizes: list[float], repeats: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, grpc_line(Path(folder) / "ca") as grpc, tcp_line(Path(folder)) as tcp:
        for size in sizes:
            body = os.urandom(int(size * 1e6))
            found: dict[str, list[Echo]] = {grpc.name: [], tcp.name: []}
            for i in range(repeats + 1):
                for line in (grpc, tcp):
                    echo = once(line, body)
                    if i:  # the first one is the warm-up
                        found[line.name].append(echo)
            plain = statistics.median(one.seconds for one in found[tcp.name])
            rows += [row(size, name, echoes, plain) for name, echoes in found.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=float, default=[*SIZES], metavar="MB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--site", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.site:
        be_a_site(asked.site[0], int(asked.site[1]), Path(asked.site[2]))
    else:
        show(machine(), measured(asked.sizes, asked.repeats), asked.json)


def show(before: dict[str, str], rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"machine": before, "rows": rows}))
        return
    print(", ".join(f"{key} {value}" for key, value in before.items()))
    forms = ("{:g}", "{}", "{:.4f}", "{:.0f}", "{:.2f}x", "{:.0f}", "{:.0f}")
    print(markdown(COLUMNS, [[form.format(one[c]) for form, c in zip(forms, COLUMNS, strict=True)] for one in rows]))


if __name__ == "__main__":
    main()
