"""One answer of an upstream about a job. Nobody can be asked anything for it."""

import asyncio
from collections.abc import Awaitable

from ...domain import errors
from ...domain.decisions import INTERNAL_ERROR
from ...domain.ports import Faulted, HeldAsk, LegEnded, Returned, RunningCall
from .port import Away

ANSWER_S_MAX = 20.0
MESSAGE_CHARS_MAX = 1_000  # of what an upstream says, for the task's owner

Answer = Returned | Faulted | LegEnded


async def answer_of(beginning: Awaitable[RunningCall], late: str) -> Answer | Away | None:
    """What `beginning` is answered with; None when it is left without an answer.

    `late` says that none came in time, for the owner; how long that is, is added.
    """
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            return await _outcome(await beginning)
    except TimeoutError:
        return Away(f"{late} within {ANSWER_S_MAX:g} s")
    except errors.UpstreamUnavailable as error:
        return Away(str(error))


async def _outcome(running: RunningCall) -> Answer | None:
    try:
        async for news in running.news():
            if isinstance(news, HeldAsk):
                news.refuse(INTERNAL_ERROR, "Nobody can be asked anything here")
            elif isinstance(news, Returned | Faulted | LegEnded):
                return news
    finally:
        await running.cancel()
    return None
