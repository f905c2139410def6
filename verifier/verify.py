"""Check a receipt of sordino from its files alone: `python verify.py RUN [--ledger FILE] [--key site.pub]`.

Written from docs/receipt-format.md; needs dp-accounting, and `cryptography` where a signature is to be checked. Exit
status: 0 holds, 1 does not hold, 2 a file cannot be read, 3 nothing disagrees, but not all could be checked.
"""

import argparse
import hashlib
import json
import math
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path

import epsilons

MOST_JSON, MOST_LEDGER = 64 << 20, 2 << 30  # bytes
SEALED = "agreement.json metrics.jsonl preparation.jsonl public.safetensors model.safetensors model.json report.html"
TABLE = "CREATE TABLE record (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL, body BLOB NOT NULL)"
BEFORE = {"drawn": ("reserved",), "stored": ("reserved", "drawn"), "published": ("stored",), "reserved": (None,)}
SUBJECT = ("unit", "neighbours", "adversary")


def sound(path, most):
    """The path, where it is a file that is not too large."""
    if not path.is_file() or path.stat().st_size > most:
        raise ValueError(f"{path} is no file, or larger than {most >> 20} MiB")
    return path


def once(pairs):
    """A dictionary of pairs, in which no name occurs twice."""
    if len(made := dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return made


def parsed(text, where):
    """The object in a JSON text, in which no name occurs twice and every number is finite."""
    try:
        found = json.loads(text, object_pairs_hook=once, parse_constant=epsilons.number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} holds no object")
    return found


def read(path):
    """The object in a JSON file, with nothing in it where there is no file."""
    return parsed(sound(path, MOST_JSON).read_bytes(), path) if path.exists() else {}


def digest(path):
    """SHA-256 of a file as a receipt states it."""
    if path.name == "agreement.json":
        told = {name: value for name, value in sorted(read(path).items()) if name != "dataset"}
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Ledger:
    """The chain, read once from its first record to the last."""

    def __init__(self, path, run):
        # notes: of the run, with phases; spent: by name and part
        self.run, self.places, self.seals, self.states, self.notes, self.spent = run, {}, {}, {}, [], Counter()
        alone = "" if Path(f"{path}-wal").exists() else "&immutable=1"
        base = sqlite3.connect(f"{sound(path, MOST_LEDGER).absolute().as_uri()}?mode=ro{alone}", uri=True)
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_JSON)
        base.execute("PRAGMA trusted_schema=OFF")
        tables = base.execute("SELECT sql FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        versions = [base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if tables != [(TABLE,)] or versions != [0x536F7264, 1]:
            raise ValueError(f"{path} is no ledger")
        head = bytes(32)
        for place, (sequence, told, body) in enumerate(base.execute("SELECT * FROM record ORDER BY sequence")):
            head = hashlib.sha256(head + body).digest()
            if (sequence, told) != (place, head):
                raise epsilons.Wrong(f"record {place} of the ledger does not follow from the one before it")
            self.places[head.hex()] = place
            self.fold(place, parsed(body, f"record {place} of the ledger"))
        for name in {name for name, _ in self.spent} | self.caps.keys() | {"0"}:
            if not self.fits(name):
                raise epsilons.Wrong(f"{name!r:.40} has spent more than its cap")

    def fold(self, place, record):
        kind, op = record["kind"], record.get("op")
        if (kind == "scope") != (place == 0):
            raise epsilons.Wrong(f"record {place} of the ledger: there is one scope, and it comes first")
        if kind == "scope":
            self.scope, self.caps, (self.many, self.each) = record["scope"], record["caps"], record.get("each", (0, []))
        elif kind == "sealed":
            self.seals.setdefault(record["digest"], place)
        elif self.states.get(op) not in BEFORE[kind]:
            raise epsilons.Wrong(f"record {place} of the ledger, {kind!r:.40} of {op!r:.80}, cannot follow here")
        else:
            self.states[op] = kind
        if kind == "reserved":
            run, _, phase = op.rpartition("/")[0].partition(".")
            if run == self.run:
                self.notes.append((phase, parsed(record["note"], op) | {"refused": record["refused"]}))
            charges = once([(name, amount) for amount, names in record["charges"] for name in names])
            if any(self.fits(name, charges[name]) for name in record["refused"]):
                raise epsilons.Wrong(f"record {place} of the ledger refuses somebody who could pay")
            for name in charges.keys() - set(record["refused"]):
                for part, price in zip(range(len(self.scope["currency"]["parts"])), charges[name], strict=True):
                    self.spent[name, part] += epsilons.number(price, whole=True)

    def fits(self, name, more=()):
        """True where a name has spent no more than its cap, with this charge on top."""
        own, rule = ("*",) if name == "*" else (name, "*"), self.scope["currency"]["rule"]
        spent = [sum(self.spent[each, i] for each in own) + sum(more[i : i + 1]) for i, _ in enumerate(self.cap(name))]
        fits = [part <= most for part, most in zip(spent, self.cap(name), strict=True)]
        return not fits or {"all": all, "any": any}[rule](fits)

    def cap(self, name):
        numbered = name.isdecimal() and len(name) < 20 and str(int(name)) == name and int(name) < self.many
        return self.caps.get(name, self.each if numbered else [])


def histories(notes, population, among=None):
    """Releases about each client as pairs of claims and a count; clients with the same releases are one."""
    known, everyone, own = {}, Counter(), defaultdict(Counter)
    for note in notes:
        for group in note["releases"]:
            words = json.dumps(group["claims"], sort_keys=True)
            known[words] = known.get(words) or [epsilons.read_claim(claim) for claim in group["claims"]]
            if known[words] and group["clients"] == "*":
                everyone[words] += 1
            for client in group["clients"] if known[words] and group["clients"] != "*" else ():
                if str(client) not in note.get("refused", ()):  # who could not pay abstained
                    own[epsilons.number(client, whole=True)][words] += 1
    found = [own[k] + (everyone if k < population else Counter()) for k in own if among is None or k in among]
    rest = population - sum(k < population for k in own) if among is None else len(among) - len(found)
    distinct = dict.fromkeys(frozenset(one.items()) for one in [*found, *([everyone] if rest > 0 and everyone else [])])
    return [[(known[words], count) for words, count in sorted(history)] for history in distinct]


def of_subject(clients, subject, delta):
    return epsilons.row([epsilons.cost(history, *subject) for history in clients], subject[1], delta)


def of_person(clients, subject, delta, people):
    found = {}

    def promise(at):
        found[at] = of_subject(clients, subject, at)
        return found[at].epsilon, found[at].delta

    epsilon, at = epsilons.several(promise, delta, people)
    whole, name = people * epsilon, f"{epsilons.taken(found[at].accountants)}, {people} steps of the example row"
    status, name = (found[at].status, name) if whole < math.inf else ("none", "none")
    return found[at]._replace(epsilon=whole, delta=delta, status=status, accountants={name: whole})


def statement(clients, delta, people):
    """Rows by subject, and those of each unit and adversary where none is finite."""
    rows, void = {}, {}
    claims = [claim for history in clients for release, _ in history for claim in release]
    asked = dict.fromkeys((claim.unit, claim.change, claim.adversary) for claim in claims)
    for unit, adversary in dict.fromkeys((unit, adversary) for unit, _, adversary in asked):
        mine = [subject for subject in asked if (subject[0], subject[2]) == (unit, adversary)]
        found = {subject: of_subject(clients, subject, delta) for subject in mine}
        finite = {subject: row for subject, row in found.items() if row.epsilon < math.inf}
        for subject in finite if unit == "example" and people > 1 else ():
            rows["person", *subject[1:]] = of_person(clients, subject, delta, people)
        rows |= finite
        void |= {} if finite else {(unit, adversary): found}
    return rows, void


class Verdict:
    def __init__(self):
        self.lines = {"holds": [], "note": [], "not checked": [], "DOES NOT HOLD": []}
        self.held, self.notes, self.unseen, self.wrong = self.lines.values()

    def same(self, what, found, told, close=1e-6):
        """True where a value of the receipt is the one that was found; it is noted where it is another one."""
        if isinstance(found, dict) and isinstance(told, dict) and found.keys() == told.keys():
            each = [self.same(f"{what}, {name}", value, told[name], close) for name, value in found.items()]
            return all(each)
        real = isinstance(found, float) and (told == "inf" or type(told) in (int, float))
        equal = math.isclose(found, float(told), rel_tol=close) if real else (found, type(found)) == (told, type(told))
        self.wrong += [f"{what}: the files give {found!r:.80}, the receipt says {told!r:.80}"] * (not equal)
        return equal

    def rows(self, where, told, made, whole=True):
        """Compares rows with those that follow from the ledger. `whole`: with accountants and events."""
        (rows, void), given = made, []
        for each in told:
            subject = tuple(each[name] for name in SUBJECT)
            name, about = f"{where}one {subject[0]} ({subject[1]}) against the {subject[2]}", (subject[0], subject[2])
            given += [subject, about]
            row = rows.get(subject) or void.get(about, {}).get(subject)
            if row is None or given.count(subject) > 1:
                self.wrong.append(f"{name}: the ledger gives no such row")
                continue
            said = {"epsilon": row.epsilon, "delta": row.delta, "status": row.status}
            if whole:
                said |= {"accountants": row.accountants, "accountant": epsilons.taken(row.accountants)}
            close = 1e-3 if any(by.startswith("pld, ") for by in row.accountants) else 1e-6
            if self.same(name, said, {part: each[part] for part in said}, close):
                self.held.append(f"{name}: epsilon {row.epsilon:.6g} at delta {row.delta:.3g}, {row.status}")
            if row.epsilon < math.inf and not row.because <= set(each["because"]):
                self.wrong.append(f"{name}: a condition is left out")
            if whole and row.epsilon < math.inf:
                event = epsilons.unfolded(epsilons.draws(each["event"]))
                if (event, each["releases"]) not in [(cost.draws, cost.releases) for cost in row.worst]:
                    self.wrong.append(f"{name}: releases or event are not those of the client with the largest loss")
            self.notes += [f"{name}: nominal_epsilon proves nothing and was not checked"] * ("nominal_epsilon" in each)
        self.wrong += [f"{where}{one}: the receipt leaves it out" for one in [*rows, *void] if one not in given]

    def files(self, folder, names):
        tables = [path.relative_to(folder).as_posix() for path in folder.glob("preparation/*/*.jsonl")]
        strange = [name for name in [*SEALED.split(), *tables] if (folder / name).is_file() and name not in names]
        self.wrong += [f"{name!r:.80}: the receipt does not know it" for name in strange]
        for name, stated in names.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                self.wrong.append(f"{name!r:.80}: it lies outside of the folder")
            elif not (folder / name).is_file():
                self.notes.append(f"{name!r:.80} is not here, and was not looked at")
            elif digest(folder / name) != stated:
                self.wrong.append(f"{name!r:.80}: it is not the file of the receipt")

    def signature(self, place, receipt, key):
        if not place.is_file():
            return (self.wrong if key else self.notes).append("nobody has signed the receipt")
        told = {name: bytes.fromhex(value) for name, value in read(place).items()}
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key

            Ed25519PublicKey.from_public_bytes(told["public_key"]).verify(told["signature"], receipt)
        except ImportError:
            return self.unseen.append("the signature: `cryptography` is not installed")
        except InvalidSignature:
            return self.wrong.append("the signature is not of this receipt")
        if key and load_pem_public_key(sound(key, MOST_JSON).read_bytes()).public_bytes_raw() != told["public_key"]:
            self.wrong.append("the signature is by another key")
        return (self.held if key else self.notes).append(f"it is signed by {told['public_key'].hex()}")

    def recompute(self, receipt, ledger, population, people, shares_scores):
        """Compares every epsilon of the receipt with the one that follows from the ledger."""
        notes, delta = [note for _, note in ledger.notes], epsilons.number(float(ledger.scope["delta"]), 0, 1)
        rows, void = statement(histories(notes, population), delta, people)
        if shares_scores:
            nothing, about = epsilons.Row(math.inf, delta, "none", set(), {"none": math.inf}, []), ("client", "server")
            rows |= {one: nothing for one in rows if one[0] in ("client", "person") and one[2] == "server"}
            void |= {about: dict.fromkeys(void[about], nothing)} if about in void else {}
            void["test example", "server"] = {("test example", "replace", "server"): nothing}
        self.rows("", receipt["guarantees"], (rows, void))
        told, phases = receipt.get("phases", []), {name or "training": name for name, _ in ledger.notes}
        left = phases.keys() - {phase["phase"] for phase in told} if any(phases.values()) else ()
        self.wrong += [f"{name!r:.40}: the receipt leaves this phase out" for name in sorted(left)]
        for phase in told:
            own = [note for name, note in ledger.notes if (name or "training") == phase["phase"]]
            self.same(f"{phase['phase']!r:.40}", len(own), phase["releases"])
            made = statement(histories(own, population), delta, people)
            self.rows(f"{phase['phase']!r:.40}: ", phase["guarantees"], made, whole=False)
        if "groups" in (receipt["budget"] or {}) or ledger.caps.keys() - {"*"}:
            self.budget(receipt["budget"] or {}, ledger, notes, population, shares_scores)

    def budget(self, told, ledger, notes, population, shares_scores):
        """Compares the epsilons of clients that grant the same: those with one cap, or at one sampling rate."""
        named = {int(name): tuple(cap) for name, cap in ledger.caps.items() if name != "*"}
        sets = [{k for k in named if named[k] == cap} for cap in sorted(set(named.values()))]
        sets = sets or [set(group["clients"]) for group in notes[0]["releases"]]
        if len(sets) != len(told.get("groups", ())):
            raise (epsilons.NotChecked if "groups" in told else epsilons.Wrong)("groups of clients and their epsilons")
        about = [told["subject"][name] for name in SUBJECT]
        least = math.inf if shares_scores and about[::2] == ["client", "server"] else 0.0
        made = [(histories(notes, population, among), len(among)) for among in sets]
        found = [(max(least, of_subject(one, about, told["delta"]).epsilon) if one else 0.0, n) for one, n in made]
        for (epsilon, many), group in zip(found if named else sorted(found), told["groups"], strict=True):
            said = {"spent": epsilon, "clients": many}
            self.same(f"clients that grant {group['granted']}", said, {name: group[name] for name in said})


def examine(place, ledger, key):
    """Checks the receipt of a run folder, or a receipt with its files beside it."""
    say, place = Verdict(), place / "privacy.json" if place.is_dir() else place
    folder, text = place.parent, sound(place, MOST_JSON).read_bytes()
    receipt = parsed(text, place)
    ledger = Ledger(ledger or folder / "ledger.sqlite", receipt["run"])
    said = {name: value for name, value in receipt.items() if name != "ledger_head"}
    sealed = ledger.seals.get(hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest())
    if receipt["format"] != 1 or sealed is None or ledger.places.get(receipt["ledger_head"], -1) < sealed:
        say.wrong.append("the ledger has not sealed this receipt, or went back behind it")
    else:
        say.held.append(f"a chain of {len(ledger.places)} records, and the seal of the receipt in it")
    say.files(folder, receipt.get("files", {}))
    say.signature(folder / "privacy.sig", text, key)
    notes = [note for _, note in ledger.notes]
    agreement, mine = read(folder / "agreement.json").get("public", {}), read(folder / "environment.json")
    told = {"run": mine.get("run", receipt["run"]), "rounds": len(notes)}
    told |= {"simulated": any(note["noise"] != "system" for note in notes)} if notes else {}
    say.wrong += ["a release is of another experiment"] * any(note["config"] != receipt["config"] for note in notes)
    population = sum(many for _, many in agreement["sizes"]) if agreement else math.inf
    told |= {"clients": len(mine.get("clients", range(population)))} if agreement else {}
    say.unseen += [] if agreement else ["agreement.json is not here: how many clients there are, and rows of persons"]
    say.notes += ["a simulation: its noise came from a seed, and protects nobody"] * bool(receipt["simulated"])
    say.same("receipt", told, {name: receipt[name] for name in told})
    try:
        say.recompute(receipt, ledger, population, agreement.get("rows_per_key", 1), mine.get("shares_scores"))
    except epsilons.NotChecked as error:
        say.unseen.append(error)
    return say


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or its privacy.json")
    asked.add_argument("--ledger", type=Path, help="the ledger, where it lies elsewhere")
    asked.add_argument("--key", type=Path, help="public key of whoever must have signed the receipt")
    given, say = asked.parse_args(), Verdict()
    try:
        say = examine(given.run, given.ledger, given.key)
    except epsilons.Wrong as error:
        say.wrong.append(error)
    except Exception as error:  # a stranger's file may be anything
        print(f"cannot be read: {type(error).__name__}: {ascii(str(error))[1:-1][:500]}")
        return 2
    for what, line in [(what, line) for what, lines in say.lines.items() for line in lines]:
        print(f"{what}: {ascii(str(line))[1:-1]}")
    return 1 if say.wrong else 3 if say.unseen else 0


if __name__ == "__main__":
    sys.exit(main())
