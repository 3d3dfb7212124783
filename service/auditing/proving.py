"""Proofs to take away: JSON that holds a checkpoint, an event or an older tree, and the path.

Whoever has one and the verifier's key needs neither the database nor this service.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...domain import errors, merkle
from ...domain.audit import (
    EPOCH,
    KEPT_LEVELS,
    AuditLog,
    AuditTree,
    Checkpoint,
    Notary,
    Recorded,
    leaf_of,
)
from ...domain.merkle import Range

YEAR_1_US, YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
PATH_MAX = 63  # of a tree with as many leaves as a number has room for, and more


class Event(BaseModel):
    """What a leaf is made of."""

    model_config = ConfigDict(extra="forbid")

    position: int = Field(ge=0, lt=2**63)
    task: str
    version: int = Field(ge=0, lt=2**63)
    topic: str
    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    recorded_us: int = Field(alias="recordedMicroseconds", ge=YEAR_1_US, lt=YEAR_10000_US)
    digest: str = Field(pattern=r"^([0-9a-f]{2})*$")

    @classmethod
    def of(cls, row: Recorded) -> dict[str, Any]:
        """The event of a row."""
        return {
            "position": row.position,
            "task": row.task_id,
            "version": row.version,
            "topic": row.topic,
            "id": row.event_id.hex(),
            "recordedMicroseconds": row.recorded_us,
            "digest": row.digest.hex(),
        }

    @property
    def leaf(self) -> bytes:
        """The hash of its leaf."""
        row = Recorded(
            position=self.position,
            task_id=self.task,
            version=self.version,
            topic=self.topic,
            event_id=bytes.fromhex(self.id),
            recorded_us=self.recorded_us,
            digest=bytes.fromhex(self.digest),
        )
        return merkle.leaf_hash(leaf_of(row))


class Inclusion(BaseModel):
    """That an event stands in the log at its place."""

    event: Event
    index: int = Field(ge=0)
    path: list[str] = Field(alias="proof", max_length=PATH_MAX)
    checkpoint: str


class Consistency(BaseModel):
    """That the log of a checkpoint extends an older one."""

    size: int = Field(alias="oldSize", ge=0)
    root: str = Field(alias="oldRoot")
    path: list[str] = Field(alias="proof", max_length=2 * PATH_MAX)
    checkpoint: str


class Prover:
    """Proofs against the newest checkpoint. Raises NotProvable, StoreUnavailable."""

    def __init__(self, log: AuditLog, tree: AuditTree) -> None:
        self._log, self._tree = log, tree

    async def newest(self) -> Checkpoint:
        """The newest checkpoint."""
        found = await self._tree.newest()
        if found is None:
            raise errors.NotProvable("There is no checkpoint yet")
        return found

    async def inclusion(self, position: int) -> dict[str, Any]:
        """That the event at this position is in the log."""
        async for rows in self._log.batches(position - 1, position):
            return await self._included(rows[0], await self.newest())
        raise errors.NotProvable(f"There is no event at position {position}")

    async def of_task(self, task_id: str) -> tuple[list[dict[str, Any]], int]:
        """That the events of this task are, each; and how many are too new for any checkpoint."""
        rows = await self._log.of_task(task_id)
        if not rows:
            raise errors.NotProvable("There is no event of such a task")
        newest = await self.newest()
        covered = [row for row in rows if row.position <= newest.position]
        return [await self._included(row, newest) for row in covered], len(rows) - len(covered)

    async def consistency(self, old: int) -> dict[str, Any]:
        """That the newest checkpoint's log extends that of `old` events."""
        newest = await self.newest()
        if not 0 <= old <= newest.size:
            raise errors.NotProvable(f"The newest checkpoint covers {newest.size} events")
        (root,) = await self._roots([Range(0, old)])
        return {
            "oldSize": old,
            "oldRoot": _text(root),
            "proof": [_text(each) for each in await self.path(old, newest.size)],
            "checkpoint": newest.note + newest.cosignatures,
        }

    async def path(self, old: int, new: int) -> list[bytes]:
        """The consistency proof between two sizes."""
        return await self._roots(merkle.consistency_ranges(old, new))

    async def _included(self, row: Recorded, newest: Checkpoint) -> dict[str, Any]:
        leaf = await self._tree.leaf_at(row.position)
        if leaf is None or leaf.number >= newest.size:
            raise errors.NotProvable(
                f"No checkpoint covers the event at position {row.position} yet"
            )
        if merkle.leaf_hash(leaf_of(row)) != leaf.hash:
            raise errors.NotProvable(f"The event at position {row.position} was changed")
        path = await self._roots(merkle.inclusion_ranges(leaf.number, newest.size))
        return {
            "event": Event.of(row),
            "index": leaf.number,
            "proof": [_text(each) for each in path],
            "checkpoint": newest.note + newest.cosignatures,
        }

    async def _roots(self, ranges: Sequence[Range]) -> list[bytes]:
        parts = [part for each in ranges for part in each.subtrees]
        wanted = {below for part in parts for below in merkle.stored_parts(part, KEPT_LEVELS)}
        stored = await self._tree.hashes(wanted)
        try:
            return merkle.proof(ranges, lambda part: merkle.assembled(part, stored, KEPT_LEVELS))
        except KeyError:
            raise errors.TreeContradicts("A part of the stored tree is missing") from None


def checked(given: object, notary: Notary) -> str:
    """One sentence about what this proof proves. Raises NoteRefused and NotProvable."""
    try:
        if isinstance(given, Mapping) and "oldSize" in given:
            return _checked_consistency(Consistency.model_validate(given), notary)
        return _checked_inclusion(Inclusion.model_validate(given), notary)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise errors.NotProvable(f"This is not a proof: {where}: {first['msg']}") from None


def _checked_inclusion(proof: Inclusion, notary: Notary) -> str:
    size, root = notary.read(proof.checkpoint)
    event = proof.event
    if not merkle.includes(proof.index, size, event.leaf, decoded(proof.path), root):
        raise errors.NotProvable("The proof does not lead from the event to the checkpoint")
    at = (EPOCH + timedelta(microseconds=event.recorded_us)).isoformat()
    return (
        f"position {event.position}: event {event.version} of task {event.task} ({event.topic}),"
        f" recorded at {at}, is leaf {proof.index} of {size}"
    )


def _checked_consistency(proof: Consistency, notary: Notary) -> str:
    size, root = notary.read(proof.checkpoint)
    (old_root,) = decoded([proof.root])
    if not merkle.extends((proof.size, size), (old_root, root), decoded(proof.path)):
        raise errors.NotProvable("The proof does not lead from the older tree to the checkpoint")
    return f"the log of {size} events extends that of {proof.size} with the root {proof.root}"


def _text(root: bytes) -> str:
    return base64.b64encode(root).decode()


def decoded(texts: Sequence[str]) -> list[bytes]:
    """The hashes of a path. Raises NotProvable."""
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError):
        raise errors.NotProvable("This is not a proof: a hash is not in base64") from None
