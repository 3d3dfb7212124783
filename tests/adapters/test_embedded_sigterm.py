"""SIGTERM at any moment of a process that owns an embedded server: the server goes with it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest

from outlast.adapters.embedded import EmbeddedServer, find_running
from outlast.adapters.embedded_owner import owned
from outlast.tests.acceptance.stdio_store import servers
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.serving import OUTLAST

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
BY_SIGTERM = 128 + signal.SIGTERM
# 0: on a machine that stood still, the service was ready before it was told, and has drained.
IN_ORDER = {BY_SIGTERM, 0}

SERVE = ["serve", "--upstream", "cat", "--port", "0"]
UPGRADE = ["db", "upgrade"]

# It handles no signal itself, as the commands that look something up.
LOOKING_UP = """
import asyncio, sys
from pathlib import Path
from outlast.adapters.embedded_owner import owned

async def main():
    print("ready", flush=True)
    await asyncio.Event().wait()

with owned(Path(sys.argv[1])):
    asyncio.run(main())
"""

# It drains on the first SIGTERM and has another when it is about to stop its server.
SERVING = """
import asyncio, signal, sys
from pathlib import Path
from outlast.adapters.embedded import EmbeddedServer
from outlast.adapters.embedded_owner import owned
from outlast.service.hosting import run, stop_on_signals

stop = EmbeddedServer.stop

def told_again(server):
    signal.raise_signal(signal.SIGTERM)
    stop(server)

async def main():
    told = stop_on_signals()
    print("ready", flush=True)
    await told.wait()

EmbeddedServer.stop = told_again
with owned(Path(sys.argv[1])):
    run(main())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short path, in which no server is left running."""
    with tempfile.TemporaryDirectory(prefix="ol-") as made:
        yield Path(made)
        for pid in servers(Path(made)):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGQUIT)


@asynccontextmanager
async def running(home: Path, command: Sequence[str]) -> AsyncGenerator[anyio.abc.Process]:
    process = await anyio.open_process(
        command, cwd=home, stdin=subprocess.DEVNULL, stderr=sys.stderr
    )
    try:
        with anyio.fail_after(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


async def until_it_has_a_pid(file: Path) -> int:
    """The pid in the first line of this file, once it is there."""
    found: list[str] = []

    async def has_one() -> bool:
        with suppress(FileNotFoundError):
            found[:] = file.read_text().splitlines(keepends=True)[:1]
        return found != [] and found[0].endswith("\n")

    await until(has_one, PATIENCE_S)
    return int(found[0])


async def test_sigterm_while_a_store_is_made_is_heeded_once_it_is_whole(home: Path) -> None:
    async with running(home, [str(OUTLAST), *SERVE]) as process:
        await until_it_has_a_pid(home / ".outlast" / "owner.lock")
        process.terminate()
        assert await process.wait() in IN_ORDER
        assert servers(home) == set()


@pytest.mark.parametrize("command", [SERVE, UPGRADE], ids=["serve", "db upgrade"])
async def test_sigterm_while_its_server_starts_leaves_none_behind(
    home: Path, command: Sequence[str]
) -> None:
    async with running(home, [str(OUTLAST), *command]) as process:
        server = await until_it_has_a_pid(home / ".outlast" / "pg" / "data" / "postmaster.pid")
        with suppress(ProcessLookupError):  # where this process stood still it has come and gone
            os.kill(server, signal.SIGSTOP)  # so that it is not ready before it is wanted no more
            process.terminate()
            os.kill(server, signal.SIGCONT)
        # By the signal itself where its server was stopped already.
        assert await process.wait() in {*IN_ORDER, -signal.SIGTERM}
        assert servers(home) == set()


async def test_a_server_that_is_given_up_while_it_starts_is_ended_before_it_is_ready(
    home: Path,
) -> None:
    looked: list[bool] = []

    def look() -> None:
        looked.append(find_running(home / ".outlast") is not None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EmbeddedServer.start(home / ".outlast", look)
    assert looked == [False]
    assert servers(home) == set()


@pytest.mark.parametrize("script", [LOOKING_UP, SERVING], ids=["looking up", "serving"])
async def test_sigterm_later_on_leaves_no_server_behind(home: Path, script: str) -> None:
    command = [sys.executable, "-c", script, str(home / ".outlast")]
    async with running(home, command) as process:
        assert process.stdout is not None
        assert (await process.stdout.receive()).startswith(b"ready")
        assert len(servers(home)) == 1
        process.terminate()
        assert await process.wait() == BY_SIGTERM
        assert servers(home) == set()


async def test_who_handles_sigterm_keeps_its_handler_and_who_does_not_gets_none(home: Path) -> None:
    def handler(*_: object) -> None:
        """Whose process this is."""

    former = signal.getsignal(signal.SIGTERM)
    try:
        for mine in (handler, signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, mine)
            with owned(home / ".outlast"):
                heard_by = signal.getsignal(signal.SIGTERM)
            assert (heard_by is mine) == (mine is not signal.SIG_DFL)
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, former)
