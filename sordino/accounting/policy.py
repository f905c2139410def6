"""Policy of a phase: whether its noise is real, its cohort hidden, its uploads unreadable. It is made once from the
settings; what follows for rows, files and draws is answered here.
"""

from __future__ import annotations

from dataclasses import dataclass


def is_real(noise: str) -> bool:
    """True for noise of the operating system, the only one that protects anybody: any other can be drawn again from a
    seed.
    """
    return noise == "system"


@dataclass(frozen=True)
class Policy:
    noise: str  # as [privacy] names it, and as notes in a ledger do
    hidden: bool  # may nobody know who takes part in a round?
    secure: bool  # are uploads added up where nobody can read a single one?

    @property
    def real(self) -> bool:
        return is_real(self.noise)

    @property
    def secret_cohort(self) -> bool:
        """True where the cohort is hidden and the noise real: neither the cohort's sampling nor a site's own rounds may
        be repeated from a seed, or shown.
        """
        return self.real and self.hidden
