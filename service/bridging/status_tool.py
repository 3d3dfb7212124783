"""The bridge to servers that were built before tasks: one tool starts a job, others tell of it.

How they are called and what they answer is the policy's `bridge`. It is read anew for each look,
so that a mistake in it can be put right while jobs run.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from ...domain import errors
from ...domain.jobs import Sight
from ...domain.ports import Faulted, Returned, ToolCall, Upstreams
from ...domain.task import Task, amount
from ..legs import merged_result
from ..policy import StatusBridge
from .answering import MESSAGE_CHARS_MAX, answer_of
from .places import Place, text_of
from .port import Away, Cancelled, Completed, Job, Pace, Seen, Unknown, Working

KIND = "status_tool"
STATE_CHARS_MAX = 100
STATES_NOTED_MAX = 1_000

_log = logging.getLogger("outlast.bridging")

# The bridge that the policy has for a tool, by its upstream and its name there.
PolicyOf = Callable[[str, str], StatusBridge | None]


class StatusTools:
    """`Bridge` for all tools whose policy names a status tool."""

    kind = KIND

    def __init__(self, upstreams: Upstreams, policy_of: PolicyOf) -> None:
        self._upstreams, self._policy_of = upstreams, policy_of
        self._noted: set[tuple[str, ...]] = set()
        self._checked: set[tuple[str, str]] = set()

    def job_in(self, task: Task, result: Mapping[str, Any]) -> Job | None:
        """See Bridge."""
        policy = self._policy(task)
        if policy is None or result.get("isError") is True:
            return None
        found = Place(policy.job_id).find(result)
        if isinstance(found, str | int) and not isinstance(found, bool) and found != "":
            return {"kind": KIND, "id": found}
        self._note(task, "no job", f"its answer has no job at {policy.job_id}: it is the result")
        return None

    def pace(self, task: Task) -> Pace:
        """See Bridge."""
        policy = self._policy(task)
        if policy is None:
            return Pace()
        return Pace(policy.poll_min, policy.poll_max, policy.lost_after, policy.cancel_wait)

    async def look(self, task: Task) -> Seen:
        """See Bridge."""
        policy = self._policy(task)
        if policy is None:
            return Away("No policy says any more how this job is looked at")
        await self._check(task, policy)
        answer = await self._asked(task, policy, policy.status_tool)
        if not isinstance(answer, Returned):
            return answer
        state = _word(Place(policy.status).find(answer.result))
        if state is None:
            return self._refused(task, policy.status_tool, answer.result)
        return await self._judged(task, policy, state, answer.result)

    async def _judged(
        self, task: Task, policy: StatusBridge, state: str, answer: Mapping[str, Any]
    ) -> Seen:
        if state in policy.completed:
            return await self._result(task, policy, answer)
        if state in policy.failed:
            # A job that failed is a tool that failed: that is a result, not a protocol error.
            return Completed({**merged_result(answer), "isError": True})
        if state in policy.cancelled:
            return Cancelled()
        if state not in policy.working:
            state = state[:STATE_CHARS_MAX]
            self._note(task, state, f"state {state!r} is in no list: the job is taken to go on")
        return Working(_sight(policy, answer, state))

    async def _result(self, task: Task, policy: StatusBridge, last: Mapping[str, Any]) -> Seen:
        if policy.result_tool is None:
            return Completed(merged_result(last))
        answer = await self._asked(task, policy, policy.result_tool)
        if not isinstance(answer, Returned):
            return answer
        if answer.result.get("isError") is True:
            return self._refused(task, policy.result_tool, answer.result)
        return Completed(merged_result(answer.result))

    async def answer(self, task: Task, answers: Mapping[str, Mapping[str, Any]]) -> bool:
        """See Bridge. Such jobs ask nothing."""
        del task, answers
        return True

    async def cancel(self, task: Task) -> bool | None:
        """See Bridge. An upstream that refuses has been told all the same."""
        policy = self._policy(task)
        if policy is None or policy.cancel_tool is None:
            return None
        return not isinstance(await self._asked(task, policy, policy.cancel_tool), Away)

    async def _asked(
        self, task: Task, policy: StatusBridge, tool: str
    ) -> Returned | Away | Unknown:
        """What this tool answers about the task's job, be it with `isError`."""
        arguments = {k: v for k, v in task.opened.arguments.items() if k in policy.repeat}
        arguments[policy.job_argument] = (task.job or {}).get("id")
        call = ToolCall(task.opened.upstream, tool, arguments, {}, trace=task.opened.trace)
        answer = await answer_of(self._upstreams.call(call), f"{tool} did not answer")
        if isinstance(answer, Returned | Away):
            return answer
        said = answer.message if isinstance(answer, Faulted) else "it wants to ask something"
        self._note(task, tool, f"{tool} cannot be called, or not like this")
        return Unknown(f"{tool} answered: {said}"[:MESSAGE_CHARS_MAX])

    def _refused(self, task: Task, tool: str, result: Mapping[str, Any]) -> Unknown:
        """This tool answered, and said nothing of use."""
        said = text_of(result) if result.get("isError") is True else "nothing that is known here"
        self._note(task, f"{tool} refused", f"{tool} gave no answer that the policy describes")
        return Unknown(f"{tool} answered: {said}"[:MESSAGE_CHARS_MAX])

    async def _check(self, task: Task, policy: StatusBridge) -> None:
        """Say which tools of the policy the upstream does not have, before they are needed."""
        if (task.opened.upstream, task.opened.tool) in self._checked:
            return
        with contextlib.suppress(errors.UpstreamUnavailable):
            tools = await self._upstreams.tools()
            there = {t.upstream_name for t in tools if t.upstream == task.opened.upstream}
            wanted = (policy.status_tool, policy.result_tool, policy.cancel_tool)
            for name in (name for name in wanted if there and name not in {None, *there}):
                self._note(task, f"no {name}", f"its upstream has no tool {name}")
            self._checked.add((task.opened.upstream, task.opened.tool))

    def _policy(self, task: Task) -> StatusBridge | None:
        return self._policy_of(task.opened.upstream, task.opened.tool)

    def _note(self, task: Task, about: str, what: str) -> None:
        """Say it in the log, once for each tool."""
        key = (task.opened.upstream, task.opened.tool, about)
        if key not in self._noted and len(self._noted) < STATES_NOTED_MAX:
            self._noted.add(key)
            facts = {"task": task.id, "upstream": key[0], "tool": key[1]}
            _log.warning("tool %s of %s: %s", key[1], key[0], what, extra=facts)


def _sight(policy: StatusBridge, result: Mapping[str, Any], state: str) -> Sight:
    told = None if policy.message is None else _word(Place(policy.message).find(result))
    progress = None if policy.progress is None else _number(Place(policy.progress).find(result))
    total = policy.total
    if isinstance(total, str):
        total = _number(Place(total).find(result))
    if told is None:
        told = state if progress is None else f"{state}, {amount(progress, total)}"
    return Sight(told[:MESSAGE_CHARS_MAX], progress, total)


def _word(value: Any) -> str | None:
    """A state as the policy writes it: `true` for True, `2` for 2."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or value == "" else str(value)


def _number(value: Any) -> float | None:
    """An amount; also one that is written out, like `42` or `42%`."""
    try:
        number = float(value.strip().removesuffix("%") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None
