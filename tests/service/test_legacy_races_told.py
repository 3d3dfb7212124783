"""What an older client is told, when one thing comes while another is on its way."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import contextmanager
from typing import Any, cast

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ClientCapabilities

from outlast.delivery.port import VERSION_META_KEY, ListenRequest, Receipt
from outlast.domain import errors
from outlast.domain.owner import LOCAL_CALLER
from outlast.service.exchange import Exchange
from outlast.service.legacy.asking import NotAnswered
from outlast.service.legacy.listening import SessionEars
from outlast.service.legacy.tasks import Journal, OlderTasks
from outlast.service.legacy.visit import HERE, Session, Visit
from outlast.service.legacy.waiting import Waiting
from outlast.tests.domain.given import DEPLOY, RESULT
from outlast.tests.service.legacy_played import (
    PATIENCE_S,
    Frames,
    Refusing,
    Watched,
    agreed,
    asked,
    exchange,
    framed,
    no_moments,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("older-clients-are-served")]

AT = "2026-07-28T12:00:00Z"
VERSIONED: Mapping[str, Any] = {"_meta": {VERSION_META_KEY: 3}}
WORKING = {"status": "working", "createdAt": AT, "lastUpdatedAt": AT}
ASKING = {"status": "input_required", "inputRequests": {"in-1": DEPLOY.request}}
COMPLETED = {"status": "completed", "result": RESULT}


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(PATIENCE_S):
        yield


def telling(*states: Mapping[str, Any]) -> Frames:
    """Watches that tell this, and end."""

    async def frames(_request: ListenRequest) -> AsyncGenerator[bytes]:
        for state in states:
            yield framed(state)

    return frames


@contextmanager
def visiting(session: Session) -> Any:
    """Requests of this session."""
    before = HERE.set(Visit(LOCAL_CALLER, session))
    try:
        yield
    finally:
        HERE.reset(before)


def failing(error: Exception) -> Callable[[Exchange], Awaitable[dict[str, Any]]]:
    async def fails(_exchange: Exchange) -> dict[str, Any]:
        raise error

    return fails


async def test_a_client_that_refuses_hears_of_that_and_not_of_the_cancel_that_follows():
    cancelled = asyncio.Event()

    async def frames(_request: ListenRequest) -> AsyncGenerator[bytes]:
        yield framed(ASKING)
        await cancelled.wait()
        yield framed({"status": "cancelled"})

    async def cancel(_said: Exchange) -> dict[str, Any]:
        cancelled.set()
        await watched.all_closed()
        return {}

    watched = Watched(frames)
    waiting = Waiting(watched, no_moments, {"tasks/cancel": cancel})
    with pytest.raises(NotAnswered, match="answered with an error: no"):
        await waiting.result(asked(Refusing()), exchange(), "t")
    assert cancelled.is_set()


@pytest.mark.parametrize("error", [errors.TaskNotFound(), errors.StoreUnavailable()])
async def test_a_client_that_refuses_hears_of_that_also_when_nothing_could_be_cancelled(
    error: Exception,
):
    waiting = Waiting(Watched(telling(ASKING)), no_moments, {"tasks/cancel": failing(error)})
    with pytest.raises(NotAnswered, match="answered with an error: no"):
        await waiting.result(asked(Refusing()), exchange(), "t")


async def test_a_task_whose_question_is_answered_with_nonsense_is_cancelled_as_if_refused():
    cancelled: list[str] = []

    class Answering(Refusing):
        async def send_request(self, *_given: Any, **_more: Any) -> Any:
            return ClientCapabilities()

    async def cancel(said: Exchange) -> dict[str, Any]:
        cancelled.append(said.params["taskId"])
        return {}

    update = failing(errors.MalformedAnswer("in-1", "it has no action"))
    methods = {"tasks/update": update, "tasks/cancel": cancel}
    waiting = Waiting(Watched(telling(ASKING)), no_moments, methods)
    with pytest.raises(errors.MalformedAnswer):
        await waiting.result(asked(Answering()), exchange(), "t")
    assert cancelled == ["t"]


async def test_a_task_that_has_ended_is_told_though_its_question_is_refused_just_then():
    client, both_wait = Refusing(), asyncio.Event()
    client.may_answer.clear()

    async def frames(_request: ListenRequest) -> AsyncGenerator[bytes]:
        yield framed(ASKING)
        await client.is_asked.wait()
        both_wait.set()
        await client.may_answer.wait()  # as the client does: it is first, and this in that step
        yield framed(COMPLETED)

    cancel = failing(AssertionError("there is nothing to cancel"))
    waiting = Waiting(Watched(frames), no_moments, {"tasks/cancel": cancel})
    result = asyncio.create_task(waiting.result(asked(client), exchange(), "t"))
    await both_wait.wait()
    client.may_answer.set()
    assert await result == RESULT


async def test_a_refusal_after_somebody_elses_answer_cancels_nothing():
    looked = asyncio.Event()

    async def frames(_request: ListenRequest) -> AsyncGenerator[bytes]:
        if len(watched.opened) > 1:
            looked.set()  # the answer is stored, and not told of yet
            yield framed(WORKING)
        yield framed(ASKING)
        await looked.wait()
        yield framed(COMPLETED)

    watched = Watched(frames)
    cancel = failing(AssertionError("the task goes on"))
    waiting = Waiting(watched, no_moments, {"tasks/cancel": cancel})
    assert await waiting.result(asked(Refusing()), exchange(), "t") == RESULT
    assert watched.left_open == 0


async def test_progress_that_cannot_be_read_ends_no_wait():
    async def away(_task_id: str, _versions: Collection[int]) -> Mapping[int, Any]:
        raise errors.StoreUnavailable

    waiting = Waiting(Watched(telling({**WORKING, **VERSIONED}, COMPLETED)), away, {})
    given = exchange(_meta={"progressToken": 1})
    assert await waiting.result(asked(Refusing()), given, "t") == RESULT


async def test_a_task_that_is_removed_while_it_is_waited_for_is_not_found():
    class Removed(Watched):
        async def open(self, request: ListenRequest) -> Any:
            watch = await super().open(request)
            watch.receipt = Receipt(("t",) if len(self.opened) == 1 else ())
            return watch

    watched = Removed(telling(WORKING))
    with pytest.raises(errors.TaskNotFound):
        await Waiting(watched, no_moments, {}).result(asked(Refusing()), exchange(), "t")
    assert watched.left_open == 0


@pytest.mark.parametrize("error", [errors.TooManyWatches("watches", 1), errors.StoreUnavailable()])
async def test_a_server_that_goes_away_leaves_the_task_alone_whatever_else_it_cannot_do(
    error: Exception,
):
    class Leaving(Watched):
        async def open(self, request: ListenRequest) -> Any:
            if self.opened:
                raise error
            return await super().open(request)

    waiting = Waiting(Leaving(telling(WORKING)), no_moments, {})
    with pytest.raises(MCPError, match="the task goes on without it"):
        await waiting.result(asked(Refusing()), exchange(), "t")


@pytest.mark.parametrize(
    "error", [errors.TooManyWatches("watches", 1), errors.TooManyRequests("polls", 1, 1.0)]
)
async def test_who_has_cancelled_a_task_does_not_hear_of_a_failure_to_look_at_it(error: Exception):
    done: list[str] = []

    async def get(_exchange: Exchange) -> dict[str, Any]:
        if done and isinstance(error, errors.TooManyRequests):
            raise error
        return {"taskId": "t", **WORKING}

    async def cancel(_exchange: Exchange) -> dict[str, Any]:
        done.append("cancel")
        return {}

    class Full(Watched):
        async def open(self, request: ListenRequest) -> Any:
            if isinstance(error, errors.TooManyWatches):
                raise error
            return await super().open(request)

    watched = Full(telling(WORKING))
    waiting = Waiting(watched, no_moments, {"tasks/get": get, "tasks/cancel": cancel})
    with visiting(Session("alice")):
        answer = await OlderTasks(waiting, cast(Journal, None)).cancel(
            asked(Refusing(), taskId="t")
        )
    assert (done, answer["status"]) == (["cancel"], "working")


async def test_a_session_that_ends_while_its_watch_opens_leaves_none_open():
    session = Session("alice", "a")

    class Ending(Watched):
        async def open(self, request: ListenRequest) -> Any:
            session.close()
            return await super().open(request)

    watched = Ending(agreed)
    with visiting(session), pytest.raises(MCPError):
        await SessionEars(watched).subscribe(asked(Refusing(), uri="a:b"))
    assert (watched.left_open, session.listening) == (0, None)


async def test_a_session_that_ends_before_its_watch_is_read_leaves_nobody_waiting():
    session = Session("alice", "a")

    class Ending(Watched):
        async def open(self, request: ListenRequest) -> Any:
            # After this, and before the first step of what reads the watch.
            asyncio.get_running_loop().call_soon(session.close)
            return await super().open(request)

    watched = Ending(agreed)
    with visiting(session), pytest.raises(MCPError):
        await SessionEars(watched).subscribe(asked(Refusing(), uri="a:b"))
    assert watched.left_open == 0


@pytest.mark.parametrize("gives_up", [True, False], ids=["given up", "waited for"])
async def test_a_session_that_ends_while_a_watch_takes_the_place_of_another_leaves_none_open(
    gives_up: bool,
):
    session, begins = Session("alice", "a"), asyncio.Event()

    async def frames(request: ListenRequest) -> AsyncGenerator[bytes]:
        if len(watched.opened) > 1:
            begins.set()
            await asyncio.Event().wait()
        async for frame in agreed(request):
            yield frame

    watched = Watched(frames)
    with visiting(session):
        await SessionEars(watched).subscribe(asked(Refusing(), uri="a:1"))
        second = asyncio.create_task(SessionEars(watched).subscribe(asked(Refusing(), uri="a:2")))
    await begins.wait()
    session.close()
    if gives_up:
        second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await watched.all_closed()


async def test_what_is_subscribed_again_is_heard_again_where_the_watch_has_failed():
    session = Session("alice", "a")

    async def frames(request: ListenRequest) -> AsyncGenerator[bytes]:
        begun = agreed(request)
        yield await anext(begun)
        if len(watched.opened) > 1:
            await asyncio.Event().wait()
        raise errors.StoreUnavailable

    watched = Watched(frames)
    with visiting(session):
        for count in (1, 2, 2):
            await SessionEars(watched).subscribe(asked(Refusing(), uri="a:b"))
            assert len(watched.opened) == count
            await watched.all_closed(but=count - 1)
    session.close()
    await watched.all_closed()
