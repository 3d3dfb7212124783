"""A person's request: remove all that is stored of an owner, while the service runs.

What runs is ended and told to stop, but for a job that is followed at its upstream; subscriptions
are dropped without a farewell, every task is forgotten and erased at once. What stays is what
happened when, under a hash of the owner.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..domain import decisions, errors
from ..domain.ports import TaskViews
from ..domain.retaining import OwnedData, PastTasks
from .commands import Commands

BATCH_MAX = 50
WHY = "its owner's data were purged"

_log = logging.getLogger("outlast.retention")


@dataclass(frozen=True)
class Purged:
    """What was removed. `came_late` counts tasks that were opened meanwhile."""

    ended: int = 0
    tasks: int = 0
    past: int = 0
    webhooks: int = 0
    came_late: int = 0


@dataclass(frozen=True)
class PurgeStores:
    """What a purge removes from."""

    views: TaskViews
    past: PastTasks
    owned: OwnedData


class Purge:
    """See the module."""

    def __init__(self, commands: Commands, stores: PurgeStores) -> None:
        self._commands, self._stores = commands, stores

    async def owners(self, issuer: str, subject: str, client: str | None) -> list[str]:
        """The owners so named of whom something is stored."""
        return list(await self._stores.owned.owners(issuer, subject, client))

    async def is_known(self, owner: str) -> bool:
        """Whether anything of this owner is, or ever was, stored."""
        return await self._stores.owned.is_known(owner)

    async def remove(self, owner: str, late: Callable[[], None]) -> Purged:
        """Remove all that is this owner's, and go on until nothing is left.

        `late` is called when something was stored anew meanwhile.
        """
        done, round_number = Purged(), 0
        while True:
            before = done
            done = await self._round(owner, done)
            if done == before:
                return done
            if round_number > 0:
                done = replace(done, came_late=done.came_late + done.tasks - before.tasks)
                late()
            round_number += 1

    async def _round(self, owner: str, done: Purged) -> Purged:
        """One time everything. Webhooks come first: nothing of the end is told to them."""
        owned = self._stores.owned
        dropped = await owned.drop_webhooks(owner)
        done = replace(done, webhooks=done.webhooks + dropped)
        while task_ids := await owned.stored(owner, BATCH_MAX):
            ended = sum([await self._end(task_id) for task_id in task_ids])
            await self._stores.views.forget(task_ids)
            await self._stores.past.erase(task_ids, WHY)
            done = replace(done, ended=done.ended + ended, tasks=done.tasks + len(task_ids))
        while task_ids := await owned.past(owner, BATCH_MAX):
            erased = await self._stores.past.erase(task_ids, WHY)
            done = replace(done, past=done.past + erased)
        return done

    async def _end(self, task_id: str) -> bool:
        """End it if it has not ended: so its run hears of it, and whoever watches. True if it did.

        What cannot be ended is removed all the same; its run then finds it gone.
        """
        try:
            before = await self._commands.load(task_id)
            after = await self._commands.change(
                task_id, lambda task: decisions.remove(task, self._commands.now()), before
            )
        except (errors.TaskError, errors.PayloadError, LookupError) as error:
            _log.warning("a task is removed unread: %s", error, extra={"task": task_id})
            return False
        return after.version > before.version
