"""The words of the model: what a state is, who takes a step, and what a search has found."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from outlast.domain.decisions import Events
from outlast.domain.queueing import Queueing


class By(StrEnum):
    """Who takes a step. Progress may count on the system, wait for the client, and need no luck."""

    SYSTEM = "system"
    CLIENT = "client"
    FAULT = "fault"
    LUCK = "luck"


class Worker(NamedTuple):
    """What a worker believes. `attempt` is the one it runs, or the one that ran at its claim."""

    phase: str = "idle"  # idle, claimed, started, running, waiting
    attempt: int = 0
    asked: int = 0
    stalled: bool = False


class Row(NamedTuple):
    """The run-queue row; `holder` None for a free one, `waits` while it is due at LATE only."""

    holder: int | None = None
    expired: bool = False
    waits: bool = False


class State(NamedTuple):
    """`task` is a number of the model's; `sends` counts an unsafe tool's calls from its start."""

    task: int
    late: bool
    row: Row | None
    workers: tuple[Worker, Worker]
    faults: int
    sends: int


class Step(NamedTuple):
    """A state that is one step away."""

    label: str
    by: By
    state: State


class Decided(NamedTuple):
    """What a wish led to; kept, since the same wish meets the same task in thousands of states."""

    events: Events
    task: int
    queueing: Queueing


@dataclass(frozen=True)
class Tool:
    """What the tool may do: ask mid-call or end legs, and whether it may be run twice.

    With `opens_running` the call was under way before it became a task. With `delegates` it may
    start a job elsewhere, which has time until LATE if it `is_bounded`.
    """

    holds: bool
    is_safe: bool
    opens_running: bool = False
    delegates: bool = False
    is_bounded: bool = True


class Report(NamedTuple):
    """What there was to find."""

    states: int
    transitions: int
    tasks: int
    endings: set[str]


@dataclass
class Found:
    """The states, numbered as they were discovered; `into` has the steps that lead to each."""

    states: list[State] = field(default_factory=list)
    into: dict[int, list[tuple[int, By]]] = field(default_factory=dict)
    _numbers: dict[State, int] = field(default_factory=dict)
    _came_from: list[tuple[int, str] | None] = field(default_factory=list)

    def add(self, state: State, came_from: tuple[int, str] | None) -> int:
        """The number of this state, a new one if it was not seen before."""
        number = self._numbers.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self._came_from.append(came_from)
        return number

    def path(self, number: int) -> list[str]:
        """A shortest way there."""
        labels: list[str] = []
        while step := self._came_from[number]:
            number, label = step
            labels.append(label)
        return labels[::-1]

    def reaching(self, goal: set[int], by: set[By]) -> set[int]:
        """Every state from which steps by these alone lead to the goal."""
        reached, waiting = set(goal), list(goal)
        while waiting:
            for number, who in self.into.get(waiting.pop(), []):
                if who in by and number not in reached:
                    reached.add(number)
                    waiting.append(number)
        return reached


def with_worker(state: State, number: int, worker: Worker) -> State:
    """The state in which this worker believes something else."""
    one, two = state.workers
    return state._replace(workers=(worker, two) if number == 0 else (one, worker))
