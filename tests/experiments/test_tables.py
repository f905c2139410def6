"""Tables of published numbers: what their folders declare, and that pages say what was run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pages
import pytest
import tables
import torch

from sordino import config
from sordino.errors import ConfigError
from sordino.privacy.noise.sources import Counter
from sordino.types import Bound, Grant
from tests.experiments.small_tables import CLAIM, HEAD, ONE, TWO, kept, table

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = [file.parent.name for file in sorted(ROOT.glob(f"*/{tables.ROWS}"))]


@pytest.mark.one_fast
@pytest.mark.parametrize("name", NAMES)
def test_every_number_on_the_pages_is_that_of_a_kept_run(name: str) -> None:
    one = tables.read(ROOT / name)
    page = (ROOT / name / "README.md").read_text(encoding="utf-8")
    first, last = pages.marks(name)
    assert page.count(first + pages.block(one) + last) == 1
    if one.sheet.row:
        assert (ROOT / name / "table.md").read_text(encoding="utf-8") == pages.measured(one, whole=True) + "\n"
    asked = {(row.name, seed) for row in one.sheet.row for seed in range(row.seeds)}
    assert {(run.name, run.seed) for run in one.runs} <= asked
    assert not one.unwritten()
    assert all((one.folder / program.file).exists() for program in one.sheet.program)


def test_the_headlines_are_those_of_kept_runs_and_every_table_is_linked() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    first, last = pages.marks("")
    written = pages.headlines([tables.read(ROOT / name) for name in NAMES])
    assert page.count(first + written + last) == 1
    assert {name for name in NAMES if f"({name}/README.md)" in page} == {*NAMES}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_an_experiment(name: str) -> None:
    one = tables.read(ROOT / name)
    tune = one.sheet.tune
    for row in one.sheet.row:
        for value in (None,) if tune is None else tune.values:
            words = row.set if tune is None else (*row.set, f"{tune.key}={value}")
            assert config.load(one.experiment, words).algorithm.get("lr") == value or value is None
    if (quick := one.sheet.quick) is not None:
        config.load(one.experiment, (*one.row(quick.row).set, *quick.set))


def test_every_folder_of_results_is_listed() -> None:
    assert {file.parent.name for file in ROOT.glob("*/*.py")} | {file.parent.name for file in ROOT.glob("*/*.md")} <= {
        *NAMES
    }


@pytest.mark.parametrize("program", sorted(ROOT.glob("*/*.py")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_program_finds_what_it_imports(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them are run by tests."""
    monkeypatch.syspath_prepend(str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert "__name__" in runpy.run_path(str(program), run_name="loaded")


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    """The negative control."""
    one = tables.read(ROOT / "cuag")
    page = (ROOT / "cuag" / "README.md").read_text(encoding="utf-8")
    wrong = page.replace("| 91.28 |", "| 92.28 |")
    assert wrong != page
    assert pages.with_block(wrong, "cuag", pages.block(one)) == page
    assert pages.with_block("a page without marks", "cuag", pages.block(one)) == "a page without marks"


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Two programs wrote the pages of one table: one read a page that the other had just emptied, and kept it empty."""
    one = table(tmp_path / "mine", HEAD + ONE)
    page, before = one.folder / "README.md", "before\n{}{}after\n".format(*pages.marks("mine"))
    page.write_text(before)
    with page.open() as reader:
        pages.write(one)
        assert reader.read() == before
    assert pages.block(one) in page.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + ONE.replace("seeds = 2", "seeds = 2\npublished = [90.0]"), "number under published, and nothing says"),
        (HEAD + ONE.replace("seeds = 2", "seeds = 2\nyardstick = [90.0]"), "number under yardstick, and nothing says"),
        (HEAD + ONE + ONE, "two rows are called 'one'"),
        (HEAD + TWO, "'one' is no row"),
        (HEAD + ONE.replace("seeds", "sedes"), "row.0.seeds: Field required"),
        (HEAD + ONE + "becuase = 'x'\n", "row.0.becuase: Extra inputs"),
        (ONE, "source: Field required"),
        (HEAD + "[[row", "is not valid TOML"),
        ('source = "nobody"\n', r"needs a \[\[row"),
        (HEAD.replace("experiment", "#") + ONE, "rows need an experiment"),
        (HEAD.replace("quick", "#") + ONE, "rows need an experiment = '...' and a quick"),
        (HEAD + ONE + CLAIM.replace('"one"', '"two"'), "'two' is no row"),
        (HEAD + ONE + CLAIM + 'minus = ["two"]\n', "'two' is no row"),
        (
            HEAD + ONE + TWO + CLAIM + 'minus = ["one", "two"]\n',
            "'is it so' has 1 rows and 2 to compare them with",
        ),
        (HEAD + ONE + CLAIM + "becuase = 'x'\n", "claim.0.becuase: Extra inputs"),
        (HEAD + ONE + CLAIM + "headline = true\n", "a headline needs a paper = '...' and a size"),
    ],
)
def test_what_a_folder_declares_wrongly_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        table(tmp_path, text)
    assert tables.ROWS in refused.value.what


def test_a_claim_compares_seed_by_seed(tmp_path: Path) -> None:
    text = HEAD + ONE + TWO.replace("seeds = 1", "seeds = 3") + CLAIM + 'minus = ["two"]\n' + CLAIM
    lines = (
        kept("one", 0, 50.0),
        kept("one", 1, 60.0),
        kept("two", 1, 61.0),
        kept("two", 0, 53.0),
        kept("two", 2, 9.0),
    )
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    one = table(tmp_path, text)
    assert [pages.shown(one, claim) for claim in one.sheet.claim] == ["-2.0 ± 1.4 (n = 2)", "55.0 ± 7.1 (n = 2)"]
    assert "| is it so | - | -2.0 ± 1.4 (n = 2) | - |" in pages.block(one)
    (tmp_path / tables.RESULTS).write_text(lines[0])
    one = table(tmp_path, text)
    assert [pages.shown(one, claim) for claim in one.sheet.claim] == ["not run", "50.0 (n = 1)"]


def test_each_row_of_a_claim_may_have_its_own_to_be_compared_with(tmp_path: Path) -> None:
    both = CLAIM.replace('["one"]', '["one", "two"]')
    lines = (kept("one", 0, 50.0), kept("two", 0, 53.0))
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    one = table(tmp_path, HEAD + ONE + TWO + both + 'minus = ["two", "one"]\n' + both + 'minus = ["one"]\n')
    told = [pages.shown(one, claim) for claim in one.sheet.claim]
    assert told == ["-3.0 (n = 1); +3.0 (n = 1)", "+0.0 (n = 1); +3.0 (n = 1)"]


def test_a_headline_says_the_gap_to_a_published_number(tmp_path: Path) -> None:
    """Accuracy in points, traffic in percent of the other row's; without a published number there is no gap."""
    whose = 'paper = "P"\nsize = "small"\n'
    asked = CLAIM.replace('"is it so"', '"by how much"') + 'headline = true\nminus = ["two"]\n'
    sent = asked.replace("by how much", "sent") + 'of = "uplink"\npublished = "-60"\n'
    (mine := tmp_path / "mine").mkdir()
    (mine / tables.RESULTS).write_text(kept("one", 0, 50.0, slot_gib=1.0) + kept("two", 0, 53.0, slot_gib=2.0))
    text = whose + HEAD + ONE + TWO + CLAIM + asked + 'published = "-1.5"\n' + asked.replace("by", "in words") + sent
    told = pages.headlines([table(mine, text)])
    assert "| [P](mine/README.md) | by how much | -1.5 | -3.0 (n = 1) | -1.5 | small | - |" in told
    assert "| in words how much | - | -3.0 (n = 1) | - |" in told
    assert "| sent | -60 | -50.0 (n = 1) | +10.0 |" in told
    assert "is it so" not in told


def test_a_claim_of_rounds_compares_the_seeds_that_reach_the_target(tmp_path: Path) -> None:
    lines = [kept("one", seed, 60.0, reached=[[5, 9]]) for seed in (0, 1)]
    lines += [kept("two", 0, 60.0, reached=[[10, 9]]), kept("two", 1, 40.0, reached=[None])]
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    asked = CLAIM + 'of = "rounds"\n' + CLAIM + 'of = "rounds"\nminus = ["two"]\n'
    one = table(tmp_path, "targets = [0.5]\n" + HEAD + ONE + TWO + asked)
    assert [pages.shown(one, claim) for claim in one.sheet.claim] == ["5.0 ± 0.0 (n = 2)", "-50.0 (n = 1)"]
    with pytest.raises(ConfigError, match="a claim of rounds needs targets"):
        table(tmp_path, HEAD + ONE + TWO + asked)


def test_seeds_that_promise_differently_are_all_told(tmp_path: Path) -> None:
    """The first seed's epsilon is not everybody's."""
    more = {"neighbours": "replace", "delta": 1e-5}
    lines = (kept("one", 0, 1.0, **more | {"epsilon": 2.0}), kept("one", 1, 1.0, **more | {"epsilon": 1.0}))
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    told = pages.block(table(tmp_path, HEAD + ONE))
    assert "| 1.000 to 2.000 | example, server | replace, 1e-05 | none |" in told


@pytest.mark.parametrize(
    ("file", "first", "second", "said"),
    [
        (tables.RESULTS, {"seed": 0}, {"seed": 0, "tuned": 0.1}, "holds 'one', seed 0, twice"),
        (tables.TUNING, {"seed": 100, "tuned": 0.1}, {"seed": 101, "tuned": 0.1}, "holds 'one', tuned 0.1, twice"),
    ],
)
def test_a_run_that_is_kept_twice_is_refused(
    file: str, first: dict[str, float], second: dict[str, float], said: str, tmp_path: Path
) -> None:
    """One run would be counted as two."""
    lines = [kept("one", last=1.0, **first), kept("one", last=2.0, **second)]
    (tmp_path / file).write_text("".join((lines[0], kept("one", 1, 1.0), lines[1])))
    with pytest.raises(ConfigError, match=said):
        table(tmp_path, HEAD + ONE)


def test_the_published_targets_are_looked_up_in_all_kept_runs() -> None:
    folder = ROOT / "cuag"
    found = runpy.run_path(str(folder / "targets.py"))["table"]()
    assert (folder / "targets.md").read_text(encoding="utf-8") == found
    assert len(found.splitlines()[0].split(" | ")) == 2 + sum(run.seed == 0 for run in tables.read(folder).runs)


def test_norms_before_the_noise_are_found_from_uploads_behind_it() -> None:
    """Ten clients with much noise on a large layer. The estimate of each norm is within 5%,
    that of the norm as it is received (the control) is off by half; seeds are fixed."""
    own = runpy.run_path(str(ROOT / "cuag" / "quiet_rates.py"))
    fewer, noise = own["QuietRates"]().uplink.client
    draw = torch.Generator().manual_seed(0)
    updates = [tuple(torch.randn(n, generator=draw) * n**-0.5 * 9 for n in (200, 90_000)) for _ in range(10)]
    mean = tuple(sum(layers) / 10 for layers in zip(*updates, strict=True))
    each = [
        noise.encode(fewer.encode(x, Bound(1, 1), grant), Bound(1, 1), grant)
        for x, grant in ((x, Grant(k, 500, 500, Counter(k))) for k, x in enumerate(updates))
    ]
    received = fewer.decode(tuple(sum(layers) / 10 for layers in zip(*each, strict=True)), mean)
    truth = fewer.decode(fewer.encode(mean, Bound(1, 1), Grant(0, 1, 1, Counter(0))), mean)
    found = [fewer._norm(layer, 0.5, uploads) for layer, uploads in zip(received, zip(*each, strict=True), strict=True)]
    assert found == pytest.approx([float(layer.norm()) for layer in truth], rel=0.05)
    assert float(received[1].norm()) > 1.5 * found[1]


@pytest.mark.parametrize("line", ['{"name": "one"}', '{"name": "o'])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"results.jsonl, line 1: "):
        table(tmp_path, HEAD + ONE)


def test_a_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text(kept("two", 0, 1.0, set=["algorithm.lr=0.5"]))
    assert table(tmp_path, HEAD + ONE + TWO).runs
    with pytest.raises(ConfigError, match="'two', seed 0, was run with other settings"):
        table(tmp_path, HEAD + ONE + TWO.replace("0.5", "0.6"))


def test_how_long_the_rest_takes(tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text(kept("one", 0, 1.0, seconds=90.0))
    assert table(tmp_path, HEAD + ONE).left() == 1.5
    assert table(tmp_path, HEAD + ONE + TWO).left() is None
    one = table(tmp_path, "minutes = 160\n" + HEAD + ONE + TWO)
    assert "runs what is missing: 2 of its runs, about 2.7 hours on one core." in pages.block(one)
