"""A call whose client leaves just when its upstream has made a job of it: the job is stopped."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import anyio
import pytest

from outlast.adapters.memory_past import MemoryPastTasks
from outlast.domain import errors, events
from outlast.domain.extension import REQUIRED_CAPABILITIES
from outlast.domain.owner import LOCAL_CALLER
from outlast.domain.ports import EventLog, Returned, Tool
from outlast.domain.task import Task
from outlast.service.catalogue import Catalogue
from outlast.service.commands import Commands
from outlast.service.exchange import IDEMPOTENCY_META_KEY, Exchange
from outlast.service.methods.tools import Bench, ToolMethods
from outlast.service.policy import Policies, Policy
from outlast.service.retention import Retention
from outlast.service.sealing import StateSeal
from outlast.service.workbench import Workbench
from outlast.service.worker import Stores, Worker
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.played import (
    PATIENCE_S,
    Bridge,
    Eventful,
    Played,
    Stage,
    World,
    now,
)

pytestmark = pytest.mark.anyio

A_JOB = Returned({"resultType": "task", "isJob": True})
TOOLS = [Tool("deploy", "ci", "deploy", {"inputSchema": {"type": "object"}})]
CALL = Exchange(LOCAL_CALLER, 1, "tools/call", {"name": "deploy"}, REQUIRED_CAPABILITIES, None)


class Slow(Bridge):
    """Jobs that stop once they may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_told, self.may_stop = asyncio.Event(), asyncio.Event()

    async def cancel(self, task: Task) -> bool | None:
        self.is_told.set()
        await self.may_stop.wait()
        return await super().cancel(task)


class Server(Stage):
    """With a tool."""

    async def tools(self) -> Sequence[Tool]:
        return TOOLS


def serving(world: World, stage: Stage, log: EventLog, grace: str) -> tuple[ToolMethods, Worker]:
    """What serves calls of this upstream, and the worker that they are handed to."""
    commands = Commands(log, now)
    bench = Workbench(
        commands,
        stage,
        world.bus,
        bridges=(world.bridge,),
        takes_task=lambda _upstream, _tool: True,
    )
    retention = Retention(commands, world.store, MemoryPastTasks(world.store), timedelta(days=30))
    worker = Worker("here", bench, Stores(world.store, retention), slots=4)
    tools = ToolMethods(
        Bench(commands, world.store, retention, stage, worker),
        Catalogue(stage),
        Policies(Policy.model_validate({"grace": grace}), {}),
        StateSeal("a server key"),
    )
    return tools, worker


@asynccontextmanager
async def calling(
    call: Played, world: World, log: EventLog, *, grace: str
) -> AsyncIterator["asyncio.Task[object]"]:
    """A request for this call, which has begun."""
    stage = Server(call)
    tools, worker = serving(world, stage, log, grace)
    with anyio.fail_after(PATIENCE_S):
        request = asyncio.create_task(tools.call(CALL))
        await until(stage.has_given, PATIENCE_S)
        yield request
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await worker.drain(0.0)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_job_that_begins_as_its_client_leaves_is_stopped(world: World):
    call = Played()
    async with calling(call, world, world.store, grace="60s") as request:
        call.ends(A_JOB)
        request.cancel()  # before it is read
        with pytest.raises(asyncio.CancelledError):
            await request
        await until(world.is_stopped, PATIENCE_S)


class Full:
    """A quota that is reached."""

    def __init__(self) -> None:
        self.is_met = asyncio.Event()

    async def __call__(self, _task_id: str) -> None:
        self.is_met.set()
        raise errors.QuotaExceeded("tasks", 1)


async def test_a_job_beyond_a_quota_that_begins_as_its_client_leaves_is_stopped(world: World):
    call, full = Played(), Full()
    log = Eventful(world.store, events.WorkStarted, before=full)
    async with calling(call, world, log, grace="1ms") as request:
        await full.is_met.wait()
        for _ in range(9):  # it waits for the answer instead
            await anyio.lowlevel.checkpoint()
        call.ends(A_JOB)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await until(world.is_stopped, PATIENCE_S)


async def test_a_job_beyond_a_quota_is_stopped_though_its_client_leaves_meanwhile(world: World):
    call, full, world.bridge = Played(), Full(), (slow := Slow())
    log = Eventful(world.store, events.WorkStarted, before=full)
    async with calling(call, world, log, grace="1ms") as request:
        await full.is_met.wait()
        call.ends(A_JOB)
        await slow.is_told.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        slow.may_stop.set()
        await until(world.is_stopped, PATIENCE_S)


async def test_a_call_whose_task_is_removed_meanwhile_is_to_be_made_again(world: World):
    meta = {IDEMPOTENCY_META_KEY: "a key"}
    keyed = replace(CALL, params={**CALL.params, "_meta": meta})
    task_id = await world.opened(owner=keyed.owner.key, idempotency_key="a key")

    class Removing:
        """A log out of which the task is taken just before it is read: its time is over."""

        append, read = world.store.append, world.store.read

        async def tail(self, asked: str, version: int | None = None) -> Any:
            await world.store.forget([task_id])
            return await world.store.tail(asked, version)

    tools, _ = serving(world, Server(), cast(EventLog, Removing()), "60s")
    with pytest.raises(errors.StoreUnavailable):
        await tools.call(keyed)
