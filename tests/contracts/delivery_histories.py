"""Generated lives of tasks and generated faults, as data. Pure: nothing here runs anything."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from hypothesis import strategies as st

from outlast.domain import change, decisions, errors
from outlast.domain.decisions import Events
from outlast.domain.task import Task, evolve
from outlast.tests.domain.given import (
    DEPLOY,
    OPENED,
    REGION,
    YES,
    Wish,
    answers,
    asks,
    at,
    cancels,
    completes,
    fails,
    holds,
    loses,
    starts,
    stops,
)

TASKS_MAX = 3
STEPS_MAX = 14
CONNECTION_BYTES = 4_000  # a cut falls anywhere into the first so many bytes of a connection
SERVER_STEPS = 120  # a crash falls between any two of a server's first so many steps
RECEIVER_STEPS = 40  # the same for a process that is posted to
POLL_INTERVAL_MS = 5


@dataclass(frozen=True)
class Step:
    """One append: the task before it, its events, and the task after it."""

    before: Task | None
    events: Events
    after: Task


@dataclass(frozen=True)
class History:
    """Every step, in the order in which they happen; each task ends."""

    steps: tuple[Step, ...]

    @property
    def task_ids(self) -> list[str]:
        return list(dict.fromkeys(step.after.id for step in self.steps))

    def owner(self, task_id: str) -> str:
        return next(step.after.owner for step in self.steps if step.after.id == task_id)

    def told(self, task_id: str) -> dict[int, dict[str, Any]]:
        """What `tasks/get` would have answered at each version: the fold, told as JSON."""
        states: dict[int, dict[str, Any]] = {}
        task: Task | None = None
        for step in self.steps:
            for event in step.events if step.after.id == task_id else ():
                task = evolve(task, event)
                states[task.version] = orjson.loads(orjson.dumps(change.detailed_task(task)))
        return states

    def version_before(self, number: int, task_id: str) -> int:
        """The task's version once `number` steps have happened."""
        versions = [s.after.version for s in self.steps[:number] if s.after.id == task_id]
        return versions[-1] if versions else 0


