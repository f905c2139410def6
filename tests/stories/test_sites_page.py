"""docs/sites.md, played: a folder for each of its four machines, real processes, gRPC with certificates on loopback.

Its blocks say in their fences what a page cannot: `at=` whose machine it is (`alike`: the other hospitals do the same
with their own names), `stays` where it goes on beside the others, `sends="FILE FILE=NAME"` and `to=` what travels then.
The containers and the services of examples/sites say the same words, so they are played, or read, here, too.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from sordino.receipts.verify import verify
from sordino.report.dashboard.run_state import MEANINGS
from tests.helpers.real_sites import free_port
from tests.laws import warm
from tests.repository.following import DOCS, ROOT, Block, blocks, said_by_the_program, sordino

PAGE = DOCS / "sites.md"
EXAMPLES = ROOT / "examples" / "sites"
UNITS = sorted((EXAMPLES / "systemd").iterdir())
SITES = ["hospital-a", "hospital-b", "hospital-c"]
SERVER = "server"
ADDRESS = "server.example"
COMMANDS = [block for block in blocks(PAGE.read_text(encoding="utf-8")) if block.language == "sh"]


def lines(block: Block) -> list[str]:
    return [line for line in block.body.splitlines() if line.strip()]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = pytest.importorskip("yaml").safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    return found


def composed(name: str = "compose.yaml") -> dict[str, Any]:
    services: dict[str, Any] = read(name)["services"]
    return services


def started(unit: Path) -> str:
    """What a unit starts."""
    found = re.search(r"^ExecStart=\S*/(sordino .*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


# read -----------------------------------------------------------------------------------------------------------------


def test_every_command_and_option_exists() -> None:
    """The program takes them as they stand: no option is unknown or missing, and every value is of its kind."""
    said = [line for block in COMMANDS for line in lines(block) if line.startswith("sordino ")]
    said += [shlex.join(["sordino", *one["command"]]) for one in composed().values() if "command" in one]
    said.append(shlex.join(["sordino", *composed("watch.yaml")["dashboard"]["command"]]))
    said += [started(unit).replace("${MAX_EPSILON}", "4") for unit in UNITS]
    said += re.findall(r"\b(sordino [^\n)]*)", (EXAMPLES / "prepare.sh").read_text(encoding="utf-8"))
    assert len(said) > 25
    for line in said:
        parsed(shlex.split(line))
    for broken in ("sordino serve study.toml", "sordino serves", f"{said[-1]} --kept", "sordino show a --json b"):
        with pytest.raises(typer.BadParameter.__bases__[0]):  # wrong use, in whichever click typer has
            parsed(shlex.split(broken))


def parsed(words: Sequence[str]) -> None:
    """Parse a command line; the verb is not called."""
    command, context, (name, *rest) = said_by_the_program(), None, words
    while hasattr(command, "commands"):
        context = command.make_context(name, list(rest), parent=context)
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, rest, parent=context)


def test_what_an_image_is_built_of_is_there() -> None:
    build, recipe = composed()[SERVER]["build"], (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert (EXAMPLES / build["context"] / build["dockerfile"]).samefile(ROOT / "Dockerfile")
    assert [(ROOT / name).is_file() for name in re.findall(r"/source/(\S+)", recipe)] == [True]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for text in (recipe, *(unit.read_text(encoding="utf-8") for unit in UNITS)):
        (asked,) = re.findall(r"(?:/source|sordino)\[([a-z,]+)\]", text)
        assert set(asked.split(",")) <= extras.keys()
    assert "Neither was run" in PAGE.read_text(encoding="utf-8")


def test_every_block_says_whose_machine_it_is() -> None:
    assert {block.told.get("at") for block in COMMANDS} == {"everyone", SERVER, SITES[0]}
    assert all("test_sites_page" in block.told["skip"] for block in COMMANDS[1:])


def test_what_the_page_prints_is_what_the_programs_print() -> None:
    """Words in its `text` blocks that a reader will look for."""
    package = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "sordino").rglob("*.py"))
    for words in (
        "keep it to yourself",
        "give it to those who should believe you",
        "lets anybody in; keep it where it is",
        "over a channel that nobody else reads",
        "sites are there",
        "sites join with",
        "What leaves this site",
        "The whole run would cost this client",
        "another process of this name has connected",
        "the server does not know this name or its key, or does not allow it any more",
        "clients have answered",
    ):
        assert words in PAGE.read_text(encoding="utf-8")
        assert words in package, words
    for code in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", PAGE.read_text(encoding="utf-8")):
        assert code in SITES or f'"{code}"' in package, code


def test_containers_see_their_own_volume_and_keep_no_secret() -> None:
    services = composed()
    assert set(services) == {"prepare", SERVER, "post", *SITES}
    for name in (SERVER, *SITES):
        assert services[name]["volumes"] == [f"{name}:/work"]
    for one in services.values():
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
        assert "ports" not in one
        assert one["environment"] == {"XDG_STATE_HOME": "/work/.state"}  # no secret
    recipe = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^(COPY|ADD|ENV)\b", recipe, re.MULTILINE)  # so nothing of anybody's gets into the image
    assert re.search(r"^USER (?!root)", recipe, re.MULTILINE)


def test_what_watches_is_reached_by_a_login_alone_and_changes_nothing() -> None:
    services = composed("watch.yaml")
    board, prometheus, login = (services.pop(name) for name in ("dashboard", "prometheus", "login"))
    assert services == {}
    own = board["command"][board["command"].index("--bind") + 1]
    assert own.startswith("127.0.0.1:")  # so that within its network, too, nobody else asks it
    assert "--evaluator" not in board["command"]
    assert board["volumes"] == [f"{SERVER}:/work:ro"]
    assert board["pid"] == f"service:{SERVER}"
    assert board["ports"] == ["127.0.0.1:4180:4180"]
    assert "--http-address=0.0.0.0:4180" in login["command"]
    assert f"--upstream=http://{own}/" in login["command"]
    assert "--pass-host-header=false" in login["command"]  # the dashboard answers to its own name alone
    for one in (prometheus, login):
        assert one["network_mode"] == "service:dashboard"
        assert "ports" not in one
        assert re.search(r":v[0-9]+\.[0-9]+\.[0-9]+$", one["image"])
    assert all(re.fullmatch(r"\$\{[A-Z_]+:\?\}", value) for value in login["environment"].values())  # no secret
    for one in (board, prometheus, login):
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
    for mounted in prometheus["volumes"][:2]:
        assert (EXAMPLES / mounted.split(":")[0]).is_file()
        assert mounted.endswith(":ro")
    asked = read("prometheus.yaml")
    assert asked["scrape_configs"][0]["static_configs"][0]["targets"] == [own]
    assert [(EXAMPLES / name).is_file() for name in asked["rule_files"]] == [True]
    assert "Not run by us yet" in (EXAMPLES / "watch.yaml").read_text(encoding="utf-8")


def test_alerts_ask_for_numbers_that_there_are() -> None:
    rules = read("alerts.yaml")["groups"][0]["rules"]
    asked = {name for rule in rules for name in re.findall(r"\bsordino_\w+", rule["expr"])}
    assert asked <= MEANINGS.keys()
    assert MEANINGS.keys() - asked == {"sordino_epsilon"}  # which is bounded before a run
    assert all(rule["annotations"]["summary"] for rule in rules)
    (low,) = [rule["expr"] for rule in rules if "budget" in rule["expr"]]
    assert "sordino_rounds_counted" in low  # of the same moment as the budget
    assert "and ignoring(status) " in low  # which a publication's own count has, and the rounds have not


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_without_rights_and_has_its_keys_as_credentials(unit: Path, tmp_path: Path) -> None:
    read = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(unit)
    service = read["Service"]
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "StateDirectory": "sordino",
        "Restart": "on-failure",
    }.items():
        assert service[name] == value
    keys = re.findall(r"^LoadCredential=(\S+):/etc/sordino/keys/", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(keys) == 4
    assert "--identity ${CREDENTIALS_DIRECTORY}/identity --" in started(unit)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit was read here, and not by systemd")
    copy = tmp_path / unit.name.replace("@", "@hospital-a")
    copy.write_text(unit.read_text(encoding="utf-8").replace("/opt/sordino/bin/sordino", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    newer = ("RestartSteps", "RestartMaxDelaySec")  # than a systemd that may be here
    assert [line for line in done.stderr.splitlines() if unit.stem in line and not any(n in line for n in newer)] == []


# played ---------------------------------------------------------------------------------------------------------------


@dataclass
class Machines:
    """Four folders that stand for four machines, and what goes on in them."""

    place: Path
    port: int = field(default_factory=free_port)
    going_on: dict[str, Any] = field(default_factory=dict)

    def here(self, words: Sequence[str]) -> list[str]:
        """The words of a command, with an address of this machine."""
        text = shlex.join(words).replace(f"{ADDRESS}:9443", f"localhost:{self.port}").replace(ADDRESS, "localhost")
        text = text.replace("server:9443", f"localhost:{self.port}")
        return shlex.split(text.replace("0.0.0.0:9443", f"127.0.0.1:{self.port}"))

    @contextmanager
    def at(self, machine: str) -> Iterator[None]:
        before = Path.cwd()
        os.chdir(self.place / machine)
        try:
            yield
        finally:
            os.chdir(before)

    def do(self, machine: str, words: Sequence[str]) -> str:
        with self.at(machine):
            code, said = sordino(words)
        assert code == 0, f"{machine}: {shlex.join(words)} ended with {code}:\n{said[-2000:]}"
        return said

    def begin(self, machine: str, words: Sequence[str], consents: bool = False) -> None:
        """What goes on beside the others; it is told yes where somebody must consent."""
        where = {"cwd": self.place / machine, "stdin": subprocess.PIPE}
        with open(self.place / f"{machine}.log", "ab") as log:
            process = warm.Process([sys.executable, "-m", "sordino", *words], stdout=log, stderr=log, **where)  # type: ignore[arg-type]
        assert process.stdin is not None
        if consents:
            process.stdin.write(b"y\n")
        process.stdin.close()
        self.going_on[machine] = process

    def send(self, machine: str, to: str, files: str) -> None:
        for file in files.split():
            source, _, name = file.partition("=")
            for other in SITES if to == "each" else [to]:
                of_other = self.place / machine / source.replace(SITES[0], other if to == "each" else SITES[0])
                until = time.monotonic() + 60
                while not of_other.exists():
                    assert time.monotonic() < until, f"{of_other} did not come: {self.said(machine)}"
                    time.sleep(0.05)
                copy = shutil.copytree if of_other.is_dir() else shutil.copy
                copy(of_other, self.place / other / (name or of_other.name))

    def ended(self, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        for machine, process in reversed(self.going_on.items()):
            code = process.wait(max(0.1, until - time.monotonic()))
            assert code == 0, f"{machine} ended with {code}: {self.said(machine)}"
        self.going_on.clear()

    def said(self, machine: str) -> str:
        return (self.place / f"{machine}.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def kill_all(self) -> None:
        for process in self.going_on.values():
            process.kill()

    def check(self) -> None:
        """All have the same model, and receipts that hold."""
        folders = [self.place / machine / "runs" / "study" for machine in (SERVER, *SITES)]
        assert [verify(folder) for folder in folders] == [[]] * 4
        for name in ("model.safetensors", "model.json"):
            assert len({(folder / name).read_bytes() for folder in folders}) == 1
        columns = json.loads((folders[0] / "model.json").read_text())["inputs"]["columns"]
        assert columns, "everybody can use the model on rows of the agreed table"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    found = Machines(tmp_path)
    yield found
    found.kill_all()


@pytest.mark.slow
def test_the_page_is_played_from_nothing_to_the_receipts(machines: Machines) -> None:
    for machine in (SERVER, *SITES):
        (machines.place / machine).mkdir()
        for name in ("study.toml", "schema.toml", "make_tables.py"):
            shutil.copy(EXAMPLES / name, machines.place / machine)
    for block in COMMANDS:
        if machines.going_on and "stays" not in block.told and "--show-plan" not in block.body:
            machines.ended()
        told = block.told
        whose = [SERVER, *SITES] if told["at"] == "everyone" else SITES if "alike" in told else [told["at"]]
        for machine in whose:
            own = [line.replace(SITES[0], machine) if machine in SITES else line for line in lines(block)]
            for tool, *words in map(shlex.split, own):
                if tool == "python":
                    subprocess.run([sys.executable, *words], cwd=machines.place / machine, check=True)
                elif tool == "sordino" and "stays" in told:
                    machines.begin(machine, machines.here(words), "consents" in told)
                elif tool == "sordino":
                    machines.do(machine, machines.here(words))
            if "sends" in told:
                machines.send(
                    machine, told["to"], told["sends"].replace(SITES[0], machine if machine in SITES else SITES[0])
                )
    machines.check()


@pytest.mark.slow
def test_what_the_containers_do_without_containers(machines: Machines) -> None:
    services = composed()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    prepare = ["sh", str(EXAMPLES / "prepare.sh"), str(machines.place)]
    for _ in range(2):  # a second time it changes nothing
        subprocess.run(prepare, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}, check=True)
    machines.begin(SERVER, machines.here(services[SERVER]["command"]))
    machines.send(SERVER, "each", "runs/study/invitation.toml=invitation.toml")
    for site in SITES:
        machines.begin(site, machines.here(services[site]["command"]))
    machines.ended()
    machines.check()
