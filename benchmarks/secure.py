"""What sums cost that only come out as sums: python benchmarks/secure.py [--repeats 3] [--parts update round]
[--quick].

update: one upload of 100,000 values of 24 bits in slots of 32 under each scheme, against python-paillier (phe), which
encrypts each value alone. Slow ways are measured on a part of the upload and multiplied by the number of ciphertexts:
their row says on how much. Adding is what the server does for each further client. round: 50 clients with 28,938 values
each through the channel that a run takes, every client encrypted; keys and tables are made before.

CPU seconds of one thread; the ways take turns, and medians are printed. Whatever is opened is compared with the sum of
the integers that went in.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

import numpy as np  # noqa: E402

from benchmarks.rounds import machine, markdown  # noqa: E402
from sordino.privacy.uplink.channels import Channel  # noqa: E402
from sordino.privacy.uplink.fixed_point import Ints, Layout  # noqa: E402
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, SecureStage  # noqa: E402
from sordino.secagg import lattice, paillier  # noqa: E402
from sordino.secagg.mask_protocol import Aggregator, Participant  # noqa: E402
from sordino.secagg.masks import Session, two_thirds  # noqa: E402

LAYOUT = Layout(bits=24, headroom=8)
DROPPED = 3
CKKS_STEPS = 2  # that a sum of 50 may be off by: sqrt(50) / 3 + 1/2

Work = Callable[..., list[Any]]


class Size(NamedTuple):
    values: int  # of the upload
    alone: int  # values measured where each is encrypted alone
    clients: int
    model: int  # values of a client in the round
    keys: tuple[int, ...]  # bits, the last for the round


FULL = Size(100_000, 40, 50, 28_938, (2048, 3072))
QUICK = Size(600, 3, 12, 200, (2048,))


class Cost(NamedTuple):
    encrypt: float  # seconds
    add: float
    decrypt: float
    bytes: float

    def times(self, factor: float) -> Cost:
        return Cost(*(factor * each for each in self))


class Way(NamedTuple):
    name: str
    ciphertexts: int  # of the whole upload
    play: Callable[[], Cost]  # once, for the whole upload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=["update", "round"], default=["update", "round"])
    parser.add_argument("--quick", action="store_true", help="small sizes and keys: whether it runs, not what it costs")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    for part in asked.parts:
        {"update": update, "round": whole_rounds}[part](size, asked.repeats)


# one upload ----------------------------------------------------------------------------------------------------------


def update(size: Size, repeats: int) -> None:
    ways = list(all_ways(size))
    taken = [[way.play() for way in ways] for _ in range(repeats)]
    costs = [Cost(*map(statistics.median, zip(*(turn[i] for turn in taken), strict=True))) for i in range(len(ways))]
    head = [f"{size.values:,} values", "ciphertexts", "encrypt s", "add s", "decrypt s", "bytes", "expansion"]
    rows = [
        [
            way.name,
            f"{way.ciphertexts:,}" if way.ciphertexts else "",
            *(f"{each:.{3 if each > 0.1 else 4}f}" for each in cost[:3]),
            f"{cost.bytes:,.0f}",
            f"{cost.bytes / (4 * size.values):.2f}",
        ]
        for way, cost in zip(ways, costs, strict=True)
    ]
    print(f"\n{markdown(head, rows)}\n")
    bits, found = size.keys[-1], list(zip(ways, costs, strict=True))
    one = [cost for way, cost in found if way.name.startswith(f"phe {bits}")]
    packed = [cost for way, cost in found if way.name == f"packed {bits}, djn"]
    for theirs, ours in zip(one, packed, strict=False):  # none where phe is missing
        shares = [f"{name} {a / b:,.0f}x" for name, a, b in zip(Cost._fields[:3], theirs, ours, strict=False)]
        whole = sum(theirs[:3]) / sum(ours[:3])
        print(f"packed {bits}, djn, takes {whole:,.0f} times less CPU than phe {bits}: {', '.join(shares)}", flush=True)


def all_ways(size: Size) -> Iterator[Way]:
    values = integers(size.values)
    secrets = {bits: paillier.generate(bits, testing=True) for bits in size.keys}
    for bits in size.keys:
        yield from phe_alone(bits, values, size.alone)
    for bits, secret in secrets.items():
        yield alone(bits, secret, values, size.alone)
    for bits, secret in secrets.items():
        for name, blinding in {"djn": secret.public.djn, "djn with the key": secret.djn}.items():
            blinding(1)  # tables are made once for a key
            yield sealed(f"packed {bits}, {name}", secret, values, size.values, blinding=blinding)
    for scheme, off in (("bfv", 0), ("ckks", CKKS_STEPS)):
        yield sealed(scheme.upper(), lattice.generate(scheme), values, size.values, off)
    yield Way(f"secure aggregation, {size.clients} clients", 0, partial(masked, values, size.clients))


def phe_alone(bits: int, values: Ints, measured: int) -> Iterator[Way]:
    """Nothing where the package is missing."""
    if find_spec("phe") is None:
        print("phe is not installed")
        return
    import phe  # type: ignore[import-untyped]

    public, secret = phe.generate_paillier_keypair(n_length=bits)
    yield one_each(
        f"phe {bits} {'with' if phe.util.HAVE_GMP else 'without'} gmpy2",
        bits,
        values,
        measured,
        lambda numbers: [public.encrypt(number) for number in numbers],
        lambda one, other: [a + b for a, b in zip(one, other, strict=True)],
        lambda total: [secret.decrypt(number) for number in total],
    )


def alone(bits: int, secret: paillier.PaillierSecret, values: Ints, measured: int) -> Way:
    public = secret.public
    public.djn(1)
    return one_each(
        f"ours {bits}, djn",
        bits,
        values,
        measured,
        lambda numbers: public.seal([number % public.n for number in numbers], public.djn),
        lambda one, other: [a * b % public.square for a, b in zip(one, other, strict=True)],
        lambda total: [number - public.n * (number > public.n // 2) for number in secret.unseal(total)],
    )


def one_each(name: str, bits: int, values: Ints, measured: int, encrypt: Work, add: Work, decrypt: Work) -> Way:
    """Every value in a ciphertext of its own."""
    numbers = values[:measured].tolist()

    def play() -> Cost:
        encrypting, one = timed(lambda: encrypt(numbers))
        adding, total = timed(lambda: add(one, one))
        opening, opened = timed(lambda: decrypt(total))
        compare(np.array(opened, np.int64), 2 * values[:measured])
        return Cost(encrypting, adding, opening, measured * bits / 4).times(len(values) / measured)

    return Way(f"{name}, one value each{projected(measured, values)}", len(values), play)


def sealed(name: str, secret: Any, values: Ints, measured: int, off: int = 0, **options: Any) -> Way:
    """Through the library's messages: what is added is read from its bytes and checked."""
    public = secret.public
    each = public.header(0, len(values), LAYOUT).slots - 1  # a slot is the guard
    whole, part = -(-len(values) // each), -(-measured // each)

    def play() -> Cost:
        encrypting, message = timed(lambda: public.encrypt(values[:measured], 0, LAYOUT, **options))
        adding, total = timed(lambda: public.add([message, message]))
        opening, opened = timed(lambda: secret.open(total))
        compare(opened, 2 * values[:measured], off)
        return Cost(encrypting, adding, opening, len(message.body)).times(whole / part)

    return Way(f"{name}{projected(measured, values)}", whole, play)


def masked(values: Ints, clients: int) -> Cost:
    """`encrypt`: one client's steps up to its upload; `decrypt`: all that comes after the uploads, nobody having
    dropped out.
    """
    words, top, threshold = values + LAYOUT.offset, 2 * LAYOUT.offset - 1, two_thirds(clients)
    session = Session("benchmark", 0, len(values), LAYOUT.width, top, threshold, bytes(32))
    server = Aggregator(session)
    sent = 0

    def send(message: bytes) -> None:
        nonlocal sent
        sent += len(message)
        server.receive(message)

    def prepare() -> tuple[list[Participant], dict[int, bytes]]:
        halves = [Participant(session, who) for who in range(clients)]
        for half in halves:
            send(half.advertise())
        roster = server.roster()
        for half in halves:
            send(half.share(roster))
        return halves, server.inboxes()

    def unmask() -> Any:
        request = server.request()
        for half in halves:
            send(half.unmask(request))
        return server.open()

    preparing, (halves, inboxes) = timed(prepare)
    masking, uploads = timed(lambda: [half.masked(inboxes[who], words) for who, half in enumerate(halves)])
    adding, _ = timed(lambda: list(map(send, uploads)))
    opening, opened = timed(unmask)
    compare(opened.astype(np.int64), clients * words)
    return Cost((preparing + masking) / clients, adding / clients, opening, sent / clients)


# a whole round -------------------------------------------------------------------------------------------------------


PARTS = {"encrypt": ("encrypt", "advertise", "share", "mask"), "add": ("add",), "open": ("unmask", "open")}


def whole_rounds(size: Size, repeats: int) -> None:
    bits = size.keys[-1]
    long_keys = partial(Encrypted, "paillier", bits, testing=bits < 3072)
    stages: dict[str, tuple[SecureStage, int, int]] = {  # how many drop out, how many steps the sum may be off
        f"Paillier {bits}, shared key": (long_keys(keys="shared"), 0, 0),
        f"Paillier {bits}, authority": (long_keys(keys="authority"), 0, 0),
        "BFV": (Encrypted("bfv"), 0, 0),
        "CKKS": (Encrypted("ckks"), 0, CKKS_STEPS),
        "secure aggregation": (Aggregated(), 0, 0),
        f"secure aggregation, {DROPPED} drop out": (Aggregated(), DROPPED, 0),
    }
    vectors, nothing = [integers(size.model, who) for who in range(size.clients)], [np.zeros(1, np.int64)] * 2
    through = {name: stage.sums.channel(stage, LAYOUT, "benchmark") for name, (stage, _, _) in stages.items()}
    before = {name: a_round(each, nothing)["cpu"] for name, each in through.items()}
    taken = [
        {name: a_round(through[name], vectors, dropped, off) for name, (_, dropped, off) in stages.items()}
        for _ in range(repeats)
    ]
    head = [f"{size.clients} x {size.model:,} values", "keys s", "CPU s", *PARTS, "wall s", "bytes each"]
    rows = []
    for name in stages:
        cost = {what: statistics.median(turn[name][what] for turn in taken) for what in taken[0][name]}
        cells = (f"{each:.2f}" for each in (before[name], cost["cpu"], *(cost[part] for part in PARTS), cost["wall"]))
        rows.append([name, *cells, f"{cost['bytes']:,.0f}"])
    print(f"\n{markdown(head, rows)}", flush=True)


def a_round(through: Channel, vectors: list[Ints], dropped: int = 0, off: int = 0) -> dict[str, float]:
    staying = vectors[: len(vectors) - dropped]
    wall, cohort = time.perf_counter(), range(len(vectors))
    cpu, found = timed(lambda: through.sum(0, enumerate(staying), cohort, len(vectors[0]), None))
    wall = time.perf_counter() - wall
    compare(found.total, np.sum(staying, axis=0), off)
    parts = {part: sum(found.seconds.get(step, 0.0) for step in steps) for part, steps in PARTS.items()}
    return {"cpu": cpu, "wall": wall, "bytes": found.payload, **parts}


# what both take ------------------------------------------------------------------------------------------------------


def integers(count: int, seed: int = 0) -> Ints:
    most = LAYOUT.offset - 1
    return np.random.default_rng(seed).integers(-most, most + 1, count)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    done = work()
    return time.process_time() - began, done


def compare(opened: Ints, expected: Ints, off: int = 0) -> None:
    """A way that gives another sum has not done the work."""
    if (apart := int(np.abs(opened - expected).max())) > off:
        raise SystemExit(f"a sum is {apart} steps off")


def projected(measured: int, values: Ints) -> str:
    return f" (from {measured:,})" if measured < len(values) else ""


if __name__ == "__main__":
    main()
