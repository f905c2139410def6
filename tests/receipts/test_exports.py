"""Documents for others: from what may be passed on alone, refused or stamped where it does not hold, true to the
receipt.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cryptography.exceptions import InvalidSignature

import sordino
from sordino.receipts.documents import gather
from sordino.receipts.signature import generate, public_key, sign
from sordino.receipts.verify import examine
from sordino.report import run_page
from sordino.report.run_page import annex_page
from tests.helpers.browser import browser
from tests.helpers.command_line import Said

KINDS = {"annex": "annex.html", "registry": "deployment.yaml", "card": "model-card.md"}
HANDED = ("privacy.json", "ledger.sqlite", "experiment.toml", "agreement.json", "environment.json")
HOSTILE = "a </title><script>alert(1)</script> | *b* & 'c'"
TINY = ("rounds=2", "partition.clients=3", "model=logistic", "evaluation.final=1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation, the same with real noise, and a run without any: of each what may be passed on, and nothing else."""
    place = tmp_path_factory.mktemp("exported")
    private = ("algorithm=gaussian_gdp", "privacy.epsilon=4", f'name="{HOSTILE}"')
    for name, more in (
        ("simulated", private),
        ("real", (*private, "privacy.noise=system")),
        ("open", ("algorithm=fedavg",)),
    ):
        sordino.run(None, *TINY, *more, out=place / "whole" / name)
        (place / name).mkdir()
        for file in HANDED:
            shutil.copy(place / "whole" / name / file, place / name)
    return place


@pytest.fixture
def export(
    cli: Callable[..., Said], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Said, str]]:
    """A document of a copy, on a machine without data."""
    monkeypatch.setattr("sordino.runs.declared_data.SOURCES", {})

    def made(name: str, kind: str, *more: object) -> tuple[Said, str]:
        target = tmp_path / KINDS[kind]
        said = cli("privacy", "export", runs / name, "--as", kind, "--out", target, *more)
        return said, target.read_text() if target.exists() else ""

    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_promise_stands_with_all_that_makes_it_one(kind: str, export: Callable[..., tuple[Said, str]]) -> None:
    for name in ("simulated", "real"):
        said, text = export(name, kind)
        assert (said.code, said.err) == (0, "")
        flat = " ".join(re.sub(r"<[^>]*>", " ", text).replace("\\", "").split())
        for word in ("example", "replace", "1e-05" if name == "simulated" else "1.0", "proved", "gdp"):
            assert word in flat, (kind, word)
        assert ("SIMULATION" in flat) == ("proved (simulation)" in flat) == (name == "simulated")
        assert "the number of examples of each client is public" in flat  # what it depends on
        assert "tuning" in flat or "hyper-parameters" in flat
        assert "every epsilon follows from it" in flat  # what was checked
        assert "model.safetensors" in flat  # and what could not be
        assert kind == "registry" or not re.search(r"(?<!\\)<script", text.split("---\n")[-1])
        assert str(Path.cwd()) not in text


@pytest.mark.slow
def test_the_annex_says_who_is_protected_and_who_is_not(export: Callable[..., tuple[Said, str]]) -> None:
    _, text = export("real", "annex")
    assert "Nothing is promised about the whole data of one client" in text
    assert "can raise that to 38% at most" in text
    assert "which program wrote the files" in text
    assert "<details" not in text
    _, bare = export("open", "annex")
    assert "Nothing is promised about anybody" in bare
    assert "NOT PRIVATE: no noise was drawn" in bare
    assert "SIMULATION" not in bare  # of what?


def test_nothing_is_registered_where_nothing_is_promised(export: Callable[..., tuple[Said, str]]) -> None:
    said, text = export("open", "registry")
    assert (said.code, text) == (2, "")
    assert "nothing-to-register" in said.err


def test_the_card_has_a_front_matter_and_keeps_its_table(export: Callable[..., tuple[Said, str]]) -> None:
    _, text = export("simulated", "card")
    _, matter, body = text.split("---\n", 2)
    assert yaml.safe_load(matter)["tags"] == ["federated-learning", "differential-privacy", "simulation"]
    assert yaml.safe_load(matter)["model_name"] == HOSTILE
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1


