"""Who reads the output: one whose alphabet is small, and one who leaves early."""

import os
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.abc
import pytest

from outlast.tests.client_cli.conftest import Cli
from outlast.tests.client_cli.terminal import PATIENCE_S
from outlast.tests.support.serving import OUTLAST

pytestmark = pytest.mark.anyio

CHUNK_BYTES = 65_536


@asynccontextmanager
async def outlast(
    cli: Cli, *words: str, joined: bool = False, flags: int = 0
) -> AsyncGenerator[tuple[anyio.abc.Process, BinaryIO]]:
    """A whole process and the pipe behind it; its standard error is in it too, or in a file.

    It keeps nothing back in buffers, as is usual in a container.
    """
    reading, writing = os.pipe2(flags) if flags else os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe, (cli.folder / "err").open("wb") as err:
        process = await anyio.open_process(
            [str(OUTLAST), *words],
            cwd=cli.folder,
            env={**cli.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing if joined else err,
        )
        os.close(writing)
        try:
            yield process, pipe
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def code_once_nobody_reads(
    process: anyio.abc.Process, pipe: BinaryIO, gate: Path, last: bytes
) -> int:
    """Read on to this as `head` does, and leave; only then let the tool go on."""
    told = b""
    with anyio.fail_after(PATIENCE_S):
        while last not in told:
            await anyio.wait_readable(pipe)
            told += pipe.read(CHUNK_BYTES) or b""
        pipe.close()
        gate.touch()
        return await process.wait()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_a_character_that_cannot_be_shown_is_escaped(cli: Cli, encoding: str):
    environment = {**cli.environment, "PYTHONIOENCODING": encoding}
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), "call", "echo", "text=done \N{GRINNING FACE}"],
            cwd=cli.folder,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, b"done \\U0001f600\n"), done.stderr


@pytest.mark.parametrize(
    ("flags", "joined"), [(["--json"], False), ([], True)], ids=["json", "lines"]
)
async def test_a_task_whose_reader_left_runs_on_and_nobody_is_told(
    cli: Cli, tmp_path: Path, flags: Sequence[str], joined: bool
):
    gate = tmp_path / "gate"
    words = ("call", "count", "steps=12", f"gate={gate}", "--via", "listen", *flags)
    async with outlast(cli, *words, joined=joined) as (process, pipe):
        # By then it is being told of every state: it meets the closed pipe before the end.
        assert await code_once_nobody_reads(process, pipe, gate, b" of 12") == 4
    assert (tmp_path / "err").read_text() == ""
    resumed = await cli.run("resume")
    assert (resumed.code, resumed.out) == (0, "counted 12\n")


async def test_a_task_that_ended_has_its_own_code_whoever_reads(cli: Cli, tmp_path: Path):
    gate = tmp_path / "gate"
    words = ("call", "count", "steps=1", f"gate={gate}", "--json")
    async with outlast(cli, *words) as (process, pipe):
        # The last that is told before the end.
        assert await code_once_nobody_reads(process, pipe, gate, b"0 of 1") == 0
    assert (tmp_path / "err").read_text() == ""
    assert "nothing is unfinished" in (await cli.run("resume")).err


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="a pipe does not tell writes apart here")
@pytest.mark.parametrize(("flags", "joined"), [(["--json"], False), ([], True)])
async def test_who_reads_a_line_has_all_of_it(cli: Cli, flags: Sequence[str], joined: bool):
    """A reader that has what it wants may leave: of its line nothing may be left to be written."""
    words = ("call", "count", "steps=2", *flags)
    told: list[bytes] = []
    async with outlast(cli, *words, joined=joined, flags=os.O_DIRECT) as (process, pipe):
        with anyio.fail_after(PATIENCE_S):
            while not told or told[-1]:
                await anyio.wait_readable(pipe)
                told.append(pipe.read(CHUNK_BYTES) or b"")  # what one write has brought
            assert await process.wait() == 0
    assert len(told) > 2  # an end and a result are the least
    assert [one for one in told[:-1] if not one.endswith(b"\n")] == []
