"""Everything a user can do wrong, and what to do about it.

SordinoError                 a ValueError that says what, why and what to do; `code` names the refusal
|- ConfigError      exit 2   unknown key, wrong type, value out of range, module that does not import
|- DataError        exit 3   missing, corrupt or unfitting data
|  `- PartitionError         a split that cannot be made; the message names the bound that fails
|- PrivacyError     exit 4   budgets and guarantees
|  |- UnsoundGuarantee       a set-up whose promise would be false: refused, with the fix
|  |- InvalidBudget          an epsilon, delta or cost that is no budget
|  |- BudgetExhausted        the ledger cannot grant it any more
|  `- UnsupportedEvent       an accountant was asked about a mechanism it does not know
|- LedgerError      exit 5   foreign, damaged or misplaced ledger; an operation replayed with other content
|- RunError         exit 6   run folder, checkpoint, a model that is no longer finite
`- WireError        exit 7   a message that is not what the receiver expects
"""

from __future__ import annotations


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
    exit_code = 2


class DataError(SordinoError):
    exit_code = 3


class PartitionError(DataError):
    pass


class PrivacyError(SordinoError):
    exit_code = 4


class UnsoundGuarantee(PrivacyError):
    pass


class InvalidBudget(PrivacyError):
    pass


class BudgetExhausted(PrivacyError):
    pass


class UnsupportedEvent(PrivacyError):
    pass


class LedgerError(SordinoError):
    exit_code = 5


class RunError(SordinoError):
    exit_code = 6


class WireError(SordinoError):
    exit_code = 7
