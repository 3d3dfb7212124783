"""The receiver when its store is away, its process dies, or its answer is late."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import pytest

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook import signing
from outlast.delivery.webhook.receiver import Receiver
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.delivery.posting import Sender, event, now, served
from outlast.tests.delivery.receiving import (
    PATIENCE_S,
    SECRET,
    Half,
    receiving,
)
from outlast.tests.support.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.promise("receiver-stores-before-it-says-yes")]

PROCESS = Path(__file__).with_name("receiving_process.py")


@pytest.fixture
async def half(tmp_path: Path) -> AsyncGenerator[Half]:
    async with receiving(tmp_path) as served_half:
        yield served_half


@dataclass
class FaultyInbox:
    """An inbox whose store has a plan for each call; afterwards it is as the real one."""

    inbox: SqliteInbox
    plan: list[str]
    gate: anyio.Event = field(default_factory=anyio.Event)
    at_gate: anyio.Event = field(default_factory=anyio.Event)

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        step = self.plan.pop(0) if self.plan else ""
        if step == "away":
            raise errors.StoreUnavailable
        if step == "gate":
            self.at_gate.set()
            await self.gate.wait()
        is_new = await self.inbox.store(subscription_id, webhook_id, cursor, body)
        if step == "crash":
            raise RuntimeError("after the commit, before the answer")
        return is_new

    async def waiting(self, limit: int) -> Sequence[tuple[int, str, str, bytes]]:
        return await self.inbox.waiting(limit)

    async def done(self, number: int) -> None:
        await self.inbox.done(number)

    async def cursor_of(self, subscription_id: str) -> str | None:
        return await self.inbox.cursor_of(subscription_id)


async def test_nothing_is_acknowledged_while_the_store_is_away(half: Half):
    async with served(Receiver(FaultyInbox(half.inbox, ["away"]), half.keyring, now)) as url:
        post = Sender(half.post.client, url, SECRET)
        assert (await post(event(1))).status_code == 503
        assert (await post(event(1))).status_code == 204
    assert await half.waiting() == ["evt_1"]


async def test_a_crash_between_commit_and_answer_repeats_nothing(half: Half):
    async with served(Receiver(FaultyInbox(half.inbox, ["crash"]), half.keyring, now)) as url:
        post = Sender(half.post.client, url, SECRET)
        assert (await post(event(1))).status_code == 500
        assert await half.waiting() == ["evt_1"]
        assert (await post(event(1))).status_code == 204
    assert await half.waiting() == ["evt_1"]


async def test_the_answer_waits_for_the_commit(half: Half):
    faulty = FaultyInbox(half.inbox, ["gate"])
    answers: list[int] = []
    async with served(Receiver(faulty, half.keyring, now)) as url:

        async def post() -> None:
            answers.append((await Sender(half.post.client, url, SECRET)(event(1))).status_code)

        async with anyio.create_task_group() as group:
            group.start_soon(post)
            with anyio.fail_after(PATIENCE_S):
                await faulty.at_gate.wait()
            # Time for an answer that should not be there: another whole exchange.
            assert (await half.post(event(2), "evt_2")).status_code == 204
            assert answers == []
            faulty.gate.set()
    assert answers == [204]
    assert await half.waiting() == ["evt_2", "evt_1"]


@asynccontextmanager
async def running(command: list[str], port: int) -> AsyncGenerator[anyio.abc.Process]:
    """A receiving process that listens; it is gone at the end."""
    process = await anyio.open_process(command, stdin=None, stdout=None, stderr=None)

    async def listens() -> bool:
        assert process.returncode is None
        try:
            await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
        except OSError:
            return False
        return True

    try:
        await until(listens, PATIENCE_S)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.fail_after(PATIENCE_S):
            await process.wait()


@pytest.mark.parametrize("step", ["before-store", "after-store"])
async def test_a_killed_process_hands_on_once_what_is_sent_again(tmp_path: Path, step: str):
    port, handed_on = free_port(), tmp_path / "handed-on"
    known = ("sub_1", signing.spell_secret(SECRET))
    command = [sys.executable, str(PROCESS), str(port), str(tmp_path / "inbox.db"), str(handed_on)]
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        post = Sender(client, f"http://127.0.0.1:{port}/", SECRET)
        async with running([*command, *known, step], port) as process:
            with pytest.raises(httpx2.TransportError):
                await post(event(1))
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == -9
        async with running([*command, *known], port):
            for number in (1, 1, 2):
                assert (await post(event(number), f"evt_{number}")).status_code == 204
            await until_file_says(handed_on, "evt_1\nevt_2\n", PATIENCE_S)
