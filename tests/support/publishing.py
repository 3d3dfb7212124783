"""Tasks that a test moves on by hand, in the store itself, as a worker elsewhere would."""

import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain import decisions
from outlast.domain.decisions import Ask, Events
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.task import Task
from outlast.tests.domain.given import OPENED

Wish = Callable[[Task], Events]
RESULT: Mapping[str, Any] = {"content": [{"type": "text", "text": "done"}], "isError": False}
QUESTION = Ask("who", {"method": "elicitation/create", "params": {"message": "Who signs?"}})


def now() -> datetime:
    return datetime.now(UTC)


class Publisher:
    """Opens tasks and changes them. Only for a server that runs no tasks itself."""

    def __init__(self, log: PostgresEventLog) -> None:
        self._log = log
        self.tasks: dict[str, Task] = {}

    async def opened(
        self, task_id: str | None = None, owner: str = LOCAL_OWNER.key, **changes: Any
    ) -> str:
        """The id of a task at version 2: opened, and begun."""
        opening = replace(
            OPENED,
            task_id=task_id or secrets.token_urlsafe(32),
            at=decisions.instant(now()),
            owner=owner,
            **changes,
        )
        task = await self._log.append(None, decisions.open_task(opening))
        self.tasks[task.id] = task
        await self.happens(task.id, lambda task: decisions.start_work(task, "tests", now()))
        return task.id

    async def happens(self, task_id: str, wish: Wish) -> int:
        """Append what follows from a wish; the version after it."""
        task = self.tasks[task_id]
        self.tasks[task_id] = await self._log.append(task, wish(task))
        return self.tasks[task_id].version

    async def progresses(self, task_id: str, message: str | None = None, step: float = 1) -> int:
        """The call tells how far it is."""
        return await self.happens(
            task_id,
            lambda task: decisions.report_progress(task, task.attempt, step, None, message, now()),
        )

    async def asks(self, task_id: str) -> int:
        """The call asks, and waits."""
        return await self.happens(
            task_id, lambda task: decisions.ask(task, task.attempt, QUESTION, 0, now())
        )

    async def ends(self, task_id: str, result: Mapping[str, Any] = RESULT) -> int:
        """The call returns."""
        return await self.happens(
            task_id, lambda task: decisions.complete(task, task.attempt, result, now())
        )


@contextmanager
def publishing(database_url: str) -> Generator[Publisher]:
    """A publisher on this store."""
    log = PostgresEventLog(Database(database_url))
    try:
        yield Publisher(log)
    finally:
        log.close()
