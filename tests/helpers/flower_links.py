"""Keys, certificates, and the two ends of letters over Flower. As a program it is a site that echoes, or a link:

python -m tests.helpers.flower_links site NAME ADDRESS FOLDER
python -m tests.helpers.flower_links link FOLDER
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.deploy.certificates import make, of_server, of_site
from sordino.letters.certificates import Certificates

HOST, RUN = "127.0.0.1", "run"
MOST = 1 << 30
SITES = ("a", "b")


def site_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def link(folder: Path, port: int = 0) -> Any:
    from sordino.letters.flower.fleet import Fleet

    keys = {name: site_key(name).public_key() for name in SITES}
    return Fleet(f"{HOST}:{port}", RUN, SITES, keys, MOST, of_server(papers(folder)), folder / "home")


def papers(folder: Path) -> Path:
    """A trial CA with certificates for the server and all sites."""
    made = folder / "ca"
    if not made.exists():
        make(made, [HOST], SITES, 1)
    return made


def echo(letter: bytes) -> bytes:
    return hashlib.sha256(letter).digest() + letter


def attending(
    name: str,
    address: str,
    folder: Path,
    answer: Callable[[bytes], bytes] = echo,
    stop: Callable[[], bool] = lambda: False,
    key: Ed25519PrivateKey | None = None,
    run: str = RUN,
    tls: Certificates | None = None,
    say: Callable[[str, str], None] = lambda standing, why: None,
) -> None:
    from sordino.letters.flower.node import attend
    from sordino.letters.flower.passes import Pass

    signs = Pass(run, name, key or site_key(name))
    tls = tls or of_site(papers(folder) / name, name)
    attend(address, signs, answer, stop, tls, MOST, folder / f"home-{name}", say)


@contextmanager
def in_thread(fleet: Any, folder: Path, **sites: Callable[[bytes], bytes]) -> Iterator[None]:
    """Sites of this process, until the end of the block."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=attending, args=(name, address_of(fleet), folder, answer, stop.is_set), daemon=True)
        for name, answer in sites.items()
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: fleet.peers() >= set(sites))
        yield
    finally:
        stop.set()


def address_of(fleet: Any) -> str:
    return f"{HOST}:{fleet.port}"


def site_process(name: str, address: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", __name__, "site", name, address, str(folder)])


def link_process(folder: Path, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    """A link in a process of its own, and its address; each answer that comes is a line of its output."""
    command = [sys.executable, "-m", __name__, "link", str(folder), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


def answers(fleet: Any, wanted: dict[int, bytes], seconds: float = 60.0) -> float:
    """Waits for the echo of each letter, by ticket; the seconds that it took."""
    begun, wanted = time.monotonic(), dict(wanted)
    while wanted and time.monotonic() < begun + seconds:
        for ticket, letter in fleet.came(1.0):
            assert letter == echo(wanted.pop(ticket))
    assert not wanted, "no answer"
    return time.monotonic() - begun


def until(true: Callable[[], object], seconds: float = 60.0) -> float:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() < begun + seconds, "it does not happen"
        time.sleep(0.01)
    return time.monotonic() - begun


def memory(process: int) -> int:
    """The bytes that a process holds."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * 4096


def main(what: str, *rest: str) -> None:
    if what == "site":
        name, address, folder = rest
        attending(name, address, Path(folder))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with link(Path(rest[0]), int(rest[1]) if rest[1:] else 0) as fleet, suppress(KeyboardInterrupt):
        print(address_of(fleet), flush=True)
        sent = dict.fromkeys(SITES, b"")
        tickets: dict[int, str] = {}
        while True:  # every site always has a letter to answer
            for site in sent.keys() - set(tickets.values()):
                tickets[fleet.send(site, lambda: b"a letter")] = site
            for ticket, _ in fleet.came(0.2):
                print(tickets.pop(ticket), flush=True)
                time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
