"""One served world for the inputs of a file, and a connection to it for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from outlast.tests.fuzz.wire import Line
from outlast.tests.fuzz.world import World, world


@pytest.fixture(scope="module")
async def here(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("fuzz"), module_database_url) as served:
        yield served


@pytest.fixture
def line(here: World) -> Iterator[Line]:
    with here.line() as own:
        yield own
