"""What keeps owners out of each other's way, for the store in memory: quotas, and turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..domain import errors
from ..domain.decisions import Events
from ..domain.quotas import Quotas
from ..domain.task import Task, TaskStatus
from . import codec


@dataclass(frozen=True)
class _Use:
    owner: str
    status: TaskStatus
    size: int


class Usage:
    """What each task takes. It is added up when a task is to be opened: always exact."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._uses: dict[str, _Use] = {}

    def check(self, opened: Task, events: Events) -> None:
        """Raises QuotaExceeded when this opening would go beyond a quota."""
        others = [use for task_id, use in self._uses.items() if task_id != opened.id]
        uses = [*others, _Use(opened.owner, opened.status, _size(events))]
        own = _sums([use for use in uses if use.owner == opened.owner])
        for number, used in enumerate((*own, *_sums(uses)), 1):
            most = self._quotas.most[number - 1]
            if most is not None and used > most:
                raise errors.QuotaExceeded(Quotas.name_of(number), most)

    def appended(self, after: Task, events: Events) -> None:
        """The task is like this now, and has these events more."""
        known = self._uses.get(after.id)
        size = _size(events) + (known.size if known else 0)
        self._uses[after.id] = _Use(after.owner, after.status, size)

    def forgot(self, task_id: str) -> None:
        """The task is no longer stored for anybody."""
        self._uses.pop(task_id, None)


def _sums(uses: Sequence[_Use]) -> tuple[int, int, int, int]:
    """Tasks, working, parked, bytes."""
    return (
        len(uses),
        sum(use.status is TaskStatus.WORKING for use in uses),
        sum(use.status is TaskStatus.INPUT_REQUIRED for use in uses),
        sum(use.size for use in uses),
    )


def _size(events: Events) -> int:
    states = ({**vars(event), "task_id": None, "version": None} for event in events)
    return sum(len(codec.encode(state)) for state in states)


def in_turn(
    waiting: Mapping[str, Sequence[str]], place: str, limit: int, room: Callable[[str], int]
) -> list[tuple[str, str]]:
    """Whose turn it is and with which task, at most `limit`: round the owners from behind `place`.

    `waiting` has the tasks of each owner, the first one first; `room` is how many it may have.
    """
    behind = sorted(owner for owner in waiting if owner > place)
    ring = behind + sorted(owner for owner in waiting if owner <= place)
    queues = {owner: list(waiting[owner][: max(0, room(owner))]) for owner in ring}
    turns: list[tuple[str, str]] = []
    while len(turns) < limit and any(queues.values()):
        turns += [(owner, queues[owner].pop(0)) for owner in ring if queues[owner]]
    return turns[:limit]
