"""A person's answer to one question of a task: the same event as by `tasks/update`, with a name.

The checks are those of `tasks/update` too. One thing differs: where a late answer is ignored there,
a person is told who was first.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..domain import decisions, errors
from ..domain.decisions import Events
from ..domain.events import CancelRequested, InputReceived
from ..domain.owner import Owner
from ..domain.ports import EventLog, TaskViews
from ..domain.task import Question, Task
from . import answers
from .commands import Commands
from .retention import Retention


@dataclass(frozen=True)
class Given:
    """The answer that counts. `by` is None where the owner's own client gave it."""

    action: str
    by: Owner | None
    at: datetime


class NotOpen(errors.TaskError):
    """The question waits for no answer any more."""

    def __init__(self, asked: "Asked") -> None:
        super().__init__()
        self.asked = asked


@dataclass(frozen=True)
class Asked:
    """One question with its task. `given` is its answer, if it has one."""

    task: Task
    question: Question
    given: Given | None = None
    withdrawn_at: datetime | None = None


@dataclass(frozen=True)
class Tasks:
    """Where tasks are read and changed."""

    commands: Commands
    log: EventLog
    views: TaskViews
    retention: Retention


class Answering:
    """The use case. `owner` is whose task it must be; None where any owner's may be answered."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def look(self, owner: str | None, task_id: str, key: str) -> Asked:
        """The question as it stands. Raises TaskNotFound, also where there is no such question."""
        view = await self._tasks.views.get(task_id, owner)
        if view is None or not await self._tasks.retention.keeps(view):
            raise errors.TaskNotFound
        task = await self._tasks.commands.load(task_id)
        question = _question(task, key)
        if question.is_outstanding:
            return Asked(task, question)
        return await self._past(task, question)

    async def answer(
        self, owner: str | None, task_id: str, key: str, answer: Mapping[str, Any], by: Owner
    ) -> None:
        """Record it. Raises TaskNotFound, MalformedAnswer, and NotOpen when somebody was first."""
        await self.look(owner, task_id, key)
        given = {key: answer}
        was_open = False

        def wish(task: Task) -> Events:
            nonlocal was_open
            was_open = _question(task, key).is_outstanding
            if not was_open:
                return ()
            answers.check(task, given)
            return decisions.receive_input(task, given, self._tasks.commands.now(), by.key)

        decide = self._tasks.retention.in_time(wish)
        task = await self._tasks.commands.change(task_id, decide)
        if not was_open or _question(task, key).answer is None:
            raise NotOpen(await self._past(task, _question(task, key)))

    async def _past(self, task: Task, question: Question) -> Asked:
        withdrawn_at: datetime | None = None
        for event in await self._tasks.log.read(task.id):
            if isinstance(event, InputReceived) and question.key in event.answers:
                action = str(event.answers[question.key].get("action") or "answered")
                by, at = _owner(event.by), datetime.fromisoformat(event.at)
                return Asked(task, question, Given(action, by, at))
            if isinstance(event, CancelRequested):
                withdrawn_at = datetime.fromisoformat(event.at)
        at = withdrawn_at or datetime.fromisoformat(task.updated_at)
        return Asked(task, question, withdrawn_at=at)


def _question(task: Task, key: str) -> Question:
    for question in task.questions:
        if question.key == key:
            return question
    raise errors.TaskNotFound


def _owner(key: str | None) -> Owner | None:
    return None if key is None else Owner(*json.loads(key))
