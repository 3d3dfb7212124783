"""An MCP server, written with the official SDK only, whose tools keep a journal of what they did.

    both(label, journal)           asks `a` and `b` in one leg, then runs
    once(label, journal, work_s)   asks `go`, then works and runs
    twice(label, journal)          asks `confirm`, and in the next leg `confirm` again, then runs
    work(label, journal, work_s)   works and runs, asks nothing

The journal is a folder with a file a label; a line is `<monotonic ns> <word>`. The words: `called`
as a leg's request comes in and `told-to-stop` as its cancellation does; `began`, `ran` (the side
effect) and `stopped` (cancelled before it) from inside a tool. Over stdio: `python race_server.py`.
"""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.request_state import RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel

# One key for all processes: the next leg may come to another one.
STATE_SECURITY = RequestStateSecurity(
    keys=[b"this fixture server keeps no secret"], audience="races"
)

server = MCPServer("races", log_level="WARNING", request_state_security=STATE_SECURITY)


class Word(BaseModel):
    """What every question asks for."""

    word: str


def note(journal: str, label: str, what: str) -> None:
    """One line in one write: processes share the file."""
    page = os.open(Path(journal, label), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(page, f"{time.monotonic_ns()} {what}\n".encode())
    finally:
        os.close(page)


def question(message: str) -> ElicitRequest:
    schema = Word.model_json_schema()
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def word_of(ctx: Context, name: str) -> str | None:
    """The word answered under this name in the present leg."""
    answer = (ctx.input_responses or {}).get(name)
    if not isinstance(answer, ElicitResult):
        return None
    return str((answer.content or {})["word"])


async def run_once(label: str, journal: str, work_s: float) -> None:
    note(journal, label, "began")
    try:
        await anyio.sleep(work_s)  # noqa: TID251 - work is what takes time here
    except anyio.get_cancelled_exc_class():
        note(journal, label, "stopped")
        raise
    note(journal, label, "ran")


@server.tool()
async def both(label: str, journal: str, ctx: Context) -> str | InputRequiredResult:
    a, b = word_of(ctx, "a"), word_of(ctx, "b")
    if a is None or b is None:
        return InputRequiredResult(input_requests={"a": question("a?"), "b": question("b?")})
    await run_once(label, journal, 0)
    return f"{a} {b}"


@server.tool()
async def once(
    label: str, journal: str, ctx: Context, work_s: float = 0
) -> str | InputRequiredResult:
    word = word_of(ctx, "go")
    if word is None:
        return InputRequiredResult(input_requests={"go": question("go?")})
    await run_once(label, journal, work_s)
    return word


@server.tool()
async def twice(label: str, journal: str, ctx: Context) -> str | InputRequiredResult:
    word = word_of(ctx, "confirm")
    if word is None:
        return InputRequiredResult(input_requests={"confirm": question("confirm?")})
    if ctx.request_state is None:
        # The very same question under the very same name, so that only the key can differ.
        return InputRequiredResult(
            input_requests={"confirm": question("confirm?")}, request_state=word
        )
    await run_once(label, journal, 0)
    return f"{ctx.request_state} {word}"


@server.tool()
async def work(label: str, journal: str, work_s: float = 0) -> str:
    await run_once(label, journal, work_s)
    return "worked"


class Wire:
    """The incoming messages; calls and cancellations are noted as they come, before any tool is."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._calls: dict[Any, tuple[str, str]] = {}

    async def receive(self) -> Any:
        item = await self._inner.receive()
        self._note(getattr(item, "message", None))
        return item

    def _note(self, message: Any) -> None:
        method, params = getattr(message, "method", None), getattr(message, "params", None) or {}
        if method == "tools/call":
            arguments = params["arguments"]
            self._calls[message.id] = arguments["journal"], arguments["label"]
            note(*self._calls[message.id], "called")
        elif method == "notifications/cancelled" and params.get("requestId") in self._calls:
            note(*self._calls[params["requestId"]], "told-to-stop")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inner.aclose()


async def main() -> None:
    inner = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] - no public way to it
    async with stdio_server() as (read, write):
        wire: Any = Wire(read)
        await inner.run(wire, write, inner.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
