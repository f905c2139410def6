"""`sordino audit`: one object, what it found in words, and how it ends."""

from __future__ import annotations

import json

import pytest

from sordino.accounting.gaussian_dp import epsilon_of
from sordino.privacy.noise import GaussianNoise
from tests.helpers.command_line import spoken

SOUND = ("gaussian_gdp", "multiplier=0.5", "privacy={delta=1e-5}", "--trials", 5000)


@pytest.mark.slow
def test_the_verb_prints_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = spoken(capsys, monkeypatch, "audit", *SOUND, "--json")
    found = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    assert found.keys() == {
        "algorithm",
        "verdict",
        "phases",
        "unprotected",
        "subjects",
        "not_looked_at",
        "twin",
        "short",
        "noise",
        "seed",
        "simulated",
    }
    assert (found["verdict"], found["algorithm"], found["noise"]) == ("holds", "gaussian_gdp", "counter")
    (one,) = found["subjects"]
    assert {"unit", "neighbours", "adversary", "attack", "status", "claimed", "delta"} <= one.keys()
    assert {"at_least", "at_delta", "claimed_there", "trials", "confidence", "verdict"} <= one.keys()
    assert one["at_least"] <= one["claimed"] == pytest.approx(epsilon_of(2.0, 1e-5))


def test_the_verb_says_what_it_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No claim was refuted" in spoken(capsys, monkeypatch, "audit", *SOUND).out
    assert "Caught: with 30% less" in spoken(capsys, monkeypatch, "audit", *SOUND, "--twin").out
    assert "Caught: with 50% less" in spoken(capsys, monkeypatch, "audit", *SOUND, "--twin", "--short", 0.5).out
    assert "short-without-twin" in spoken(capsys, monkeypatch, "audit", *SOUND, "--short", 0.5).err
    said = spoken(capsys, monkeypatch, "audit", "fedavg")
    assert (said.code, said.out.strip()) == (0, "fedavg: nothing to audit: infinity is claimed.")


def test_the_verb_ends_with_4_where_a_claim_is_refuted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = lambda self, values, scale, source: source.noisy(self, values, scale / 2)  # noqa: E731
    monkeypatch.setattr(GaussianNoise, "add", halved)
    said = spoken(capsys, monkeypatch, "audit", *SOUND)
    assert said.code == 4
    assert "Refuted" in said.out


def test_the_verb_ends_with_2_where_the_twin_escapes_or_the_subject_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = ("gaussian_gdp", "multiplier=50.0", "privacy={delta=1e-5}", "--trials", 200)  # nobody sees 30% of so little
    said = spoken(capsys, monkeypatch, "audit", *weak, "--twin")
    assert said.code == 2
    assert "--trials" in said.out
    said = spoken(capsys, monkeypatch, "audit", "gaussian_gpd")
    assert said.code == 2
    assert "unknown-subject" in said.err
    assert spoken(capsys, monkeypatch, "audit", "fedavg", "udp").code == 2
