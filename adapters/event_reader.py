"""Rows of the log, opened and read as events: for auditors, who meet them in any condition."""

import uuid
from collections.abc import Sequence
from typing import Any

from ..domain import errors
from ..domain.audit import Recorded
from ..domain.events import TaskEvent
from ..domain.history import ERASED_PAYLOAD, Told
from . import codec
from .event_log import StoredTaskEvent, TaskEventMapper
from .sealing import Sealer

_NO_ID = uuid.UUID(int=0)  # an event does not know its own


class EventReader:
    """Opens what is sealed, with the keys of this process, and never fails over one row."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer, self._mapper = sealer, TaskEventMapper()

    async def read(self, rows: Sequence[Recorded]) -> list[Told]:
        """What each row says, in the same order."""
        keys: dict[str, bytes | Told | None] = {}
        told: list[Told] = []
        for row in rows:
            if row.task_id not in keys:
                keys[row.task_id] = await self._key_of(row)
            key = keys[row.task_id]
            told.append(key if isinstance(key, Told) and row.state else self._told(row, key))
        return told

    async def _key_of(self, row: Recorded) -> bytes | Told | None:
        """The key of the row's task, or why it cannot be had."""
        if row.wrapped is None or row.wrapped_by is None:
            return None
        try:
            return await self._sealer.unwrap(row.task_id, row.wrapped, row.wrapped_by)
        except errors.KeyMissing as error:
            name = error.key_name
            return _unreadable(f"it is sealed under {name!r}, which is not among the data_keys")
        except errors.PayloadError:
            return _unreadable("its data key was changed")

    def _told(self, row: Recorded, key: bytes | Told | None) -> Told:
        if not row.state:
            return ERASED_PAYLOAD if row.is_erased else _unreadable("nothing is stored of it")
        given = key if isinstance(key, bytes) else None
        place = (row.task_id, row.version, row.topic)
        try:
            plain = self._sealer.open(given, *place, row.state)
        except errors.PayloadErased:
            return _unreadable("its data key is gone")
        except errors.PayloadError:
            return _unreadable("it was changed, or belongs elsewhere")
        try:
            payload: Any = codec.decode(plain)
        except ValueError:
            return _unreadable("it is no JSON")
        if not isinstance(payload, dict):
            return _unreadable("it is no JSON object")
        return Told(payload, self.event_of(*place, plain))  # pyright: ignore[reportUnknownArgumentType]  # keys of JSON are texts

    def event_of(self, task_id: str, version: int, topic: str, plain: bytes) -> TaskEvent | None:
        """The event of an opened state; None for one that this release does not know."""
        try:
            return self._mapper.to_domain_event(
                StoredTaskEvent(task_id, version, topic, plain, _NO_ID)
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            return None


def _unreadable(reason: str) -> Told:
    return Told(None, None, f"unreadable: {reason}")
