"""Waiting for what other processes do: a condition, looked at again and again, with a bound."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

LOOK_AGAIN_S = 0.02


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Return once `condition` holds. Raises TimeoutError."""
    with anyio.fail_after(seconds):
        # Another process cannot set an event of ours: look again.
        while not await condition():  # noqa: ASYNC110 - see above, there is no event
            await anyio.sleep(LOOK_AGAIN_S)  # noqa: TID251 - see above, bounded


async def until_file_says(path: Path, text: str, seconds: float = 60.0) -> None:
    """Return once the file is there and holds `text`. Raises TimeoutError."""

    async def says() -> bool:
        return path.is_file() and path.read_text() == text

    await until(says, seconds)
