"""A server whose application cannot open: an error that can be told, and a process that lives."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette

from outlast.domain import errors
from outlast.service import settings
from outlast.service.cli import serving
from outlast.service.client import hook

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def gone(_app: Starlette) -> AsyncGenerator[None]:
    """The store has gone since the first look at it."""
    raise errors.StoreUnavailable
    yield


async def test_a_store_that_goes_away_before_it_is_opened_is_an_error_and_no_exit():
    server = serving.http_server(settings.load({}, {}), Starlette(lifespan=gone))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve([listener]))
        with pytest.raises(errors.ConfigurationError, match="the log says why"):
            await asyncio.wait_for(running, 20)


async def test_an_endpoint_of_the_clients_own_that_cannot_open_is_an_error():
    with pytest.raises(errors.ConfigurationError, match="the log says why"):
        async with asyncio.timeout(20), hook.served(Starlette(lifespan=gone), "127.0.0.1", 0):
            pass
