"""The keys around the data keys of tasks: made, counted and changed, while others serve."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from ...adapters import (
    data_keys,
    postgres,
    sealing,
)
from ...domain import errors
from ..settings import Settings


def new_key_line(name: str) -> str:
    """A fresh key, as it stands in the setting. Raises ConfigurationError for such a name."""
    line = sealing.new_key_line(name)
    sealing.LocalWrapping([line])
    return line


async def key_counts(url: str) -> Mapping[str, int]:
    """How many data keys are under which key."""
    async with _opened(url) as store:
        return await data_keys.DataKeys(store).counts()


async def rotate_keys(settings: Settings, url: str) -> data_keys.Rotated:
    """Wrap every data key under the first of the keys that are set."""
    if not settings.data_keys:
        raise errors.ConfigurationError("there are no data_keys to rotate to")
    async with _opened(url) as store:
        wrapping = sealing.LocalWrapping(settings.data_keys)
        return await data_keys.DataKeys(store).rotate(wrapping)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[postgres.Database]:
    store = postgres.Database(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
