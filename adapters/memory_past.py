"""What is past, and what is an owner's, in memory: see `memory.py`, whose store it reads."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from ..domain.decisions import instant
from ..domain.events import TaskErased
from . import codec
from .memory import MemoryStore


class MemoryPastTasks:
    """`PastTasks` and `OwnedData` in one. There are no webhooks in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def to_erase(self, before: datetime, limit: int) -> Sequence[str]:
        """See `PastTasks.to_erase`."""
        waiting = [
            (past.archived_at, task_id)
            for task_id, past in self._store.past.items()
            if not past.is_erased and past.archived_at <= before
        ]
        return [task_id for _, task_id in sorted(waiting)[:limit]]

    async def erase(self, task_ids: Sequence[str], why: str) -> int:
        """See `PastTasks.erase`."""
        erased = 0
        for task_id in dict.fromkeys(task_ids):
            past = self._store.past.get(task_id)
            if past is None or past.is_erased:
                continue
            version, at = len(past.events) + 1, instant(datetime.now(UTC))
            past.owner, past.is_erased = codec.digest(past.owner), True
            past.events = [TaskErased(task_id, version, at, why)]
            erased += 1
        return erased

    async def owners(self, issuer: str, subject: str, client: str | None) -> Sequence[str]:
        """See `OwnedData.owners`."""
        wanted = [issuer, subject] if client is None else [issuer, subject, client]
        known = set(self._store.owners.values())
        known |= {past.owner for past in self._store.past.values() if not past.is_erased}
        return sorted(name for name in known if json.loads(name)[: len(wanted)] == wanted)

    async def is_known(self, owner: str) -> bool:
        """See `OwnedData.is_known`."""
        known = {*self._store.owners.values(), *(past.owner for past in self._store.past.values())}
        return owner in known or codec.digest(owner) in known

    async def stored(self, owner: str, limit: int) -> Sequence[str]:
        """See `OwnedData.stored`."""
        return [task_id for task_id, whose in self._store.owners.items() if whose == owner][:limit]

    async def past(self, owner: str, limit: int) -> Sequence[str]:
        """See `OwnedData.past`."""
        past = self._store.past.items()
        return [task_id for task_id, one in past if one.owner == owner][:limit]

    async def drop_webhooks(self, owner: str) -> int:
        """See `OwnedData.drop_webhooks`."""
        del owner
        return 0
