"""Waiting for one of several things, and for about so long."""

import asyncio
import random
from collections.abc import Awaitable


def varied(seconds: float) -> float:
    """Up to half of it less. In step, one worker would always come just before another.

    It would take back what it has just released because it cannot run it, again and again.
    """
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - this is chance, not a secret


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
