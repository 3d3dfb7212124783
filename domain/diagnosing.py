"""What can be found out about a store from outside: how it is set, how it treats connections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import errors


class StoreNotReached(errors.StoreUnavailable):
    """Nobody answers there, or not us; `reason` is the server's or the network's own sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


@dataclass(frozen=True)
class StoreFacts:
    """How a store is set and how far its schema is.

    `version` is PostgreSQL's number (160004), `room` how many connections we may have, `applied`
    and `wanted` are the numbers of the schema's steps, there and in this code. `ahead_s` is how far
    its clock is ahead of ours, give or take `unsure_s`.
    """

    version: int
    settings: Mapping[str, str]
    is_standby: bool
    room: int
    applied: Sequence[int]
    wanted: Sequence[int]
    ahead_s: float
    unsure_s: float

    @property
    def lacks(self) -> Sequence[int]:
        """The steps of this code that the store does not have."""
        return sorted(set(self.wanted) - set(self.applied))

    @property
    def is_ahead(self) -> bool:
        """True where a newer release has added steps of its own."""
        return bool(set(self.applied) - set(self.wanted))


@dataclass(frozen=True)
class Manners:
    """What becomes of a connection between two statements; a pooler may take all three away."""

    hears: bool  # NOTIFY on one connection arrives on another that listens
    keeps: bool  # the next statement meets the same session
    prepares: bool  # a statement that was prepared is still known
