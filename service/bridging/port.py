"""What a kind of bridge has to know: when a tool has started a job, and how a job is looked at.

A bridge holds nothing of a job between two calls of it: all that it knows is in the task. What is
told to whom, how often it looks, and what becomes of a job that cannot be seen is `following.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...domain.decisions import Ask
from ...domain.jobs import Sight
from ...domain.task import Task

Job = Mapping[str, Any]


@dataclass(frozen=True)
class Working:
    """The job goes on. `pace` is that of the next look, where this one has told it."""

    sight: Sight
    pace: "Pace | None" = None


@dataclass(frozen=True)
class Asks:
    """The job waits for answers. What it had asked before may be among them."""

    asks: Sequence[Ask]


@dataclass(frozen=True)
class Completed:
    """The job has a result, `isError` or not: it is the task's as it is."""

    result: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """The job ended in a JSON-RPC error; or, with `is_to_stop`, never will end by itself."""

    error: Mapping[str, Any]
    is_to_stop: bool = False


@dataclass(frozen=True)
class Cancelled:
    """The job was cancelled, by whomever."""


@dataclass(frozen=True)
class Away:
    """Nobody could be asked: the upstream is away, or did not answer in time. `why` for the owner.

    However long that lasts, the job may be well: only the tool's time ends it.
    """

    why: str


@dataclass(frozen=True)
class Unknown:
    """The upstream answered, but not with the state of this job. `why` is told to the owner.

    If that lasts, the job is lost.
    """

    why: str


Seen = Working | Asks | Completed | Failed | Cancelled | Away | Unknown


@dataclass(frozen=True)
class Pace:
    """When to look, and when to give up; in milliseconds.

    A job is looked at after a tenth of its age: often while it is young, `shortest_ms` and
    `longest_ms` apart at the least and at the most. Nothing of that has to be kept.
    """

    shortest_ms: int = 1_000
    longest_ms: int = 60_000
    lost_after_ms: int = 120_000  # the upstream has not known the job for so long
    cancel_ms: int = 60_000  # a job that was told to stop has this long to end by itself
    kept_ms: int | None = None  # from its start on; the upstream may forget the job after it


class Bridge(Protocol):
    """One kind of bridge. `kind` is in the job of every task that it follows."""

    kind: str

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        """The job that this first answer speaks of, with its `kind` and `id`; None for none.

        `task` is the call's. Pure: what the answer says is all that is known.
        """
        ...

    def pace(self, task: Task) -> Pace:
        """How often the task's job is looked at."""
        ...

    async def look(self, task: Task) -> Seen:
        """How the task's job is now. Takes bounded time, and raises nothing of the upstream's."""
        ...

    async def answer(self, task: Task, answers: Mapping[str, Mapping[str, Any]]) -> bool:
        """Give the job these answers, by the upstream's own keys. False when it was not reached.

        May be called again with the same ones.
        """
        ...

    async def cancel(self, task: Task) -> bool | None:
        """Tell the job to stop. False when it was not reached, None when jobs cannot be told.

        May be called again.
        """
        ...