def unroll(
    ids: Sequence[str], owners: Sequence[str], choices: Sequence[tuple[int, int]]
) -> History:
    """The history that these choices lead to: each picks a task, and one of its valid wishes."""
    openings = [_opening(*pair) for pair in zip(ids, owners, strict=True)]
    steps = [Step(None, events, evolve(None, events[0])) for events in openings]
    tasks = [step.after for step in steps]

    def happen(number: int, events: Events) -> None:
        before = after = tasks[number]
        for event in events:
            after = evolve(after, event)
        tasks[number] = after
        steps.append(Step(before, events, after))

    for tick, (which, choice) in enumerate(choices):
        number = which % len(tasks)
        possible = _possible(tasks[number], tick // 2)  # two steps may bear the same stamp
        if possible:
            happen(number, possible[choice % len(possible)])
    for number in range(len(tasks)):
        while not tasks[number].status.is_terminal:
            happen(number, _onwards(tasks[number], len(choices)))
    return History(tuple(steps))


def _opening(task_id: str, owner: str) -> Events:
    return decisions.open_task(
        replace(
            OPENED,
            task_id=task_id,
            owner=owner,
            rerun_is_safe=True,
            poll_interval_ms=POLL_INTERVAL_MS,
        )
    )


def progresses(message: str, seconds: float) -> Wish:
    """The running call tells how far it is."""
    return lambda task: decisions.report_progress(task, task.attempt, 1, 2, message, at(seconds))


def _possible(task: Task, second: int) -> list[Events]:
    """What may happen to this task now; what goes on stands before what ends."""
    keys = [question.key for question in task.outstanding]
    wishes = [
        starts(seconds=second),
        progresses("half", second),
        progresses("a long message " * 200, second),  # more than one packet holds
        asks(DEPLOY, REGION, seconds=second),
        asks(state="state-2", seconds=second),
        holds(DEPLOY, seconds=second),
        answers(dict.fromkeys(keys[:1], YES), second),
        answers(dict.fromkeys(keys, YES), second),
        loses(second),
        cancels(second),
        completes(seconds=second),
        fails(seconds=second),
        stops(second),
    ]
    found: list[Events] = []
    for wish in wishes:
        try:
            events = wish(task)
        except errors.TaskError:
            continue
        if events:
            found.append(events)
    return found


def _onwards(task: Task, second: int) -> Events:
    """A step towards the end."""
    if task.is_running:
        return completes(seconds=second)(task)
    return cancels(second)(task) if task.is_parked else starts(seconds=second)(task)


@dataclass(frozen=True)
class Fault:
    """What happens to one connection once so many bytes have passed in one direction."""

    after_bytes: int
    upward: bool
    kind: str  # abort (reset), finish (closed in order), stall (nothing passes for a while)


@dataclass(frozen=True)
class Refusal:
    """What an endpoint answers to one post. It may have stored it all the same."""

    status: int
    is_stored: bool


@dataclass(frozen=True)
class Receiving:
    """What goes wrong at the end of a client that is posted to.

    The faults are those of the connections that are made to it; one refusal a post, None for none;
    `crashes` of its process after so many of its own steps.
    """

    faults: tuple[Fault, ...] = ()
    refusals: tuple[Refusal | None, ...] = ()
    crashes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Joining:
    """An observer: when it comes, whom it watches, what it knows, and what its wires suffer."""

    step: int
    task: int
    knows: int
    faults: tuple[Fault, ...]
    receiving: Receiving = Receiving()


@dataclass(frozen=True)
class Example:
    """A history, who watches it, and what goes wrong meanwhile. Indices wrap around."""

    owners: tuple[int, ...]
    choices: tuple[tuple[int, int], ...]
    joinings: tuple[Joining, ...]
    signals: tuple[tuple[str, str], ...]  # for each append, what becomes of each replica's signal
    moments: dict[int, str]  # before a step: switch, cut, crash or leave
    crashes: frozenset[int]  # after so many steps of the servers
    waits: tuple[bool, ...]  # whether the next append waits until the observers have seen the last

    @property
    def loses_signals(self) -> bool:
        return any(fate in ("lost", "late") for fates in self.signals for fate in fates)


SIGNAL_FATES = ("sent", "lost", "twice", "late")
CALM = (("sent", "sent"),)

faults = st.builds(
    Fault,
    after_bytes=st.integers(0, CONNECTION_BYTES),
    upward=st.booleans(),
    kind=st.sampled_from(("abort", "finish", "stall")),
)
refusals = st.builds(Refusal, status=st.sampled_from((500, 503, 429)), is_stored=st.booleans())
receivings = st.builds(
    Receiving,
    faults=st.lists(faults, max_size=4).map(tuple),
    refusals=st.lists(st.none() | refusals, max_size=8).map(tuple),
    crashes=st.frozensets(st.integers(1, RECEIVER_STEPS), max_size=2),
)
_joining = {
    "step": st.integers(0, STEPS_MAX + TASKS_MAX * 3),
    "task": st.integers(0, TASKS_MAX - 1),
    "knows": st.one_of(st.just(0), st.integers(0, STEPS_MAX)),
    "faults": st.lists(faults, min_size=1, max_size=4).map(tuple),
}
joinings = st.builds(Joining, **_joining)
joinings_with_posts = st.builds(Joining, **_joining, receiving=receivings)
signals = st.one_of(
    st.just(CALM),
    st.lists(
        st.tuples(st.sampled_from(SIGNAL_FATES), st.sampled_from(SIGNAL_FATES)),
        min_size=2,
        max_size=6,
    ).map(tuple),
)
choices = st.lists(
    st.tuples(st.integers(0, TASKS_MAX - 1), st.integers(0, 11)), min_size=8, max_size=STEPS_MAX
).map(tuple)


def _examples(joinings: st.SearchStrategy[Joining]) -> st.SearchStrategy[Example]:
    return st.builds(
        Example,
        owners=st.lists(st.integers(0, 1), min_size=1, max_size=TASKS_MAX).map(tuple),
        choices=choices,
        joinings=st.lists(joinings, min_size=1, max_size=3).map(tuple),
        signals=signals,
        moments=st.dictionaries(
            st.integers(1, STEPS_MAX + TASKS_MAX),
            st.sampled_from(("switch", "cut", "crash", "leave")),
            min_size=1,
            max_size=4,
        ),
        crashes=st.frozensets(st.integers(1, SERVER_STEPS), max_size=2),
        waits=st.lists(st.booleans(), min_size=1, max_size=5).map(tuple),
    )


examples = _examples(joinings)
examples_with_posts = _examples(joinings_with_posts)
