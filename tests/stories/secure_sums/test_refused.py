"""Secure sums that do not start: each is refused with its reason, and few may play what many may not."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import tree
from sordino.algorithms.fedavg import FedAvg
from sordino.engine import checkpoint
from sordino.errors import (
    BackendUnavailable,
    EmptyRound,
    HeadroomExceeded,
    NonFiniteUpdate,
    RangeSaturation,
    ServerHoldsKey,
    SordinoError,
    UnsoundGuarantee,
)
from sordino.ledger.ledger import State
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.channels import OpenedSum
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.secure_stages import (
    Aggregated,
    Encrypted,
    NoiseShare,
    SecureStage,
)
from sordino.privacy.uplink.stages import Clip, Weigh
from sordino.receipts.receipt import opened
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.secagg import encrypted, paillier
from sordino.secagg.encrypted import Adder, Ciphertexts, PeersHere
from sordino.types import Grant, Received
from tests.stories.secure_sums.sums import (
    CLEAR,
    CLIP,
    NOISE,
    ROUNDS,
    SHARE,
    TEST_KEY,
    Sums,
    Table,
    Watched,
    equal,
    key_for_tests,
    made,
    rows,
)

MANY: Table = {"partition": {"scheme": "iid", "clients": 300}}


LACE: Table = {"name": "coordinate_laplace", "target": "per_client"}


REFUSED: dict[str, tuple[str, Any, Table]] = {
    "weights behind fixed point": ("stage-behind-fixed-point", ["quantise", "weigh", "secagg"], {}),
    "a clip behind fixed point": ("stage-behind-fixed-point", ["quantise", CLIP, "bfv"], {}),
    "a clip behind the secure sum": ("secure-sum-not-last", ["secagg", CLIP], {}),
    "weights behind encryption": ("secure-sum-not-last", [TEST_KEY, "weigh"], {}),
    "two secure sums": ("secure-sum-not-last", ["secagg", "bfv"], {}),
    "shares in the clear": ("shares-need-secagg", [CLIP, SHARE], {}),
    "shares under encryption": ("shares-need-secagg", [CLIP, SHARE, "bfv"], {}),
    "shares before fixed point": ("share-off-the-grid", [CLIP, SHARE, "quantise", "secagg"], {}),
    "shares of Laplace noise": ("shares-are-gaussian", [CLIP, {**SHARE, "law": "laplace"}, "secagg"], {}),
    "shares of one": ("threshold-too-small", [CLIP, {**SHARE, "survivors": 1}, "secagg"], {}),
    "a threshold of one": ("threshold-too-small", [{"name": "secagg", "threshold": 1}], {}),
    "fewer opened than have noise": ("too-few-shares", [CLIP, SHARE, {"name": "secagg", "threshold": 2}], {}),
    "shares and noise of the server": (
        "two-noises",
        {"client": [CLIP, SHARE, "secagg"], "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 1.0}]},
        {},
    ),
    "a stop that tells of single values beside noise": (
        "strict-beside-noise",
        {
            "client": [CLIP, {"name": "quantise", "strict": True}, "secagg"],
            "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 1.0}],
        },
        {},
    ),
    "an authority for one": ("authority-opens-one", [{**TEST_KEY, "keys": "authority", "at_least": 1}], {}),
    "a short key": ("weak-key", [{"name": "paillier", "key_bits": 1024}], {}),
    "a key for tests": ("weak-key", [{"name": "paillier", "key_bits": 2048}], {}),
    "CKKS sums opened for the server": ("ckks-opened-for-server", [{"name": "ckks", "keys": "authority"}], {}),
    "a sum of more than a slot holds": ("headroom-exceeded", ["weigh", "secagg"], MANY),
    "a sum of more than a slot of Paillier holds": ("headroom-exceeded", [TEST_KEY], MANY),
    "a hidden cohort that may be everybody": (
        "headroom-exceeded",
        ["secagg"],
        {**MANY, "cohort": {"name": "poisson", "rate": 0.1}},
    ),
    "noise that uploads and a plaintext leave no room for": (
        "no-room-for-noise",
        {
            "client": [CLIP, {"name": "quantise", "headroom": 12}, "bfv"],
            "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 300.0}],
        },
        {},
    ),
    "published noise that encrypted uploads leave no room for": (
        "no-room-for-noise",
        {"client": ["clip_coordinates", "weigh", "bfv"], "server": [{"name": "coordinate_laplace", "epsilon": 0.01}]},
        {},
    ),
    "published noise that masked words leave no room for": (
        "no-room-for-noise",
        {
            "client": ["clip_coordinates", "weigh", "secagg"],
            "server": [{"name": "coordinate_laplace", "epsilon": 0.01}],
        },
        {},
    ),
    "noise of each client beyond its ciphertext": (
        "no-room-for-noise",
        [CLIP, "quantise", {**NOISE, "multiplier": 5.0}, "bfv"],
        {},
    ),
    "noise of each client beyond its masked words": (
        "no-room-for-noise",
        [CLIP, "quantise", {**NOISE, "multiplier": 50.0}, "secagg"],
        {},
    ),
    "a sum that wraps around a plaintext": (
        "plaintext-overflow",
        [{"name": "quantise", "headroom": 12}, "bfv"],
        {"partition": {"scheme": "iid", "clients": 600}},
    ),
    "an authority that would never open": ("cohort-below-threshold", [{**TEST_KEY, "keys": "authority"}], {}),
    "more must stay than can begin": ("cohort-below-threshold", [{"name": "secagg", "threshold": 6}], {}),
    "a sum of one": ("cohort-below-threshold", ["secagg"], {"cohort": {"name": "round_robin", "size": 1}}),
    "a median of norms that nobody reads": ("stage-reads-each", ["user_level", "secagg"], {}),
    "central noise for each upload": ("stage-reads-each", {"client": ["secagg"], "server": [LACE]}, {}),
    "an algorithm that reads each upload": (
        "aggregate-only",
        ["secagg"],
        {"algorithm": {"name": f"{__name__}:Greedy"}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_does_not_start(name: str, tmp_path: Path) -> None:
    """Before there is a folder, a key or an upload."""
    code, uplink, tables = REFUSED[name]
    experiment = made(**tables).model_copy(update={"uplink": uplink})
    with pytest.raises(SordinoError) as refusal:
        start(experiment, tmp_path / "run")
    assert refusal.value.code == code
    assert refusal.value.fix or refusal.value.why
    assert not (tmp_path / "run").exists()


def test_what_is_refused_for_many_is_played_by_few() -> None:
    """The limits are those of the largest round: 100 of 300, all of 256, and a lattice that has no authority's
    threshold.
    """
    for uplink, tables in (
        (["secagg"], {**MANY, "cohort": {"name": "random", "size": 100}}),
        (["secagg"], {"partition": {"scheme": "iid", "clients": 256}}),
        ([{"name": "quantise", "headroom": 12}, "secagg"], {"partition": {"scheme": "iid", "clients": 600}}),
        ([{"name": "quantise", "headroom": 12}, "bfv"], {"partition": {"scheme": "iid", "clients": 512}}),
        ([{"name": "user_level", "clip": 1.0}, "secagg"], {}),
    ):
        assert simulated(made(*uplink, **tables)).setup.plan.offer is None


@dataclass(frozen=True)
class Greedy(FedAvg):
    reads_each = True


class Sly(FedAvg):
    """Reads single uploads and does not say so."""

    def update(self, s: Any, r: Received[Any], home: Any) -> Any:
        assert len(r.each) > 0
        return super().update(s, r, home)


@pytest.mark.parametrize("stage", ["secagg", "bfv"])
def test_single_uploads_are_for_nobody(stage: str) -> None:
    watched = Watched(made("weigh", stage))
    sly = Sly(local_steps=1, batch_size=16, uplink=watched.parts.setup.algorithm.uplink)
    watched.federation.algorithm = watched.clients.algorithm = sly
    with pytest.raises(UnsoundGuarantee) as refusal:
        watched.round(watched.parts.setup.state("server"), 0)
    assert refusal.value.code == "aggregate-only"


@pytest.mark.parametrize(
    ("backend", "stage"), [("gmpy2", TEST_KEY), ("tenseal", "bfv"), ("tenseal", {"name": "ckks", "mode": "probe"})]
)
def test_without_the_package_there_is_no_sum(
    backend: str, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never one in the clear."""
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(BackendUnavailable) as refusal:
        start(made("weigh", stage), tmp_path / "run")
    assert refusal.value.code == "backend-unavailable"
    assert not (tmp_path / "run").exists()


