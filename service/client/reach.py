"""What a client has of the world, as its wiring gives it, and what it writes down of each task."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from ...domain import errors
from ...domain.clienting import Entry, Journal, StatusSource, ToolServer
from ...domain.ports import Clock

PAUSE_S_FIRST = 0.2
PAUSE_S_MAX = 5.0


@dataclass(frozen=True)
class Reach:
    """One server as one owner: how to ask it, how to hear of a task, where to write things down.

    `owner` is a digest of who the token speaks for: it tells journal entries apart, no more.
    """

    url: str
    owner: str
    server: ToolServer
    source: StatusSource
    journal: Journal
    clock: Clock

    async def entries(self) -> list[Entry]:
        """What the journal has of this server and owner."""
        ours = (self.url, self.owner)
        return [e for e in await self.journal.entries() if (e.server, e.owner) == ours]

    def new_entry(self, **facts: Any) -> Entry:
        """An entry of this server and owner."""
        return Entry(uuid.uuid4().hex, self.url, self.owner, self.clock(), **facts)


class Page:
    """What the journal holds of one task. A task that is not ours is written down when answered."""

    def __init__(self, reach: Reach, task_id: str, entry: Entry | None = None) -> None:
        self._reach, self._task_id = reach, task_id
        self._entry, self._is_read = entry, entry is not None
        self._turn = anyio.Lock()

    async def answers(self) -> Mapping[str, Mapping[str, Any]]:
        """What was answered in this process or an earlier one."""
        entry = await self._found()
        return {} if entry is None else entry.answers

    async def answer(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Durable once this returns."""
        await self._found()
        async with self._turn:
            if self._entry is None:
                entry = self._reach.new_entry(task_id=self._task_id)
                await self._reach.journal.begin(entry)
                self._entry = entry
            await self._reach.journal.answer(self._entry.id, answers)

    async def end(self, how: str) -> None:
        """Nothing is owed any more."""
        entry = await self._found()
        if entry is not None:
            await self._reach.journal.end(entry.id, how)

    async def _found(self) -> Entry | None:
        async with self._turn:
            if not self._is_read:
                entries = await self._reach.entries()
                self._entry = next((e for e in entries if e.task_id == self._task_id), None)
                self._is_read = True
        return self._entry


class Pauses:
    """Growing pauses between tries, for at most so many seconds in all."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else anyio.current_time() + seconds
        self._failures = 0

    async def after(self, error: errors.OutlastError) -> None:
        """Wait for the next try. Raises the error when there is to be none."""
        if self._until is not None and anyio.current_time() >= self._until:
            raise error
        length_s = min(PAUSE_S_MAX, PAUSE_S_FIRST * 2.0**self._failures)
        if isinstance(error, errors.SlowDown):
            length_s += error.after_s
        self._failures = min(self._failures + 1, 16)
        with anyio.move_on_after(length_s):
            await anyio.sleep_forever()


def digest_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """One digest for one call, whatever the order of its arguments."""
    text = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
