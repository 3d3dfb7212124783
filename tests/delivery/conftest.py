"""The world of webhooks on a database of the file's own, empty for each test."""

from collections.abc import AsyncIterator

import pytest

from outlast.tests.delivery.webhook_world import Made, world


@pytest.fixture
async def made(module_database_url: str) -> AsyncIterator[Made]:
    async with world(module_database_url) as pair:
        await pair[0].empties()
        yield pair
