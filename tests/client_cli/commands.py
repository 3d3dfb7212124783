"""`outlast`, many times over, without paying for its imports each time: every run is a fork.

What runs is `main` in a process of its own, with the words, the environment, the folder and the
output that it would have had. Tests that kill or interrupt a command start a whole one.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from outlast.tests.client_cli.terminal import PATIENCE_S


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]


class Commands:
    """Runs one command after another."""

    def __init__(self, process: anyio.abc.Process, folder: Path) -> None:
        self._process, self._folder = process, folder

    async def run(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Done:
        out, err = self._folder / "out", self._folder / "err"
        wish = {"words": words, "folder": str(folder), "environment": dict(environment)}
        line = json.dumps({**wish, "out": str(out), "err": str(err)}) + "\n"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with anyio.fail_after(PATIENCE_S):
            await self._process.stdin.send(line.encode())
            code = int(await self._process.stdout.receive())
        return Done(code, out.read_text(), err.read_text())


@asynccontextmanager
async def commands(folder: Path) -> AsyncGenerator[Commands]:
    """A process that has imported all there is to import."""
    process = await anyio.open_process(
        [sys.executable, __file__], stdin=subprocess.PIPE, stderr=None
    )
    try:
        yield Commands(process, folder)
    finally:
        process.kill()
        await process.aclose()


def _serve() -> None:
    import outlast.service.wiring  # noqa: F401 - what a client imports once it connects
    from outlast.service.cli import main

    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(wish)
            code = 1
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception:  # noqa: BLE001 - shown as an interpreter would
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(wish: dict[str, Any]) -> None:
    for number, path in ((0, os.devnull), (1, wish["out"]), (2, wish["err"])):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    sys.argv = ["outlast", *wish["words"]]


if __name__ == "__main__":
    _serve()
