"""Addresses that are nearly right: the endpoint with a slash, and all others without a redirect."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def served(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("served")
    async with serving(folder, desk_config(), module_database_url, ["--no-work"]) as server:
        yield server


async def test_the_endpoint_with_a_slash_is_the_endpoint(served: Serving):
    async with http_client() as http:
        plain, slashed = RawClient(served.url, http), RawClient(f"{served.url}/", http)
        task_id = await slashed.opened("note_task", {"path": "x"})
        assert await plain.task(task_id) == await slashed.task(task_id)
        for method in ("GET", "DELETE", "PUT"):
            answers = [await http.request(method, f"{served.url}{end}") for end in ("", "/")]
            assert answers[0].status_code == answers[1].status_code
            assert answers[0].content == answers[1].content


@pytest.mark.parametrize("path", ["/admin/webhooks/", "/audit/checkpoint/", "/healthz/", "/mcp//"])
async def test_nothing_is_led_to_where_the_request_says_that_we_are(served: Serving, path: str):
    async with http_client() as http:
        answer = await http.get(f"{served.base_url}{path}", headers={"host": "elsewhere.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
