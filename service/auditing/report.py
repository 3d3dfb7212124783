"""What a verification found: of the log here, of the views elsewhere, all in one report."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

FINDINGS_MAX = 100  # told in full; of the rest, how many there are


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `position` is the first that it concerns, None for none at all."""

    what: str
    text: str
    position: int | None = None
    task_id: str | None = None


@dataclass
class Report:
    """Findings, figures, and what a reader should know besides."""

    findings: list[Finding] = field(default_factory=list[Finding])
    figures: dict[str, int] = field(default_factory=dict[str, int])
    remarks: list[str] = field(default_factory=list[str])
    left_out: int = 0

    def add(self, finding: Finding) -> None:
        """One more thing is wrong."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += 1

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def ordered(self) -> list[Finding]:
        """The findings, those of the first positions first."""
        return sorted(self.findings, key=lambda each: (each.position is None, each.position or 0))

    @property
    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        told = [
            {
                "what": each.what,
                "position": each.position,
                "taskId": each.task_id,
                "text": each.text,
            }
            for each in self.ordered
        ]
        return {
            "good": self.is_good,
            "findings": told,
            "leftOut": self.left_out,
            **self.figures,
            "remarks": self.remarks,
        }

    @property
    def lines(self) -> list[str]:
        """The report for people: the first bad position first, the verdict last."""
        told = [
            f"{'' if each.position is None else f'position {each.position}: '}"
            f"{each.what}: {each.text}"
            for each in self.ordered
        ]
        if self.left_out:
            told.append(f"and {self.left_out} more")
        figures = ", ".join(f"{number} {name}" for name, number in self.figures.items())
        verdict = "nothing is wrong" if self.is_good else "THE LOG IS NOT AS IT WAS RECORDED"
        return [*told, f"checked {figures}", *self.remarks, verdict]


Check = Callable[[Report], Awaitable[None]]
