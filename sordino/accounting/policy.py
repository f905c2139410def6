"""Policy of a phase: is its noise real, is its cohort hidden, are its uploads read. Made once from the settings, and
handed on; what follows from them for rows, files and draws is answered here.
"""

from __future__ import annotations

from dataclasses import dataclass


def is_real(noise: str) -> bool:
    """Noise of the operating system: the only one that protects anybody. Any other can be drawn again from a seed."""
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
        """Hidden from people, not from seeds: neither coins nor a site's own rounds may be repeated or shown."""
        return self.real and self.hidden
