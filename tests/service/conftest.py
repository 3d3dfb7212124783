"""The real `outlast serve` in front of small upstreams, and raw clients that speak to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import Serving, command_of, serving

HERE = Path(__file__).parent
DESK = HERE / "desk_server.py"
EVERYDAY = HERE.parent / "upstreams" / "everyday.py"

RUNS = {"direct": "direct", "auto": "auto", "task": "task", "only": "task-only"}
GRACE_S = 5.0  # a fast tool is within it even on a busy machine


def desk_config(server: str = "") -> str:
    """The desk server with one tool for each way to run it; `server` is the [server] table."""
    lines = [
        "[server]",
        server,
        "[defaults]",
        'run = "task"',
        'poll_interval = "50ms"',
        'ttl = "10m"',
        f'grace = "{GRACE_S * 1000:.0f}ms"',
        "[upstreams.desk]",
        f"command = {command_of(DESK)}",
    ]
    for name, run in RUNS.items():
        lines += [f"[tools.note_{name}]", f'run = "{run}"', f"[tools.hold_{name}]"]
        lines += [f'run = "{run}"']
        for ask in ("during", "before"):
            lines += [f"[tools.sign_{name}_{ask}]", f'run = "{run}"', f'ask = "{ask}"']
    lines += ["[tools.sign_soon]", 'ttl = "1s"']
    lines += ["[tools.note_brief]", 'ttl = "2s"']
    lines += ["[tools.hold_hurried]", 'timeout = "500ms"']
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
async def desk(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server in front of the desk, one for the tests of a module."""
    folder = tmp_path_factory.mktemp("desk")
    async with serving(folder, desk_config(), module_database_url) as server:
        yield server


@pytest.fixture
async def client(desk: Serving) -> AsyncIterator[RawClient]:
    """A client of the desk's server that declares the tasks extension."""
    async with http_client() as http:
        yield RawClient(desk.url, http)


@pytest.fixture(scope="module")
async def replica(desk: Serving, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of a second server on the same database, which runs no tasks itself."""
    folder = tmp_path_factory.mktemp("replica")
    async with serving(folder, desk_config(), desk.database_url, ["--no-work"]) as server:
        yield server.url


@pytest.fixture
def other(client: RawClient, replica: str) -> RawClient:
    """The same client at the other server."""
    return RawClient(replica, client.http)


def tasks_stored(database_url: str) -> int:
    """How many tasks the store holds, as PostgreSQL itself says."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM outlast.task_view").fetchone()
    assert row is not None
    return row[0]


def status_stored(database_url: str, task_id: str) -> str | None:
    """The status of this task, as PostgreSQL itself says; None for one that is not stored."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT status FROM outlast.task_view WHERE task_id = %s", [task_id]
        ).fetchone()
    return None if row is None else row[0]
