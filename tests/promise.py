"""What a promise is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """One sentence that a user may rely on, and where it was given."""

    name: str
    text: str
    source: str
