"""Where the time of a run goes: slow work is found under its own name, and all of the time is somewhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from sordino.cli.bench import WAITING, Profile, reach
from sordino.engine.site import Site
from sordino.ledger.ledger import Ledger
from sordino.privacy.noise import GaussianNoise
from sordino.tasks.supervised import Classification

if TYPE_CHECKING:
    from tests.helpers.command_line import Said

SLOW: dict[str, tuple[type[Any], str]] = {
    "noise": (GaussianNoise, "add"),
    "ledger and prices": (Ledger, "reserve"),
    "evaluation": (Classification, "score"),
}

SLOWNESS = 0.08  # seconds that each of the first three calls takes longer


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_slow_work_is_found_under_its_name(
    kind: str, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    place, name = SLOW[kind]
    whole, calls = getattr(place, name), iter(range(3))

    def slowly(self: Any, *given: Any, **more: Any) -> Any:
        busy(SLOWNESS if next(calls, None) is not None else 0)
        return whole(self, *given, **more)

    monkeypatch.setattr(place, name, slowly)
    # it stands where the file of the method stands, as far as anybody who looks can see
    slowly.__code__ = slowly.__code__.replace(co_filename=whole.__code__.co_filename)
    said = cli("run", "rounds=3", "partition.clients=4", "--profile", "--json", "--out", str(tmp_path / "run"))
    seconds = json.loads(said.out)["seconds"]
    assert seconds[kind] > SLOWNESS  # threads at work share the moment, and a machine may be busy
    assert seconds[kind] > seconds.get("adding up", 0.0)


def test_all_of_the_time_is_somewhere_and_waiting_is_told() -> None:
    with Profile() as seen:
        threading.Event().wait(0.15)
    assert sum(seen.shares.values()) == pytest.approx(seen.seconds, rel=1e-6)
    assert seen.shares[WAITING] == pytest.approx(seen.seconds, rel=1e-6)
    assert 0.1 < seen.seconds < 5


@pytest.mark.slow
def test_threads_at_work_share_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = busy.__code__.replace(co_filename=Site.__call__.__code__.co_filename)
    monkeypatch.setattr(busy, "__code__", code)
    with Profile() as seen:
        both = [threading.Thread(target=busy, args=(0.2,)) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
    assert seen.shares["handing out and collecting"] <= seen.seconds
    assert reach(1) > 1e8


def test_a_terminal_is_told_in_a_table(cli: Callable[..., Said], tmp_path: Any) -> None:
    said = cli("run", "rounds=2", "partition.clients=3", "--profile", "--out", str(tmp_path / "run"))
    assert "where the time went" in said.out
    assert "matrix products" in said.out
    assert "where the time went" not in cli("run", "rounds=1", "--out", str(tmp_path / "other")).out
