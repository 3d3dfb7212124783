"""What a check says: how bad, what it is, and what to change. No finding ever holds a secret."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it runs, and something will hurt one day
    PROBLEM = "problem"  # something does not work, or what was promised does not hold


@dataclass(frozen=True)
class Finding:
    """One sentence of what is so, and one of what to change, empty where nothing is."""

    check: str
    level: Level
    says: str
    change: str = ""

    @property
    def as_json(self) -> dict[str, Any]:
        """The members of a line of `--json`."""
        return asdict(self)


def ok(check: str, says: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, says)


def warning(check: str, says: str, change: str) -> Finding:
    """It runs, and something will hurt one day."""
    return Finding(check, Level.WARNING, says, change)


def problem(check: str, says: str, change: str) -> Finding:
    """Something does not work, or what was promised does not hold."""
    return Finding(check, Level.PROBLEM, says, change)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the worst of them."""
    levels = {finding.level for finding in findings}
    return next((one for one in (Level.PROBLEM, Level.WARNING) if one in levels), Level.OK)
