"""The real `outlast serve`, twice, behind one address: started once for the tests of a module."""

from collections.abc import AsyncIterator

import pytest

from outlast.tests.client.world import World, world


@pytest.fixture(scope="module")
async def lone(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One server, with its worker."""
    folder = tmp_path_factory.mktemp("world")
    async with world(folder, module_database_url) as made, made.server():
        yield made
