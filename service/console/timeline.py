"""What happened to one task, one line for each event: when, who, how long after, in a sentence.

From the events of a task that clients still know, or from the history that is kept for the audit
of one that they do not, or that cannot be opened; both make the same lines.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...domain import events
from ...domain.audit import ERASED
from ...domain.events import TaskEvent
from ...domain.history import History, Step
from ...domain.task import Task
from ..auditing.words import length, sentence_of
from .redaction import Redactor, printable

WINDOW = 100  # events on one page

OWNER, SERVICE, JOB, WORKER = "owner", "Outlast", "the job, calling back", "worker"

_BY: Mapping[str, str] = {
    events.TaskOpened.TOPIC: OWNER,
    events.InputReceived.TOPIC: OWNER,
    events.CancelRequested.TOPIC: OWNER,
    events.WorkLost.TOPIC: SERVICE,
    events.TtlChanged.TOPIC: SERVICE,
    events.TaskExpired.TOPIC: SERVICE,
    events.TaskCancelled.TOPIC: SERVICE,  # the wish was the owner's, and is a line of its own
    ERASED: SERVICE,
}

Moments = Mapping[int, tuple[TaskEvent, Task]]


@dataclass(frozen=True)
class Entry:
    """One event of a timeline. `status` is the task's after it, None where nobody knows."""

    version: int
    topic: str
    at: datetime
    since: timedelta | None
    attempt: int | None
    worker: str | None
    who: str
    text: str
    status: str | None

    @property
    def after(self) -> str | None:
        """How long after the event before."""
        return None if self.since is None else length(self.since)


@dataclass(frozen=True)
class Window:
    """The versions from `first` to `last` of `newest`, and where the pages beside begin."""

    first: int
    last: int
    newest: int

    @property
    def older(self) -> int | None:
        """The last version of the page before; None for none."""
        return self.first - 1 if self.first > 1 else None

    @property
    def newer(self) -> int | None:
        """The last version of the page after; None for none."""
        return min(self.last + WINDOW, self.newest) if self.last < self.newest else None

    @property
    def versions(self) -> range:
        """All that it shows."""
        return range(self.first, self.last + 1)


def window(newest: int, upto: int | None = None) -> Window:
    """The newest events, or those up to one."""
    last = newest if upto is None else max(1, min(upto, newest))
    return Window(max(1, last - WINDOW + 1), last, newest)


class Teller:
    """Makes the lines. Who may not know the workers is not told their names."""

    def __init__(self, redactor: Redactor, *, names_workers: bool) -> None:
        self._redactor, self._names_workers = redactor, names_workers

    def live(self, moments: Moments, shown: Window) -> list[Entry]:
        """From the events themselves; `moments` has the one before the first, too."""
        return [
            self._moment(moments[version], moments.get(version - 1))
            for version in shown.versions
            if version in moments
        ]

    def past(self, history: History, shown: Window) -> list[Entry]:
        """From what the log keeps."""
        steps = (step for step in history.steps if step.row.version in shown.versions)
        return [self._step(step) for step in steps]

    def _moment(
        self, moment: tuple[TaskEvent, Task], before: tuple[TaskEvent, Task] | None
    ) -> Entry:
        event, task = moment
        at = datetime.fromisoformat(event.at)
        since = None if before is None else at - datetime.fromisoformat(before[0].at)
        known = None if before is None else before[1]
        attempt = getattr(event, "attempt", None) or (known.attempt if known else 0) or None
        worker = getattr(event, "worker", None) or (known.worker if known else None)
        made = Entry(
            event.version, event.TOPIC, at, since, attempt, worker, "", "", task.status.value
        )
        return self._finished(made, vars(event), None)

    def _step(self, step: Step) -> Entry:
        row = step.row
        made = Entry(
            row.version,
            row.topic,
            row.recorded_at,
            step.since,
            step.attempt,
            step.worker,
            "",
            "",
            row.status,
        )
        return self._finished(made, step.told.payload, step.told.absent)

    def _finished(
        self, entry: Entry, payload: Mapping[str, Any] | None, absent: str | None
    ) -> Entry:
        by = _BY.get(entry.topic)
        if by == OWNER or entry.topic == ERASED:
            entry = replace(entry, attempt=None, worker=None)
        if not self._names_workers:
            entry = replace(entry, worker=None)
        text = self._redactor.text(_sentence(entry.topic, payload, absent))
        return replace(entry, who=self._who(entry, by, payload or {}), text=text)

    def _who(self, entry: Entry, by: str | None, payload: Mapping[str, Any]) -> str:
        named = payload.get("by")  # an answer says who gave it
        if isinstance(named, str) and named:
            return self._redactor.text(person(named))
        if payload.get("callback_id") is not None:
            return JOB
        return by or entry.worker or WORKER


def person(owner: str) -> str:
    """Whom an owner's key names, for a page; the client too, where it has a name of its own."""
    try:
        _, subject, client = json.loads(owner)
    except (ValueError, TypeError):
        return printable(owner)
    told = str(subject) if client in ("default", subject) else f"{subject} ({client})"
    return printable(told)


def _sentence(topic: str, payload: Mapping[str, Any] | None, absent: str | None) -> str:
    text = sentence_of(topic, payload, absent)
    if topic == events.TaskOpened.TOPIC and payload is not None and "tool" in payload:
        text = f"called {payload['tool']} on {payload.get('upstream')}"  # whose it is stands above
    return text[:1].upper() + text[1:]
