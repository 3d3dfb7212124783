"""Processes on a database of their own, and a client in front of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from outlast.tests.chaos.client import REQUEST_S_MAX, Client
from outlast.tests.chaos.nodes import Cluster, cluster


@pytest.fixture
async def chaos(tmp_path: Path, database_url: str) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, database_url) as made:
        yield made


@pytest.fixture
async def client(chaos: Cluster) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(trust_env=False, timeout=REQUEST_S_MAX) as http:
        yield Client(http, chaos.url)
