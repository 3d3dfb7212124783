"""The real command as a process, in front of an upstream that has never heard of tasks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outlast.tests.support.serving import command_of, serving

UPSTREAM = Path(__file__).with_name("slow_server.py")
TOOLS = ("slow_echo", "ask_name", "sleep_forever", "fails", "is_error", "count")


@pytest.fixture(scope="module")
async def outlast_server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The URL of a running `outlast serve` whose every tool is a task; it has to stop cleanly."""
    folder = tmp_path_factory.mktemp("outlast")
    async with serving(folder, _config(), module_database_url) as server:
        yield server.url


def _config() -> str:
    lines = ["[upstreams.slow]", f"command = {command_of(UPSTREAM)}"]
    for tool in TOOLS:
        lines += [f"[tools.{tool}]", 'run = "task"', 'poll_interval = "100ms"', 'ttl = "10m"']
    return "\n".join(lines) + "\n"
