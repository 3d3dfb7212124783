"""The log as an auditor reads it: every event of every task by its position, and what proves it.

A leaf of the tree is made of what identifies an event and of the digest of its stored state, so
that the state may be erased and every proof still holds.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import NamedTuple, Protocol

from .merkle import Subtree

ERASED = "task.erased"  # the topic of the event that says: from here on, the payloads are gone

KEPT_LEVELS = 8  # every so many levels of the tree are stored, so that a proof reads little

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NUMBER_THEN_TEXT = Struct(">IqI")
_ID_TIME_THEN_DIGEST = Struct(">I16sIqI")


class Recorded(NamedTuple):
    """One row of the log as it is stored, of a task that clients still know or of a past one.

    `state` is empty once it is erased; `is_erased` tells whether the log says so. `wrapped` and
    `wrapped_by` are the task's data key, None without one or after its erasure.
    """

    position: int
    task_id: str
    version: int
    topic: str
    event_id: bytes
    recorded_us: int
    digest: bytes
    state: bytes = b""
    owner: bytes | None = None
    tool: str | None = None
    status: str | None = None
    is_past: bool = False
    is_erased: bool = False
    wrapped: bytes | None = None
    wrapped_by: str | None = None

    @property
    def recorded_at(self) -> datetime:
        """When the store took it."""
        return EPOCH + timedelta(microseconds=self.recorded_us)


def leaf_of(row: Recorded) -> bytes:
    """What the tree's leaf of this row is the hash of: each part after its length."""
    task_id, topic = row.task_id.encode(), row.topic.encode()
    return b"".join(
        (
            _NUMBER_THEN_TEXT.pack(8, row.position, len(task_id)),
            task_id,
            _NUMBER_THEN_TEXT.pack(8, row.version, len(topic)),
            topic,
            _ID_TIME_THEN_DIGEST.pack(16, row.event_id, 8, row.recorded_us, len(row.digest)),
            row.digest,
        )
    )


class AuditLog(Protocol):
    """All events that were ever appended, in the order of their positions."""

    def batches(self, after: int = 0, upto: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """The rows behind position `after`, up to and with `upto`, lowest first, none left out.

        Rows that share a position, which only tampering brings about, come in one batch. Raises
        StoreUnavailable.
        """
        ...

    async def of_task(self, task_id: str) -> Sequence[Recorded]:
        """The rows of one task in the order of their versions; none for one never stored."""
        ...


class Leaf(NamedTuple):
    """One leaf of the tree as it is stored, counted from 0."""

    number: int
    position: int
    hash: bytes


@dataclass(frozen=True)
class Checkpoint:
    """One signed root as it is stored: the tree of the first `size` leaves, up to `position`.

    `cosignatures` are the lines that a witness added to the note.
    """

    size: int
    root: bytes
    position: int
    note: str
    signed_at: datetime
    cosignatures: str = ""


class Signed(NamedTuple):
    """What a note says once a trusted key's signature has been found on it."""

    size: int
    root: bytes


@dataclass(frozen=True)
class Standing:
    """How far the log and the tree go.

    `issued` is the last position that was given out, `head` the highest of an event up to there,
    and `highest` that of any event: beyond `issued` it is a tamperer's. `position` is the tree's.
    `checkpointed` is the size that the newest checkpoint signed, `age_s` its age, None without one.
    """

    head: int
    issued: int
    highest: int
    size: int
    position: int
    checkpointed: int
    age_s: float | None


class AuditTree(Protocol):
    """The stored tree, to be read. Raises StoreUnavailable."""

    def leaves(self, upto: int) -> AsyncIterator[Sequence[Leaf]]:
        """The stored leaves with numbers below `upto`, lowest first."""
        ...

    async def hashes(self, wanted: Collection[Subtree]) -> Mapping[Subtree, bytes]:
        """What is stored of these subtrees, whose levels are multiples of KEPT_LEVELS."""
        ...

    async def leaf_at(self, position: int) -> Leaf | None:
        """The leaf of the event at this position, None if it is not in the tree (yet)."""
        ...

    async def checkpoints(self) -> Sequence[Checkpoint]:
        """All checkpoints, smallest tree first."""
        ...

    async def newest(self) -> Checkpoint | None:
        """The checkpoint of the largest tree."""
        ...

    async def before(self, size: int) -> Checkpoint | None:
        """The checkpoint of the largest tree that is smaller than this."""
        ...


class TreePen(Protocol):
    """The tree, to be written by whom alone holds this. Raises StoreUnavailable."""

    async def standing(self) -> Standing:
        """How far log and tree go now."""
        ...

    async def extend(self, most: int) -> int:
        """Give the next events their leaves, `most` at a time; how many there were.

        None is left out: a lower position never shows after a higher one. Raises TreeContradicts,
        and writes nothing, if what is stored is not what the newest checkpoint signed.
        """
        ...

    async def checkpoint(self, notary: "Notary") -> Checkpoint | None:
        """Sign the tree as it is, and store that. None for one that is signed already."""
        ...


class TreeFollowing(Protocol):
    """Where the tree is followed from. Raises StoreUnavailable."""

    async def standing(self) -> Standing:
        """How far log and tree go now: a look that costs next to nothing."""
        ...

    def alone(self) -> AbstractAsyncContextManager[TreePen | None]:
        """The pen, or None while another process has it. Nothing that appends waits for it."""
        ...


class Notary(Protocol):
    """Signs checkpoints, and reads what was signed."""

    def sign(self, size: int, root: bytes) -> str:
        """The signed note of this tree."""
        ...

    def read(self, note: str) -> Signed:
        """What the note says of the tree. Raises NoteRefused."""
        ...


class WitnessRecord(Protocol):
    """What the witness at one address is known to have signed. Raises StoreUnavailable."""

    async def witnessed(self, url: str) -> int:
        """The size of the largest tree, 0 before the first."""
        ...

    async def remember(self, url: str, size: int) -> None:
        """The witness has signed so much, or says so."""
        ...

    async def keep(self, size: int, cosignatures: str) -> None:
        """Add these lines to the checkpoint of this size."""
        ...


class Witness(Protocol):
    """Somebody else who signs that each checkpoint extends the one before."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    async def cosign(self, old: int, proof: Sequence[bytes], note: str) -> str:
        """Its signature lines for this checkpoint, proven to extend the tree of size `old`.

        Raises WitnessKnows, which tells the size it knows, and WitnessUnavailable.
        """
        ...
