"""`outlast stdio` as its client has it: a process that is written to and read from, line by line.

It helps with nothing: every line is kept, and one that is no JSON-RPC message fails the test.
"""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from outlast.tests.support.mcp import DECLARED, envelope
from outlast.tests.support.serving import OUTLAST

ANSWER_S_MAX = 60.0
END_S_MAX = 30.0
LINE_BYTES_MAX = 16 * 1024 * 1024

Line = dict[str, Any]


class Talk:
    """One client and the process that it has started."""

    def __init__(self, process: anyio.abc.Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.log = process, log
        self._reader = BufferedByteReceiveStream(process.stdout)
        self.heard: list[Line] = []

    async def write(self, line: bytes) -> None:
        """These very bytes, and the end of a line."""
        assert self.process.stdin is not None
        await self.process.stdin.send(line + b"\n")

    async def say(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] = DECLARED,
        meta: Mapping[str, Any] | None = None,
    ) -> int:
        """Send one good request; its id."""
        request = envelope(method, params, capabilities, meta)
        await self.write(json.dumps(request).encode())
        return request["id"]

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.write(
            json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
        )

    async def hear(self) -> Line:
        """The next line."""
        with anyio.fail_after(ANSWER_S_MAX):
            text = await self._reader.receive_until(b"\n", LINE_BYTES_MAX)
        line = json.loads(text.decode())
        assert line["jsonrpc"] == "2.0", line
        self.heard.append(line)
        return line

    async def answer(self, request_id: int) -> Line:
        """The answer to this request; what comes before it is kept in `heard`."""
        while True:
            line = await self.hear()
            if line.get("id") == request_id:
                return line

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        capabilities: Mapping[str, Any] = DECLARED,
        meta: Mapping[str, Any] | None = None,
    ) -> Line:
        """The answer to one good request."""
        return await self.answer(await self.say(method, params, capabilities, meta))

    async def call(self, tool: str, arguments: Mapping[str, Any], **more: Any) -> Line:
        return await self.ask("tools/call", {"name": tool, "arguments": dict(arguments)}, **more)

    async def opened(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The id of the task that this call becomes."""
        created = (await self.call(tool, arguments))["result"]
        assert created["resultType"] == "task", created
        return created["taskId"]

    async def until_ended(self, task_id: str, seconds: float = ANSWER_S_MAX) -> Line:
        """Listen until the task has ended; the task."""
        filters = {"notifications": {"taskIds": [task_id]}}
        with anyio.fail_after(seconds):
            await self.ask("subscriptions/listen", filters)
        return (await self.ask("tasks/get", {"taskId": task_id}))["result"]

    async def hang_up(self) -> None:
        """Close the process's input."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()

    async def rest(self) -> list[Line]:
        """All that still comes, until the process closes its output."""
        lines: list[Line] = []
        with anyio.fail_after(END_S_MAX):
            try:
                while True:
                    lines.append(await self.hear())
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
                return lines

    async def ended(self) -> int:
        """Its exit status."""
        with anyio.fail_after(END_S_MAX):
            return await self.process.wait()


@asynccontextmanager
async def talking(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    outlast: Sequence[str] = (str(OUTLAST),),
) -> AsyncIterator[Talk]:
    """A client that starts `outlast stdio` in this folder. Leaving ends it, by force if need be."""
    log = folder / "stdio.log"
    with log.open("ab") as errors:
        process = await anyio.open_process(
            [*outlast, "stdio", *arguments],
            cwd=folder,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    talk = Talk(process, log)
    try:
        yield talk
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
