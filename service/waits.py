"""Waiting for one of several things, for about so long, and for what goes on by itself."""

import asyncio
import logging
import random
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 5  # asyncio takes three to make a connection of what it has accepted


def varied(seconds: float) -> float:
    """Up to half of it less. In step, one worker would always come just before another.

    It would take back what it has just released because it cannot run it, again and again.
    """
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - this is chance, not a secret


async def turns() -> None:
    """Let everybody else on this loop do what they are about to do."""
    for _ in range(TURNS):
        await asyncio.sleep(0)  # noqa: TID251 - a turn, no time


async def first(*waits: Awaitable[object]) -> None:
    """Return when one is over, and raise what it raised; the others are told to stop."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
    for future in done:
        future.result()


async def outlasting(doing: "asyncio.Future[T]", log: logging.Logger, failed: str) -> T:
    """What this comes to. It goes on where whoever waits leaves; then the log has its failure."""
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        doing.add_done_callback(partial(_unheard, log, failed))
        raise


def _unheard(log: logging.Logger, failed: str, done: "asyncio.Future[Any]") -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("%s: %s", failed, error)
