"""The challenge: what an endpoint must echo, who shares one, and how many a host can get."""

import asyncio
from collections.abc import AsyncIterator, Callable

import orjson
import pytest

from outlast.delivery.webhook import challenge
from outlast.delivery.webhook.challenge import Challenger
from outlast.delivery.webhook.exchange import Outcome
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.subscribing import RAW, URL, Endpoint, asks, delivery, strict
from outlast.tests.delivery.webhook_world import ALICE, BOB, PATIENCE_S, Made, now

pytestmark = pytest.mark.anyio


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint() as made:
        yield made


async def test_calls_at_the_same_time_share_one_challenge(endpoint: Endpoint):
    challenger = Challenger(endpoint, now, None)
    endpoint.may_answer.clear()
    calls = [
        asyncio.create_task(challenger.verify(owner, URL, f"sub_{number}", RAW))
        for owner in (ALICE, BOB)
        for number in range(3)
    ]

    async def are_asked() -> bool:
        return len(endpoint.posted) == 2

    await until(are_asked, PATIENCE_S)
    calls[0].cancel()
    endpoint.may_answer.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(ends[0], asyncio.CancelledError)
    assert ends[1:] == [None] * 5
    assert endpoint.posted == [URL] * 2


async def test_an_endpoint_that_refused_is_left_alone_for_that_owner(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint)
    endpoint.answer = Outcome(404, "http_4xx")
    for _ in range(3):
        with pytest.raises(errors.EndpointNotVerified) as refused:
            await methods.subscribe(asks())
        assert refused.value.data == {"reason": "http_4xx"}
    assert len(endpoint.posted) == 1
    endpoint.answer = Outcome(200, None)
    await methods.subscribe(asks(BOB))
    await methods.subscribe(asks(delivery=delivery(url=URL + "/other")))
    assert len(endpoint.posted) == 3


async def test_where_nothing_was_posted_a_caller_may_try_again_at_once(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint)
    for category in ("connection_refused", "tls_error"):
        endpoint.answer = Outcome(None, category)
        with pytest.raises(errors.EndpointNotVerified) as refused:
            await methods.subscribe(asks())
        assert refused.value.data == {"reason": category}
    endpoint.answer = Outcome(200, None)
    await methods.subscribe(asks())


async def test_one_that_found_no_place_was_not_refused(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint)
    endpoint.answer = Outcome(None, None, attempted=False)
    with pytest.raises(errors.EndpointNotVerified) as refused:
        await methods.subscribe(asks())
    assert refused.value.data == {"reason": "timeout"}
    endpoint.answer = Outcome(200, None)
    await methods.subscribe(asks())


async def test_a_host_is_challenged_so_often_and_no_more_however_it_is_spelled(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint, most_per_owner=1_000)
    spelled = ("hooks.example", "HOOKS.example", "hooks.EXAMPLE:443")
    for number in range(challenge.HOST_MAX):
        url = f"https://{spelled[number % 3]}/{number}"
        await methods.subscribe(asks((ALICE, BOB)[number % 2], delivery=delivery(url=url)))
    for host in spelled:
        with pytest.raises(errors.EndpointNotVerified):
            await methods.subscribe(asks(delivery=delivery(url=f"https://{host}/one-more")))
    assert len(endpoint.posted) == challenge.HOST_MAX
    await methods.subscribe(asks(delivery=delivery(url="https://other.example/")))


WRONG_ECHOES: list[Callable[[str], bytes]] = [
    lambda nonce: orjson.dumps({"challenge": nonce[:-1]}),
    lambda nonce: orjson.dumps({"challenge": nonce + " "}),
    lambda nonce: orjson.dumps({"challenge": nonce.swapcase()}),
    lambda nonce: orjson.dumps({"challenge": [nonce]}),
    lambda nonce: orjson.dumps({"other": nonce}),
    lambda nonce: orjson.dumps([nonce]),
    orjson.dumps,
    str.encode,
    lambda nonce: b" " * 4_096 + orjson.dumps({"challenge": nonce}),
    lambda nonce: b'{"challenge":"\\ud800"}',
    lambda nonce: b'{"challenge":"\xc3\xa9"}',
    lambda nonce: b"[" * 4_000,
    lambda nonce: b"",
]


async def test_the_echo_is_compared_whole(made: Made, endpoint: Endpoint):
    here, _ = made
    for echo in WRONG_ECHOES:
        endpoint.echo = echo
        with pytest.raises(errors.EndpointNotVerified) as refused:
            await strict(here, endpoint).subscribe(asks())
        assert refused.value.data == {"reason": "challenge_failed"}
    assert len(endpoint.posted) == len(WRONG_ECHOES)
    assert await here.subscriptions.find() == []
