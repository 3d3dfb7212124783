"""The list of tasks in memory: every task is folded and looked at."""

from datetime import datetime

from ..domain.change import detailed_task
from ..domain.searching import ListedTask, TaskFilter, TaskPage, TaskPlace
from ..domain.task import Task, fold
from .memory import MemoryStore


class MemoryTaskSearch:
    """`TaskSearch` over the store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def page(
        self,
        wanted: TaskFilter,
        limit: int,
        *,
        before: TaskPlace | None = None,
        after: TaskPlace | None = None,
    ) -> TaskPage:
        """See `TaskSearch.page`."""
        tasks = [fold(await self._store.read(task_id)) for task_id in list(self._store.owners)]
        found = [_listed(task) for task in tasks if task is not None and _fits(wanted, task)]
        found.sort(key=lambda task: task.place, reverse=True)
        if wanted.id_prefix is not None or wanted.key is not None:
            return TaskPage(found[:limit], is_cut=len(found) > limit)
        if after is not None:
            newer = [task for task in found if task.place > after]
            shown = newer[-limit:]
            further = shown[0].place if len(newer) > limit else None
            return TaskPage(shown, newer=further, older=shown[-1].place if shown else None)
        older = [task for task in found if before is None or task.place < before]
        shown = older[:limit]
        back = shown[0].place if shown and before is not None else None
        return TaskPage(shown, back, shown[-1].place if len(older) > limit else None)


def _fits(wanted: TaskFilter, task: Task) -> bool:
    created_at = _listed(task).created_at
    opened, message = task.opened, (task.status_message or "").casefold()
    is_named = wanted.key is None or (
        wanted.owner is not None and opened.idempotency_key == wanted.key
    )
    return (
        is_named
        and (wanted.owner is None or task.owner == wanted.owner)
        and task.status in wanted.statuses
        and (wanted.tool is None or opened.tool == wanted.tool)
        and (wanted.since is None or created_at >= wanted.since)
        and (wanted.until is None or created_at < wanted.until)
        and (wanted.id_prefix is None or task.id.startswith(wanted.id_prefix))
        and (wanted.message is None or wanted.message.casefold() in message)
    )


def _listed(task: Task) -> ListedTask:
    message = detailed_task(task).get("statusMessage")
    return ListedTask(
        task.id,
        task.version,
        task.owner,
        task.opened.tool,
        task.status,
        datetime.fromisoformat(task.created_at),
        None if message is None else str(message),
    )