def test_the_card_of_a_run_that_promises_nothing_claims_no_privacy(export: Callable[..., tuple[Said, str]]) -> None:
    _, text = export("open", "card")
    assert yaml.safe_load(text.split("---\n", 2)[1])["tags"] == ["federated-learning", "simulation"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_hold_is_refused_or_stamped(
    kind: str, cli: Callable[..., Said], runs: Path, tmp_path: Path
) -> None:
    forged, target = shutil.copytree(runs / "real", tmp_path / "forged"), tmp_path / KINDS[kind]
    told = json.loads((forged / "privacy.json").read_text())
    told["guarantees"][0]["epsilon"] = 0.1
    (forged / "privacy.json").write_text(json.dumps(told))
    said = cli("privacy", "export", forged, "--as", kind, "--out", target)
    assert (said.code, target.exists()) == (5, False)
    assert "receipt-does-not-hold" in said.err
    assert "epsilon" in said.err
    assert cli("privacy", "export", forged, "--as", kind, "--out", target, "--anyway").code == 0
    text = target.read_text()
    assert "THIS RECEIPT DOES NOT HOLD" in text.replace("\\", "")
    assert "every epsilon follows from it" not in text


@pytest.mark.slow
def test_a_pdf_is_one_page(runs: Path, tmp_path: Path) -> None:
    browser()
    made = annex_page(gather(runs / "real", None, False, False))
    printed = run_page.as_pdf(made, tmp_path / "annex.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_without_a_browser_it_says_what_to_do(
    runs: Path, tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "BROWSERS", ("no-such-browser",))
    said = cli("privacy", "export", runs / "real", "--as", "annex", "--out", tmp_path / "annex.pdf")
    assert said.code == 2
    assert "no-pdf-printer" in said.err
    assert ".html" in said.err
    said = cli("privacy", "export", runs / "real", "--as", "card", "--out", tmp_path / "card.pdf")
    assert "unknown-document-kind" in said.err


def test_a_key_that_came_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("of somebody who was quicker")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(FileExistsError):
        generate(tmp_path / "key")
    assert (tmp_path / "key").read_text() == "of somebody who was quicker"


def test_the_envelope_is_a_statement_that_its_signature_covers(
    runs: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    """By the encoding of DSSE's own specification, written down here once more."""
    run, target = shutil.copytree(runs / "real", tmp_path / "run"), tmp_path / "receipt.dsse.json"
    assert cli("privacy", "export", run, "--as", "dsse", "--out", target).code == 0
    assert json.loads(target.read_text())["signatures"] == []
    assert cli("privacy", "sign", run, "--key", generate(tmp_path / "site").with_suffix("")).code == 0
    assert cli("privacy", "export", run, "--as", "dsse", "--out", target, "--key", tmp_path / "site.pub").code == 0
    told = json.loads(target.read_text())
    kind, body = told["payloadType"].encode(), base64.b64decode(told["payload"])
    encoded = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(body)).encode(), body])
    [signed] = told["signatures"]
    public_key(tmp_path / "site.pub").verify(base64.b64decode(signed["sig"]), encoded)
    with pytest.raises(InvalidSignature):
        public_key(tmp_path / "site.pub").verify(base64.b64decode(signed["sig"]), encoded.replace(b"proved", b"proven"))
    statement, receipt = json.loads(body), (run / "privacy.json").read_bytes()
    assert statement["predicate"] == json.loads(receipt)
    assert statement["subject"] == [
        {"name": "privacy.json", "digest": {"sha256": hashlib.sha256(receipt).hexdigest()}},
        {
            "name": "model.safetensors",
            "digest": {
                "sha256": hashlib.sha256((runs / "whole" / "real" / "model.safetensors").read_bytes()).hexdigest()
            },
        },
    ]
    (run / "privacy.sig").write_text('{"public_key": "", ' + (run / "privacy.sig").read_text().lstrip("{"))
    assert examine(run).wrong == ["the signature cannot be read: a name occurs twice"]


def test_an_envelope_of_what_does_not_hold_is_not_made(runs: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    run, target = shutil.copytree(runs / "real", tmp_path / "run"), tmp_path / "receipt.dsse.json"
    told = json.loads((run / "privacy.json").read_text())
    told["guarantees"][0]["epsilon"] = 0.1
    (run / "privacy.json").write_text(json.dumps(told))
    assert cli("privacy", "export", run, "--as", "dsse", "--out", target, "--anyway").code == 5
    shutil.copy(runs / "real" / "privacy.json", run)
    sign(run, generate(tmp_path / "site").with_suffix(""))
    told = json.loads((run / "privacy.sig").read_text())
    (run / "privacy.sig").write_text(json.dumps(told | {"envelope": told["signature"]}))
    assert cli("privacy", "export", run, "--as", "dsse", "--out", target).code == 5
    assert not target.exists()
