"""Errors: what is wrong, why, and what to do.

SordinoError                 a ValueError that says what, why and what to do; `code` names the refusal
|- ConfigError      exit 2   unknown key, wrong type, value out of range, module that does not import
|  |- BackendUnavailable     an optional package that is missing or does not work here
|  `- OwnCodeError           a model or an algorithm of the user's own that fails
|- DataError        exit 3   missing, corrupt or unfitting data
|  |- PartitionError         a split that cannot be made; the message names the bound that fails
|  |- DomainError            a value outside the range that a mechanism is defined on
|  `- EmptyClient            a client without examples where each must have some
|- PrivacyError     exit 4   budgets and guarantees
|  |- UnsoundGuarantee       settings whose guarantee would be false: refused, with the fix
|  |- InvalidBudget          an epsilon, delta or cost that is not a budget
|  |- BudgetExhausted        the ledger cannot grant it any more
|  `- UnsupportedEvent       an accountant was asked about a mechanism it does not know
|- LedgerError      exit 5   foreign, damaged or misplaced ledger; an operation replayed with other content
|- RunError         exit 6   run folder, checkpoint, disk, memory
|  |- NonFiniteModel         a model that is no longer finite; the last good one is kept
|  `- EmptyRound             a round in which nobody's contribution counts
|- WireError        exit 7   a message that is not what the receiver expects
`- SecureError      exit 8   encrypted and secure sums: nothing was opened, the model is unchanged
   |- HeadroomExceeded       more contributions than a slot can add without an overflow
   |- NonFiniteUpdate        NaN or infinity cannot be written as an integer
   |- RangeSaturation        too many values beyond the public range
   |- KeyMismatch            a ciphertext of another key
   |- IntegrityError         what was decrypted is not a sum of honest contributions
   |- MalformedCiphertext    bytes that are no ciphertext of this scheme
   |- RoundMismatch          a message of another round
   |- LayoutMismatch         another fixed-point layout or length
   |- NoSecretKey            asked to decrypt without the key
   |- ServerHoldsKey         a secret key where only public ones may be
   |- WeakKey                a key below the security that is promised
   `- SecAggAborted          the protocol was broken off: too few survivors, or a request that would open a single
                             upload
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class SordinoError(ValueError):
    """An error the user can act on: what happened, why it is refused, what to do instead."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "", code: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        self.code = code or type(self).__name__
        super().__init__(what, why, fix, self.code)

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n".join(parts)


class ConfigError(SordinoError):
    """Wrong settings or arguments."""

    exit_code = 2


class BackendUnavailable(ConfigError):
    """A server or program that a setting names does not answer."""


class OwnCodeError(ConfigError):
    """A user's own code failed."""


class DataError(SordinoError):
    """Data that cannot be read, or do not fit the settings."""

    exit_code = 3


class PartitionError(DataError):
    """The data cannot be divided among the clients as asked."""


class DomainError(DataError):
    """A value outside its declared range."""


class EmptyClient(DataError):
    """A client would have no examples."""


class PrivacyError(SordinoError):
    """A guarantee that cannot be given."""

    exit_code = 4


class UnsoundGuarantee(PrivacyError):
    """A setting whose guarantee would be false, refused before anything starts: by the constructor or the `check` of a
    privacy mechanism (a reader or a stage of the uplink), by the plan of a phase (`planning/phase.py`,
    `planning/prices.py`), or by a site."""


class InvalidBudget(PrivacyError):
    """A privacy budget that is no budget."""


class BudgetExhausted(PrivacyError):
    """A release that the rest of the budget does not pay for."""


class UnsupportedEvent(PrivacyError):
    """An event that is malformed, or that no accountant here can bound."""


class LedgerError(SordinoError):
    """A ledger that is missing, damaged, rolled back or in use."""

    exit_code = 5


class RunError(SordinoError):
    """A run folder that is missing, damaged, or cannot do what is asked."""

    exit_code = 6


class NonFiniteModel(RunError):
    """The model is no longer finite."""


class EmptyRound(RunError):
    """A sum of no uploads."""


class WireError(SordinoError):
    """A message that cannot be read, or is not the expected one."""

    exit_code = 7


class SecureError(SordinoError):
    """An encrypted or masked sum that failed."""

    exit_code = 8


class HeadroomExceeded(SecureError):
    """More uploads than a sum has room for."""


class NonFiniteUpdate(SecureError):
    """An upload that is not finite."""


class RangeSaturation(SecureError):
    """Values beyond the range of a layout."""


class KeyMismatch(SecureError):
    """Another key than the expected one, or none."""


class IntegrityError(SecureError):
    """A sum that is not that of its contributions."""


class MalformedCiphertext(SecureError):
    """Bytes that are no ciphertext of this scheme."""


class RoundMismatch(SecureError):
    """A message of another round."""


class LayoutMismatch(SecureError):
    """An upload of another form than that of the sum."""


class NoSecretKey(SecureError):
    """Bytes that hold no secret key."""


