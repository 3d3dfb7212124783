"""Workers on a real PostgreSQL with real upstream processes, and work that needs no endpoint."""

import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.domain import decisions, events
from outlast.domain.owner import LOCAL_OWNER
from outlast.domain.task import Task, TaskStatus
from outlast.service import settings, wiring
from outlast.service.config import Config, Limits, Upstream
from outlast.service.policy import Policies, Policy
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos import nodes

JOURNALING = [sys.executable, str(nodes.UPSTREAM)]
CAN_ANSWER = {"elicitation": {"form": {}}}
PATIENCE_S = 30.0


@dataclass
class Bench:
    """Workers on one database, and a way to give them work that needs no endpoint."""

    url: str
    journal: Path
    stack: AsyncExitStack

    async def worker(
        self,
        *,
        slots: int = 4,
        claims: bool = True,
        running_per_owner: int | str = "unlimited",
        **upstreams: Upstream,
    ) -> wiring.Built:
        """The objects of one more process, running until the end of the test."""
        given = upstreams or {"new": Upstream(command=JOURNALING)}
        given |= {"old": Upstream(command=JOURNALING, era="legacy")} if not upstreams else {}
        limits = Limits.model_validate({"running_per_owner": running_per_owner})
        config = Config(given, Policies(Policy(), {}), limits=limits)
        chosen = settings.load({"slots": slots}, {})
        built = await wiring.build(chosen, config, self.url, claims=claims)
        await self.stack.enter_async_context(built.running(0.0))
        return built

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def until_noted(self, line: str, seconds: float = PATIENCE_S) -> None:
        async def is_noted() -> bool:
            return line in self.lines()

        await until(is_noted, seconds)

    def arguments(self, key: str, **more: Any) -> dict[str, Any]:
        return {"path": str(self.journal), "key": key, **more}


def opening(tool: str, arguments: dict[str, Any], **facts: Any) -> events.TaskOpened:
    """The first event of a task of `upstream.tool`."""
    upstream, _, name = tool.partition(".")
    whole: dict[str, Any] = {
        "task_id": secrets.token_urlsafe(32),
        "version": 1,
        "at": decisions.instant(wiring.now()),
        "owner": LOCAL_OWNER.key,
        "upstream": upstream,
        "tool": name,
        "arguments": arguments,
        "client_capabilities": CAN_ANSWER,
        "ttl_ms": 600_000,
        "poll_interval_ms": 1_000,
        "timeout_ms": None,
        "rerun_is_safe": False,
    }
    return events.TaskOpened(**whole | facts)


async def opened(built: wiring.Built, tool: str, arguments: dict[str, Any], **facts: Any) -> str:
    """A task of `upstream.tool`, queued."""
    begun = decisions.open_task(opening(tool, arguments, **facts))
    return (await built.commands.open(begun)).id


async def until_is(
    built: wiring.Built, task_id: str, *wanted: TaskStatus, seconds: float = PATIENCE_S
) -> Task:
    """The task, once it has one of these statuses."""

    async def is_so() -> bool:
        return (await built.commands.load(task_id)).status in wanted

    try:
        await until(is_so, seconds)
    except TimeoutError:
        task = await built.commands.load(task_id)
        raise AssertionError(f"not {wanted} within {seconds:g} s: {task}") from None
    return await built.commands.load(task_id)


async def ended(built: wiring.Built, task_id: str, seconds: float = PATIENCE_S) -> Task:
    final = [status for status in TaskStatus if status.is_terminal]
    return await until_is(built, task_id, *final, seconds=seconds)


async def cancel(built: wiring.Built, task_id: str) -> Task:
    def wish(task: Task) -> decisions.Events:
        return decisions.request_cancel(task, wiring.now())

    return await built.commands.change(task_id, wish)


async def answer(built: wiring.Built, task_id: str, word: str) -> None:
    task = await built.commands.load(task_id)
    answers = {q.key: {"action": "accept", "content": {"word": word}} for q in task.outstanding}

    def wish(newest: Task) -> decisions.Events:
        return decisions.receive_input(newest, answers, wiring.now())

    await built.commands.change(task_id, wish)


async def history(built: wiring.Built, task_id: str) -> Sequence[events.TaskEvent]:
    return await built.log.read(task_id)
