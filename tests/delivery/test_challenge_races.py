"""A refusal counts whoever is left to hear of it: else every call would cost a stranger a POST."""

import asyncio

import anyio
import pytest

from outlast.delivery.webhook.challenge import Challenger
from outlast.delivery.webhook.exchange import Outcome
from outlast.domain import errors
from outlast.service.waits import turns
from outlast.tests.delivery.subscribing import RAW, URL, Endpoint
from outlast.tests.delivery.webhook_world import ALICE, now

pytestmark = pytest.mark.anyio

SOON_S = 20.0


async def test_a_refusal_that_came_when_all_who_asked_had_left_is_remembered():
    """Found: it was noted by those who waited for it, and by nobody else."""
    async with Endpoint() as endpoint:
        challenger = Challenger(endpoint, now, None)
        endpoint.answer = Outcome(404, "http_4xx")
        endpoint.may_answer.clear()
        with anyio.fail_after(SOON_S):
            asking = asyncio.create_task(challenger.verify(ALICE, URL, "sub_1", RAW))
            await turns()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            endpoint.may_answer.set()
            await turns()
            with pytest.raises(errors.EndpointNotVerified):
                await challenger.verify(ALICE, URL, "sub_1", RAW)
        assert endpoint.posted == [URL]


async def test_a_call_between_the_answer_and_its_hearing_does_not_ask_again():
    """Found: the challenge was over a turn before those who waited had noted its refusal."""
    async with Endpoint() as endpoint:
        challenger = Challenger(endpoint, now, None)
        endpoint.answer = Outcome(404, "http_4xx")
        endpoint.may_answer.clear()

        async def verify_late() -> None:
            await endpoint.may_answer.wait()
            await asyncio.sleep(0)  # noqa: TID251 - a turn, in which the challenge ends
            await challenger.verify(ALICE, URL, "sub_1", RAW)

        with anyio.fail_after(SOON_S):
            first = asyncio.create_task(challenger.verify(ALICE, URL, "sub_1", RAW))
            await turns()
            second = asyncio.create_task(verify_late())
            await turns()
            endpoint.may_answer.set()
            ends = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(end) for end in ends] == [errors.EndpointNotVerified] * 2
        assert endpoint.posted == [URL]
