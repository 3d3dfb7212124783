"""The fixture upstreams, reached in every way; shared by the tests of one module."""

from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from outlast.adapters.upstream import McpUpstreams
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import EVERY_WAY, http_server, reached


@pytest.fixture(scope="module")
def http_ports() -> Iterator[Mapping[str, int]]:
    """One HTTP process for each fixture server; both speak both eras, the client chooses."""
    ports = {"everyday": free_port(), "asking": free_port()}
    with http_server("everyday", ports["everyday"]), http_server("asking", ports["asking"]):
        yield ports


@pytest.fixture(scope="module", params=EVERY_WAY)
async def everyday(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "everyday", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-modern", "http-modern"])
async def modern_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-legacy", "http-legacy"])
async def legacy_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams
