"""How every benchmark shows its figures, judges them and writes them down."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Floor:
    """What is good enough: at least this where more is better, else less than this, or none."""

    bound: float
    unit: str = ""
    is_least: bool = False

    def is_met_by(self, value: float) -> bool:
        """Whether the figure is good enough."""
        if self.is_least:
            return value >= self.bound
        return value < self.bound or value == self.bound == 0


def show(figures: Mapping[str, Mapping[str, Any]], floors: Mapping[str, Floor]) -> bool:
    """Print the tables; True if every floor is met."""
    all_met = True
    for group, values in figures.items():
        print(f"\n{group}")
        for name, value in values.items():
            told = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            floor, verdict = floors.get(name), ""
            if floor is not None:
                is_met = floor.is_met_by(value)
                all_met &= is_met
                said = "met" if is_met else "NOT MET"
                verdict = f"   {said}: floor {floor.bound:,g} {floor.unit}".rstrip()
            print(f"  {name:<24}{told:>12}{verdict}")
    return all_met


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """The figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nwritten to {path}")
