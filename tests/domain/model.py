"""A breadth-first search over the real decider and the lease protocol, with two workers.

A state is one task, its run-queue row, and what two workers believe; a step is one append, one
claim or one fault. The workers follow the rules that `Dispatcher` and `EventLog` suppose:
- claim a row that is free or whose lease ran out; if an attempt was running at the claim, declare
  that attempt lost, else start the next one and, once the append is acknowledged, send the call;
- whoever claims a task whose job elsewhere has had its time gives that job up;
- whoever is alive renews its lease; a stalled worker does not, and may wake at any later moment and
  report. That it wakes is luck; that a fresh worker takes its place one day is not.
Not here: the version check of an append (load, decide and append are one step, since a conflict
only repeats them), and progress, which changes nothing that a rule reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from outlast.domain import decisions, errors, events, jobs
from outlast.domain.decisions import Events
from outlast.domain.queueing import Queueing, queueing
from outlast.domain.task import Task, evolve
from outlast.tests.domain import invariants, model_jobs
from outlast.tests.domain.given import DEPLOY, ERROR, REGION, RESULT, YES, after, at, opened
from outlast.tests.domain.model_jobs import Decide
from outlast.tests.domain.model_states import (
    By,
    Decided,
    Found,
    Report,
    Row,
    State,
    Step,
    Tool,
    Worker,
    with_worker,
)

TTL_MS = 60_000
EARLY, LATE = at(1), at(61)
QUESTIONS_MAX = 2
LEGS_MAX = 2

QueueingRule = Callable[[Task | None, Task], Queueing]


class Violation(AssertionError):
    """A rule was broken; the message tells the steps that led there."""


class Model:
    """The search. The queueing rule and the functions of `decisions` may be broken on purpose."""

    def __init__(self, tool: Tool, faults: int, queueing_rule: QueueingRule = queueing) -> None:
        self.tool, self.faults, self.queueing_rule = tool, faults, queueing_rule
        self.tasks: list[Task] = []
        self._numbers: dict[str, int] = {}
        self._decided: dict[tuple[int, bool, str], Decided | None] = {}

    def explore(self) -> Report:
        """Visit every state, hold the rules against each, then ask whether all can end."""
        found = Found()
        found.add(self._first(), None)
        for number, state in enumerate(found.states):  # grows while it is walked: breadth first
            try:
                self._check(state)
                steps = [self._canonical(step) for step in self._steps(state)]
            except AssertionError as broken:
                raise Violation(f"{broken}\n  after: {found.path(number)}") from broken
            for step in steps:
                there = found.add(step.state, (number, step.label))
                found.into.setdefault(there, []).append((number, step.by))
        self._check_that_all_can_end(found)
        endings = {task.status.value for task in self.tasks if task.status.is_terminal}
        transitions = sum(len(steps) for steps in found.into.values())
        return Report(len(found.states), transitions, len(self.tasks), endings)

    def _first(self) -> State:
        """A task that waits for a worker, or one that its opener already runs and holds."""
        task = opened(ttl_ms=TTL_MS, rerun_is_safe=self.tool.is_safe)
        if not self.tool.opens_running:
            row = Row() if self.queueing_rule(None, task) is Queueing.PUT else None
            return State(self._number(task), False, row, (Worker(), Worker()), self.faults, 0)
        task = after(task, decisions.start_work(task, "worker", EARLY))
        row = Row(1) if self.queueing_rule(None, task) is Queueing.LEASE else None
        workers = (Worker(), Worker("running", task.attempt))
        sends = 0 if self.tool.is_safe else 1
        return State(self._number(task), False, row, workers, self.faults, sends)

    # The rules.

    def _check(self, state: State) -> None:
        task = self.tasks[state.task]
        wanted = invariants.wants_a_row(task)
        assert (state.row is not None) == wanted, "the run queue does not say who wants a worker"
        waits = state.row is not None and state.row.waits
        assert waits <= task.is_delegated, "a task waits although it wants a worker now"
        idle = task.is_delegated and state.row == Row() and not state.late
        assert not idle, "a worker has nothing to do while a job has time"
        assert state.sends <= 1, "a tool that is not safe to run again was started twice"
        live = [worker for worker in state.workers if worker.attempt == task.attempt]
        runs = [worker for worker in live if worker.phase in {"started", "running", "waiting"}]
        assert len(runs) <= 1, "two workers run the same attempt"

    def _check_append(self, before: Task, new: Events, moved: Task) -> None:
        now = before
        for event in new:
            attempt = getattr(event, "attempt", None)
            assert not now.status.is_terminal, f"{event.TOPIC} came after the end"
            if attempt is not None and not isinstance(event, events.WorkStarted):
                assert attempt == now.attempt, f"a stale attempt brought {event.TOPIC}"
            model_jobs.counts_for_its_attempt(now, event)
            if isinstance(event, events.TaskExpired):
                at_work = now.is_running and not now.outstanding
                assert not at_work, "a running attempt expired under its worker"
            now = evolve(now, event)
        kept = moved.questions[: len(before.questions)]
        for one, two in zip(before.questions, kept, strict=True):
            assert one.answer is None or one.answer == two.answer, "an answer was lost"
        invariants.hold(invariants.OF_A_STATE, (), moved)

    def _check_that_all_can_end(self, found: Found) -> None:
        everything = range(len(found.states))
        tasks = [self.tasks[state.task] for state in found.states]
        ended = {number for number in everything if tasks[number].status.is_terminal}
        asked = {number for number in everything if tasks[number].outstanding}
        for goal, by, sentence in (
            (ended | asked, {By.SYSTEM}, "left alone it comes to no end and to no question"),
            (ended, {By.SYSTEM, By.CLIENT}, "it can never end"),
        ):
            reaching = found.reaching(goal, by)
            for number in everything:
                if number not in reaching:
                    raise Violation(
                        f"{sentence}\n  after: {found.path(number)}\n  in: {found.states[number]}"
                    )

    # The steps.

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self._client(state)
        yield from self._clock(state)
        yield from self._jobs(state)
        for number, worker in enumerate(state.workers):
            if worker.stalled:
                awake = worker._replace(stalled=False)
                yield Step(f"{number} wakes", By.LUCK, with_worker(state, number, awake))
                yield Step(f"{number} is replaced", By.SYSTEM, with_worker(state, number, Worker()))
            elif worker.phase == "idle":
                yield from self._claim(state, number)
            elif worker.phase == "claimed":
                yield from self._begin(state, number, worker)
            elif worker.phase == "started":
                yield from self._send(state, number, worker)
            else:
                yield from self._run(state, number, worker)
            if state.faults and worker.phase != "idle" and not worker.stalled:
                harmed = state._replace(faults=state.faults - 1)
                stalled = worker._replace(stalled=True)
                yield Step(f"{number} crashes", By.FAULT, with_worker(harmed, number, Worker()))
                yield Step(f"{number} stalls", By.FAULT, with_worker(harmed, number, stalled))

    def _client(self, state: State) -> Iterator[Step]:
        """Any key may be answered at any time, again and too late, alone or with all others."""
        keys = [question.key for question in self.tasks[state.task].questions]
        for some in [[key] for key in keys] + ([keys] if len(keys) > 1 else []):
            given = dict.fromkeys(some, YES)
            yield from self._alone(
                state,
                By.CLIENT,
                f"answer {some}",
                lambda task, now, given=given: decisions.receive_input(task, given, now),
            )
        yield from self._alone(state, By.CLIENT, "cancel", decisions.request_cancel)

    def _jobs(self, state: State) -> Iterator[Step]:
        """Whether a job calls back is luck."""
        if self.tool.delegates:
            for label, calls_back in model_jobs.callbacks(self.tasks[state.task]):
                yield from self._alone(state, By.LUCK, label, calls_back)

    def _clock(self, state: State) -> Iterator[Step]:
        if not state.late:
            yield Step("time passes", By.SYSTEM, state._replace(late=True))
        yield from self._alone(state, By.SYSTEM, "sweep", decisions.expire)
        if not self.tool.is_bounded:
            later = model_jobs.expires_much_later
            yield from self._alone(state, By.SYSTEM, "sweep much later", later)
        row = state.row
        if row and row.holder is not None and not row.expired:
            holder = state.workers[row.holder]
            if holder.stalled or holder.phase == "idle":
                yield Step(
                    "lease runs out", By.SYSTEM, state._replace(row=row._replace(expired=True))
                )

    def _claim(self, state: State, number: int) -> Iterator[Step]:
        row, task = state.row, self.tasks[state.task]
        if row and (row.holder is None or row.expired) and (state.late or not row.waits):
            claimed = Worker("claimed", task.attempt if task.is_running else 0)
            taken = state._replace(row=Row(number))
            yield Step(f"{number} claims", By.SYSTEM, with_worker(taken, number, claimed))

    def _begin(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        task, seen = self.tasks[state.task], worker.attempt
        if task.is_running and task.attempt == seen:
            assert state.faults < self.faults, "a worker was declared lost although nothing failed"

            def lose(task: Task, now: datetime) -> Events:
                return decisions.lose_work(task, seen, "gone", now)

            yield from self._report(state, number, f"declare {seen} lost", lose, Worker())
            yield from self._start(state, number, f"take over from {seen}", lose)
        elif decisions.is_overdue(task, LATE):
            give_up = jobs.end_overdue
            yield from self._report(state, number, "give the job up", give_up, Worker())
        elif task.is_runnable:
            yield from self._start(state, number, "start", lambda _task, _now: ())
        else:
            free = state._replace(row=Row()) if state.row and state.row.holder == number else state
            yield Step(f"{number} lets go", By.SYSTEM, with_worker(free, number, Worker()))

    def _start(self, state: State, number: int, label: str, first: Decide) -> Iterator[Step]:
        """Begin the next attempt, in the same append with what must come first."""

        def decide(task: Task, now: datetime) -> Events:
            lost = first(task, now)
            task = after(task, lost)
            return (*lost, *decisions.start_work(task, "worker", now)) if task.is_runnable else lost

        decided = self._decide(state, label, decide)
        began = decided and decided.events and isinstance(decided.events[-1], events.WorkStarted)
        attempt = self.tasks[state.task].attempt + 1
        then = Worker("started", attempt) if began else Worker()
        yield from self._report(state, number, label, decide, then)

    def _send(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        afresh = not (self.tool.is_safe or self.tasks[state.task].has_checkpoint)
        sent = state._replace(sends=state.sends + afresh)
        running = worker._replace(phase="running")
        yield Step(f"{number} sends the call", By.SYSTEM, with_worker(sent, number, running))
        if state.faults:
            n = worker.attempt
            yield from self._report(
                state._replace(faults=state.faults - 1),
                number,
                f"withdraw {n}",
                lambda t, now: decisions.withdraw_work(t, n, "no connection", now),
                Worker(),
                by=By.FAULT,
            )

    def _run(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        n, task = worker.attempt, self.tasks[state.task]
        if worker.phase == "waiting":
            yield from self._hear(state, number, worker)
        else:
            yield from self._end(state, number, n)
            if self.tool.delegates:
                given = model_jobs.gives_on(n, LATE if self.tool.is_bounded else None)
                yield from self._report(state, number, f"delegate {n}", given, Worker())
            if self.tool.holds:
                yield from self._hold(state, number, worker)
            elif task.leg < LEGS_MAX:
                yield from self._legs(state, number, worker)
        if task.cancel_requested:
            yield from self._report(
                state, number, f"stop {n}", lambda t, now: decisions.stop(t, n, now), Worker()
            )
        if state.late and decisions.is_expired(task, LATE):
            yield from self._report(
                state, number, f"extend {n}", lambda t, now: decisions.extend_ttl(t, n, now), worker
            )

    def _end(self, state: State, number: int, n: int) -> Iterator[Step]:
        wishes: dict[str, Decide] = {
            f"complete {n}": lambda t, now: decisions.complete(t, n, RESULT, now),
            f"fail {n}": lambda t, now: decisions.fail(t, n, ERROR, now),
        }
        for label, decide in wishes.items():
            yield from self._report(state, number, label, decide, Worker())

    def _hold(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        """The tool asks the same thing up to twice, in the same order whenever it is run."""
        n, turn, task = worker.attempt, worker.asked, self.tasks[state.task]
        if turn >= QUESTIONS_MAX:
            return
        label = f"ask {n} for the {turn + 1}. time"

        def decide(task: Task, now: datetime) -> Events:
            return decisions.ask(task, n, DEPLOY, turn, now)

        decided = self._decide(state, label, decide)
        if decided and decided.events:
            assert len(task.questions) == turn, "what was asked before the crash is asked again"
        if task.cancel_requested and decided is None and task.attempt == n and task.is_running:
            refused = worker._replace(asked=turn + 1)
            yield Step(f"{number} refuses to ask", By.SYSTEM, with_worker(state, number, refused))
            return
        yield from self._report(state, number, label, decide, worker._replace(phase="waiting"))

    def _hear(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        task = self.tasks[state.task]
        if not task.is_running or task.attempt != worker.attempt:
            yield Step(
                f"{number} learns it is stale", By.SYSTEM, with_worker(state, number, Worker())
            )
            return
        question = decisions.asked(task, DEPLOY, worker.asked)
        assert question is not None, "a worker waits for a question that nobody was asked"
        if not question.is_outstanding:
            heard = worker._replace(phase="running", asked=worker.asked + 1)
            yield Step(f"{number} hears the answer", By.SYSTEM, with_worker(state, number, heard))

    def _legs(self, state: State, number: int, worker: Worker) -> Iterator[Step]:
        n, task = worker.attempt, self.tasks[state.task]
        for wanted in ([], [DEPLOY], [DEPLOY, REGION]):
            if len(task.questions) + len(wanted) > QUESTIONS_MAX:
                continue
            then = Worker() if wanted or task.cancel_requested else worker
            yield from self._report(
                state,
                number,
                f"leg of {n} asks {len(wanted)}",
                lambda t, now, wanted=wanted: decisions.finish_leg(t, n, wanted, "state", now),
                then,
            )

    # How a wish becomes a step.

    def _alone(self, state: State, by: By, label: str, decide: Decide) -> Iterator[Step]:
        decided = self._decide(state, label, decide)
        if decided and decided.events:
            yield Step(label, by, self._append(state, decided))

    def _report(
        self,
        state: State,
        number: int,
        label: str,
        decide: Decide,
        then: Worker,
        by: By = By.SYSTEM,
    ) -> Iterator[Step]:
        """A worker's wish: refused, acknowledged, or recorded and the worker does not know."""
        decided = self._decide(state, label, decide)
        if decided is None:
            yield Step(f"{number}: {label}: refused", by, with_worker(state, number, Worker()))
            return
        told = self._append(state, decided)
        yield Step(f"{number}: {label}", by, with_worker(told, number, then))
        if decided.events and state.faults and by is By.SYSTEM:
            unknown = told._replace(faults=state.faults - 1)
            yield Step(f"{number}: {label}: reply lost", By.FAULT, unknown)

    def _append(self, state: State, decided: Decided) -> State:
        waiting = Row(waits=True)
        rows = {Queueing.PUT: Row(), Queueing.WAIT: waiting, Queueing.KEEP: state.row}
        rows[Queueing.DROP] = None
        return state._replace(task=decided.task, row=rows[decided.queueing])

    def _decide(self, state: State, label: str, decide: Decide) -> Decided | None:
        key = (state.task, state.late, label)
        if key not in self._decided:
            self._decided[key] = self._decide_now(state, decide)
        return self._decided[key]

    def _decide_now(self, state: State, decide: Decide) -> Decided | None:
        before = moved = self.tasks[state.task]
        try:
            new = decide(before, LATE if state.late else EARLY)
        except errors.TaskError:
            return None
        if not new:
            return Decided((), state.task, Queueing.KEEP)
        for event in new:
            moved = evolve(moved, event)
        self._check_append(before, new, moved)
        return Decided(new, self._number(moved), self.queueing_rule(before, moved))

    def _number(self, task: Task) -> int:
        """Tasks that differ only in the length and the instants of their history are one."""
        same = replace(task, version=1, updated_at=task.created_at, status_message=None)
        text = repr(same)
        if text not in self._numbers:
            self._numbers[text] = len(self.tasks)
            self.tasks.append(same)
        return self._numbers[text]

    def _canonical(self, step: Step) -> Step:
        """Which of the two workers is which does not matter."""
        one, two = step.state.workers
        if one <= two:
            return step
        row = step.state.row
        if row and row.holder is not None:
            row = row._replace(holder=1 - row.holder)
        return step._replace(state=step.state._replace(row=row, workers=(two, one)))
