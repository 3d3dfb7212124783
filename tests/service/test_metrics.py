"""`/metrics` tells what this process is at, to whoever may know."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg import sql

from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.databases import name_of
from outlast.tests.support.mcp import RawClient, envelope, headers_of, http_client
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

BOUND_S = 60.0
TOKEN, USUAL = "a-token-that-nobody-guesses", "an-ordinary-token"
HANG_UP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
ADMITS = "ALTER DATABASE {} ALLOW_CONNECTIONS {}"


def figure(page: str, name: str) -> float:
    (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def metrics_url(url: str) -> str:
    return url.replace("/mcp", "/metrics")


async def page_of(client: RawClient) -> str:
    reply = await client.http.get(metrics_url(client.url))
    assert reply.status_code == httpx2.codes.OK
    assert reply.headers["content-type"].startswith("text/plain")
    return reply.text


@contextmanager
def cut_off(server: str, database: str) -> Iterator[None]:
    """Nobody is connected to the database, and nobody gets in again until the end of this."""
    name = sql.Identifier(database)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL(ADMITS).format(name, sql.SQL("false")))
        try:
            connection.execute(HANG_UP, [database])
            yield
        finally:
            connection.execute(sql.SQL(ADMITS).format(name, sql.SQL("true")))


async def test_a_signal_that_is_cut_off_says_so_and_is_mended(
    client: RawClient, postgres_url: str, module_database_url: str
):
    async def is_live() -> bool:
        return figure(await page_of(client), "outlast_signal_live") == 1

    async def is_deaf() -> bool:
        return not await is_live()

    await until(is_live, BOUND_S)
    # Kept out for as long as it takes to see: it would be back half a second later.
    with cut_off(postgres_url, name_of(module_database_url)):
        await until(is_deaf, BOUND_S)
    await until(is_live, BOUND_S)


async def test_an_open_watch_is_counted_for_as_long_as_it_is_open(client: RawClient):
    async def watches() -> float:
        return figure(await page_of(client), "outlast_watches_open")

    async def nobody_watches() -> bool:
        return await watches() == 0

    task_id = await client.opened("sign_task_during", {"document": "d"})
    request = envelope("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    content, headers = json.dumps(request).encode(), headers_of(request)
    async with client.http.stream("POST", client.url, content=content, headers=headers) as stream:
        assert stream.status_code == httpx2.codes.OK
        assert await watches() == 1
    await until(nobody_watches, BOUND_S)


@pytest.fixture
async def guarded(database_url: str, tmp_path: Path) -> AsyncIterator[Serving]:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    usual = hashlib.sha256(USUAL.encode()).hexdigest()
    (tmp_path / "tokens.toml").write_text(
        f'[[tokens]]\nsha256 = "{digest}"\nsubject = "alice"\nscopes = ["operate"]\n'
        f'[[tokens]]\nsha256 = "{usual}"\nsubject = "bob"\n'
    )
    config = desk_config('tokens_file = "tokens.toml"')
    async with serving(tmp_path, config, database_url) as server:
        yield server


async def test_who_has_no_token_or_comes_by_another_name_sees_no_figures(guarded: Serving):
    url, token = metrics_url(guarded.url), {"Authorization": f"Bearer {TOKEN}"}
    async with http_client() as http:
        assert (await http.get(url)).status_code == httpx2.codes.UNAUTHORIZED
        assert (await http.get(url, headers=token)).status_code == httpx2.codes.OK
        bobs = await http.get(url, headers={"Authorization": f"Bearer {USUAL}"})
        assert bobs.status_code == httpx2.codes.FORBIDDEN
        assert "outlast_" not in bobs.text.removeprefix('{"error":"This needs the scope outlast:')
        other = await http.get(url, headers={**token, "Host": "another.example"})
        assert other.status_code == httpx2.codes.MISDIRECTED_REQUEST
