"""What others on this loop are about to do, done."""

import asyncio


async def turns() -> None:
    """Let everybody else on this loop do what they are about to do."""
    for _ in range(5):
        await asyncio.sleep(0)  # noqa: TID251 - a turn, no time
