"""The model of the watermark: how far a subscription may count as told. The outbox is held to it.

A position is safe when every event at or before it has been acknowledged or given up. Positions are
those of the log, with gaps where other tasks and other owners stand.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace


def safe(read_to: int, unsettled: AbstractSet[int]) -> int:
    """The watermark of a subscription that was read to `read_to` and still waits for `unsettled`.

    The same from rows of a table: `unsettled` may be its lowest position alone.
    """
    return min(unsettled) - 1 if unsettled else read_to


@dataclass(frozen=True)
class Watermark:
    """One subscription's place: everything up to `read_to` was looked at, `unsettled` is out.

    `queued` and `passed` go forward only; `settled` comes in any order, and twice.
    """

    read_to: int
    unsettled: frozenset[int] = frozenset()

    @property
    def safe(self) -> int:
        """The highest position with nothing unsettled at or before it. Never moves back."""
        return safe(self.read_to, self.unsettled)

    def carried_by(self, position: int) -> int:
        """What the delivery of this event may carry: the watermark once it has arrived.

        Whoever stores it does so together with the event.
        """
        return self.settled(position).safe

    def queued(self, position: int) -> "Watermark":
        """The event there matches, and is to be delivered."""
        self._refuse_backwards(position)
        return Watermark(position, self.unsettled | {position})

    def passed(self, position: int) -> "Watermark":
        """Nothing up to and at this position matches, beside what is queued."""
        self._refuse_backwards(position)
        return replace(self, read_to=position)

    def settled(self, position: int) -> "Watermark":
        """The event there was acknowledged or given up. Anything else there is ignored."""
        return replace(self, unsettled=self.unsettled - {position})

    def _refuse_backwards(self, position: int) -> None:
        if position <= self.read_to:
            raise ValueError(f"position {position} was read before: this place is {self.read_to}")