def test_the_half_that_adds_is_given_no_secret() -> None:
    secret = key_for_tests()
    with pytest.raises(ServerHoldsKey):
        Adder(secret)  # type: ignore[arg-type]
    with pytest.raises(EmptyRound) as refusal:
        Adder(secret.public).total()
    assert refusal.value.code == "empty-round"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("holders", "keys_"), [(paillier.PaillierSecret, "authority"), (paillier.PaillierPublic, "shared")]
)
def test_clients_of_an_authority_blind_with_its_public_key(
    holders: type, keys_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half of the key would not do: who blinds with the secret one holds it."""

    def asked(self: Any, count: int) -> list[int]:
        raise AssertionError("blinded with the wrong half")

    stage = Encrypted(testing=True, key_bits=2048, keys=keys_, at_least=2)  # type: ignore[arg-type]
    uploads = [(k, np.full(40, k, np.int64)) for k in range(3)]
    layout = Layout(bits=16, reach=1.0)
    key_for_tests().public.encrypt(uploads[0][1], 0, layout)  # its tables are made
    monkeypatch.setattr(holders, "djn", asked)
    opened = Ciphertexts(stage, layout).sum(0, uploads, [0, 1, 2], 40, None)
    assert opened.total.tolist() == [3] * 40
    other = Encrypted(testing=True, key_bits=2048, keys="authority" if keys_ == "shared" else "shared", at_least=2)
    with pytest.raises(AssertionError, match="wrong half"):
        Ciphertexts(other, layout).sum(0, uploads, [0, 1, 2], 40, None)


def test_a_decrypted_sum_that_fails_its_check_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between sites: the round is broken off, and its model stays."""
    channel, values = Ciphertexts(Encrypted(testing=True, key_bits=2048), Layout()), np.arange(10)

    def found() -> OpenedSum:
        return channel.sum(0, ((k, values) for k in range(3)), range(3), 10, None)

    assert (found().who, found().total.tolist()) == ([0, 1, 2], (3 * values).tolist())  # the control
    decrypts = paillier.PaillierSecret.unseal
    monkeypatch.setattr(paillier.PaillierSecret, "unseal", lambda self, sums: [n + 1 for n in decrypts(self, sums)])
    assert "a guard is not 3, the number of contributions" in found().aborted
    assert (found().who, found().total.tolist()) == ([], [0] * 10)


# ---------------------------------------------------------------- what is no number, and what is too large
def test_what_is_no_number_names_its_client_and_its_place() -> None:
    """The index is that of the whole upload, over all its leaves."""
    uplink = Uplink((Weigh(), Aggregated()))
    for bad in (math.nan, math.inf):
        upload = {"a": torch.zeros(3, 4), "b": torch.tensor([0.0, bad, bad])}
        with pytest.raises(NonFiniteUpdate, match=r"client 6 .*index 13") as refusal:
            uplink.encode(upload, Grant(6, 1, 2, Counter(0)))
        assert refusal.value.code == "non-finite-update"


@pytest.mark.one_fast
@pytest.mark.parametrize("stage", ["secagg", {**TEST_KEY, "mode": "probe"}], ids=["secagg", "paillier"])
def test_a_round_with_such_an_upload_leaves_the_model(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round breaks: what is kept is the first one, and what the second one reserved stays reserved."""
    experiment, local = made("weigh", stage), FedAvg.local
    first = Watched(experiment).round(simulated(experiment).setup.state("server"), 0).server

    def broken(self: FedAvg, task: Any, down: Any, *rest: Any) -> Any:
        up, state = local(self, task, down, *rest)
        return (tree.scale(math.nan, up) if int(down.round) else up), state

    monkeypatch.setattr(FedAvg, "local", broken)
    with pytest.raises(NonFiniteUpdate, match=r"client 0 .*index 0"):
        start(experiment, tmp_path / "run")
    _, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        assert [entry.state for entry in ledger.entries()] == [State.PUBLISHED, State.RESERVED]
    kept = checkpoint.load(tmp_path / "run" / "checkpoints", simulated(experiment).setup.state)
    assert kept is not None
    assert equal(kept.trees["server"], first)
    assert len(rows(tmp_path / "run")) == 1


@pytest.mark.slow
def test_values_beyond_the_range_are_counted_or_refused(tmp_path: Path) -> None:
    narrow = {"name": "quantise", "range": 1e-3}
    start(made("weigh", narrow, "secagg"), tmp_path / "run")
    watched = Watched(made("weigh", narrow, "secagg"))
    for row, (_, outcome) in zip(rows(tmp_path / "run"), watched.rounds(ROUNDS), strict=True):
        top = Layout().offset - 1
        cut = sum(int((leaf.abs() == top).sum()) for up in watched.uploads.values() for leaf in tree.leaves(up))
        assert row["secure"]["saturated"] == outcome.secure["saturated"] == cut > 0
    with pytest.raises(RangeSaturation) as refusal:
        start(made("weigh", {**narrow, "strict": True}, "secagg"), tmp_path / "strict")
    assert refusal.value.code == "range-saturation"
    assert not (tmp_path / "strict" / "model.safetensors").exists()
    start(made("weigh", {**CLEAR, "strict": True}, "secagg"), tmp_path / "wide")
    assert {row["secure"]["saturated"] for row in rows(tmp_path / "wide")} == {0}


def test_a_broken_round_is_not_judged_by_its_values() -> None:
    """Nothing was added, so nothing was added wrongly."""
    sums = Sums(Uplink((Quantise(Layout(reach=1e-3), strict=True), Aggregated(4))))
    raw = {k: {"w": torch.ones(9)} for k in range(3)}
    assert sums.mean(raw, dict.fromkeys(range(5), 1), cohort=list(range(5))).mean["w"].tolist() == [0.0] * 9
    assert "aborted" in sums.came.secure


@pytest.mark.parametrize(
    ("stage", "limit", "code"),
    [
        (Aggregated(), 64, "headroom-exceeded"),
        (Encrypted("paillier", 2048, testing=True), 64, "headroom-exceeded"),
        (Encrypted("bfv"), 64, "plaintext-overflow"),
    ],
    ids=["secagg", "paillier", "bfv"],
)
def test_too_many_are_refused_before_anything_is_encrypted(stage: SecureStage, limit: int, code: str) -> None:
    """Whoever did not plan the run learns it in the round."""

    def nobody() -> Iterator[tuple[int, Any]]:
        raise AssertionError("an upload was asked for")
        yield

    layout = Layout(16, 6)
    channel = stage.sums.channel(stage, layout, "run")
    with pytest.raises(HeadroomExceeded) as refusal:
        channel.sum(0, nobody(), range(limit + 1), 4, None)
    assert refusal.value.code == code


def test_noise_that_does_not_fit_is_refused_before_anything_is_masked() -> None:
    share = NoiseShare(neighbours="zero_out", multiplier=40.0, survivors=2)
    sums = Sums(Uplink((Clip(1.0), Quantise(Layout(24, 1)), share, Aggregated())))
    with pytest.raises(UnsoundGuarantee) as refusal:
        sums.mean({0: {"w": torch.zeros(3)}, 1: {"w": torch.zeros(3)}}, {0: 1, 1: 1})
    assert refusal.value.code == "no-room-for-noise"
    with pytest.raises(UnsoundGuarantee) as refusal:
        encrypted.check_fits(1 << 40, Layout(8, 4), 16)
    assert refusal.value.code == "no-room-for-noise"
    narrow = NoiseShare(neighbours="zero_out", multiplier=1.0, survivors=4)
    with pytest.raises(UnsoundGuarantee) as refusal:
        Sums(Uplink((Clip(0.01), Quantise(Layout(8)), narrow, Aggregated()))).mean(
            {k: {"w": torch.zeros(1)} for k in range(4)}, dict.fromkeys(range(4), 1)
        )
    assert refusal.value.code == "share-too-narrow"


@pytest.mark.parametrize(
    "stage",
    [Encrypted("paillier", 2048, testing=True), Encrypted("bfv"), Encrypted("ckks")],
    ids=["paillier", "bfv", "ckks"],
)
def test_the_count_of_a_sum_does_not_tell_how_large_its_noise_is(
    stage: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens a sum sees how many are in it. A count that grows with the noise tells one client from none: their
    sums are equal, and their noise is not."""
    layout, counts, opens = Layout(), [], PeersHere.decrypt

    def decrypt(peers: PeersHere, total: bytes, count: int) -> Any:
        counts.append(encrypted.unpack(total, peers.holder.public.header(0, 3, layout)).header.count)
        return opens(peers, total, count)

    monkeypatch.setattr(PeersHere, "decrypt", decrypt)
    channel, most = Ciphertexts(stage, layout), layout.offset - 1
    uploads = [(k, np.array([k, -k, most])) for k in range(3)]
    for drawn in ([0, 0, 0], [9 * most + 1, -7, 1], [0, -253 * most, -1]):
        found = channel.sum(0, iter(uploads), range(3), 3, np.array(drawn))
        off = found.total - drawn - [3, -3, 3 * most]
        assert np.abs(off).max() <= (6 if stage.scheme == "ckks" else 0)
    assert counts == [256] * 3  # all that a slot has room for
    with pytest.raises(UnsoundGuarantee) as refusal:
        channel.sum(0, iter(uploads), range(3), 3, np.array([0, 0, 253 * most + 1]))
    assert refusal.value.code == "no-room-for-noise"