class ServerHoldsKey(SecureError):
    """A secret key where a public one is expected."""


class WeakKey(SecureError):
    """A key shorter than the promised security needs."""


class SecAggAborted(SecureError):
    """A masked sum that was broken off."""


@contextmanager
def extra(
    name: str, what: str, code: str, error: type[SordinoError] = BackendUnavailable, otherwise: str = ""
) -> Iterator[None]:
    """Turns a failed import inside the block into an error that names the extra with the missing package."""
    try:
        yield
    except ImportError as missing:
        raise error(
            f"{what}: {missing.name or 'a package'} does not work here",
            why=str(missing),
            fix=f"run: pip install 'sordino[{name}]' (in a clone: pip install -e '.[{name}]'){otherwise}",
            code=code,
        ) from None


# what the system says of the disk and of the process, and not of a file: another try may find it whole
NO_FILE_LEFT = (errno.EMFILE, errno.ENFILE)
DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "disk-full"),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT), "disk-error"),
    **dict.fromkeys(NO_FILE_LEFT, "no-file-left"),
}
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM)
REMEDIES = {
    "disk-full": "free some space, then try again: nothing that was released is lost",
    "disk-error": "try again: nothing that was written before is lost; if it comes back, check the disk and the "
    "system's log",
    "no-file-left": "nothing is wrong with the folder: allow the process more open files (`ulimit -n`, or LimitNOFILE= "
    "in a unit), and end what holds so many; then give the same command again",
    "not-readable": "check who owns the file and its folder, then try again",
    "not-writable": "check that the folder is a folder and may be written",
}


def damaged(path: Path, why: str | Exception, fix: str) -> RunError:
    """Error for a file of a run folder whose content is not what was written; or that the system cannot read now."""
    number = why.errno or 0 if isinstance(why, OSError) else 0
    if code := DISK.get(number, "not-readable" if number in NO_ACCESS else ""):
        return RunError(f"{path} cannot be read", why=str(why), fix=REMEDIES[code], code=code)
    return RunError(f"{path} is damaged", why=str(why)[:300], fix=fix, code="run-file-damaged")


def unwritten(what: str, error: OSError, otherwise: str) -> RunError:
    """The error for something that the system refused to write. `otherwise`: the fix where the system reports no
    failure of the disk.
    """
    code = DISK.get(error.errno or 0, "not-writable")
    return RunError(what, why=str(error), fix=otherwise if code == "not-writable" else REMEDIES[code], code=code)


def is_number(value: object) -> bool:
    """True for a real number that is not a bool (True would pass for 1)."""
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may take. NaN, infinity and bools are in no range."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    whole: bool = False

    def holds(self, value: float) -> bool:
        return (
            is_number(value)
            and (isinstance(value, Integral) or math.isfinite(value))  # an int may be too large for a float
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
            and (not self.whole or isinstance(value, Integral))
        )

    def __str__(self) -> str:
        ends = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        limits = " and ".join(
            f"{words} {f'{end:,}' if isinstance(end, Integral) else f'{end:g}'}"
            for words, end in ends.items()
            if end is not None
        )
        return f"a {'whole' if self.whole else 'finite'} number, {limits}"

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """JSON schema of a settings field that has this range as an annotation."""
        ends = {"exclusiveMinimum": self.above, "minimum": self.least, "maximum": self.most}
        ends["exclusiveMaximum"] = self.below
        return handler(core) | {name: end for name, end in ends.items() if end is not None}


POSITIVE = Range(above=0)
NOT_NEGATIVE = Range(least=0)
COUNT = Range(least=1, whole=True)
SEVERAL = Range(least=2, whole=True)
FRACTION = Range(above=0, most=1)
INSIDE = Range(above=0, below=1)
BELOW_ONE = Range(least=0, below=1)
PROBABILITY = Range(least=0, most=1)


def check_range(
    name: str,
    value: float,
    allowed: Range,
    code: str,
    *,
    error: type[SordinoError] = ConfigError,
    why: str = "",
    fix: str = "",
) -> None:
    """Refuses a number outside its range, with one wording for all settings; `why` says what the number is for."""
    if not allowed.holds(value):
        text = f"it must be {allowed}" + (f": {why}" if why else "")
        raise error(f"{name} is {value!r}", why=text, fix=fix, code=code)


class Rule(NamedTuple, Generic[T]):
    """One entry of a table of refusals: a condition, and the error that is raised where it holds."""

    refuses: Callable[[T], bool]
    error: type[SordinoError]
    what: str | Callable[[T], str]
    why: str
    fix: str
    code: str


def check_rules(it: T, rules: Iterable[Rule[T]]) -> None:
    """Raises the error of the first rule whose condition `it` meets."""
    for rule in rules:
        if rule.refuses(it):
            what = rule.what if isinstance(rule.what, str) else rule.what(it)
            raise rule.error(what, why=rule.why, fix=rule.fix, code=rule.code)
