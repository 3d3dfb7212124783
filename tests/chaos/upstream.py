"""An MCP server, written with the official SDK only, whose tools keep a journal of what they did.

    safe(path, key, seconds)          may run twice; `start KEY`, `end KEY`
    unsafe(path, key, seconds)        must not run twice; `start KEY`, `end KEY`
    asks(path, key, seconds)          modern: asks in its first leg, works in the second
    asks_legacy(path, key, seconds)   asks mid-call and waits, then works
    hold(path, key)                   `start KEY`, never ends by itself
    hold_safe(path, key)              the same, and may run twice
    stuck_once(path, key)             may run twice; hangs the first time, and is quick the second
    gated(path, key)                  may run twice; ends once there is a file `path`.KEY.go
    steps(path, key, count, pause)    tells progress `count` times

All write `stop KEY` when they are cancelled; those that ask write `answer KEY WORD OK` each time
they see the answer. A line is one write to a file that processes may share. Started over stdio, it
speaks both eras; which one is the client's choice.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.server.request_state import RequestStateSecurity
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import BaseModel

# One key for all processes: the next leg may come to another one.
STATE_SECURITY = RequestStateSecurity(
    keys=[b"this fixture keeps no secret at all"], audience="chaos"
)
SAFE = ToolAnnotations(idempotent_hint=True)

server = MCPServer("chaos", log_level="WARNING", request_state_security=STATE_SECURITY)


class Word(BaseModel):
    """What every question asks for."""

    word: str


def note(path: str, line: str) -> None:
    """One line in one write."""
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(journal, f"{line}\n".encode())
    finally:
        os.close(journal)


async def take(seconds: float) -> None:
    await anyio.sleep(seconds)  # noqa: TID251 - a tool that takes a while is what this is for


@asynccontextmanager
async def work(path: str, key: str) -> AsyncGenerator[None, None]:
    """The journal of one run."""
    note(path, f"start {key}")
    try:
        yield
    except anyio.get_cancelled_exc_class():
        note(path, f"stop {key}")
        raise
    note(path, f"end {key}")


@server.tool(annotations=SAFE)
async def safe(path: str, key: str, seconds: float) -> str:
    """Work that may be done twice."""
    async with work(path, key):
        await take(seconds)
    return f"safe {key}"


@server.tool()
async def unsafe(path: str, key: str, seconds: float) -> str:
    """Work that must not be done twice."""
    async with work(path, key):
        await take(seconds)
    return f"unsafe {key}"


@server.tool()
async def asks(path: str, key: str, seconds: float, ctx: Context) -> str | InputRequiredResult:
    """Ask, and work in the leg that brings the answer."""
    answer = (ctx.input_responses or {}).get("chaos-word")
    if not isinstance(answer, ElicitResult):
        question = ElicitRequestFormParams(
            message=f"The word for {key}?", requested_schema=Word.model_json_schema()
        )
        return InputRequiredResult(
            input_requests={"chaos-word": ElicitRequest(params=question)},
            request_state=f"half-way {key}",
        )
    word = (answer.content or {})["word"]
    note(path, f"answer {key} {word} {ctx.request_state == f'half-way {key}'}")
    async with work(path, key):
        await take(seconds)
    return f"asks {key} {word}"


@server.tool(annotations=SAFE)
async def asks_legacy(path: str, key: str, seconds: float, ctx: Context) -> str:
    """Ask while working, as servers did before the modern era."""
    note(path, f"start {key}")
    answer = await ctx.elicit(f"The word for {key}?", Word)
    if not isinstance(answer, AcceptedElicitation):
        return f"asks_legacy {key} {answer.action}"
    note(path, f"answer {key} {answer.data.word} True")
    await take(seconds)
    note(path, f"end {key}")
    return f"asks_legacy {key} {answer.data.word}"


@server.tool()
async def hold(path: str, key: str) -> str:
    """Wait for ever."""
    async with work(path, key):
        await anyio.sleep_forever()
    return "unreachable"


@server.tool(annotations=SAFE)
async def hold_safe(path: str, key: str) -> str:
    """Wait for ever, as often as wanted."""
    async with work(path, key):
        await anyio.sleep_forever()
    return "unreachable"


@server.tool(annotations=SAFE)
async def stuck_once(path: str, key: str) -> str:
    """Be what gets stuck, until it is run anew."""
    async with work(path, key):
        with open(path, encoding="utf-8") as journal:
            if journal.read().splitlines().count(f"start {key}") == 1:
                await anyio.sleep_forever()
    return f"stuck_once {key}"


@server.tool(annotations=SAFE)
async def gated(path: str, key: str) -> str:
    """Work for as long as somebody wants it to."""
    async with work(path, key):
        while not os.path.exists(f"{path}.{key}.go"):
            await take(0.02)
    return f"gated {key}"


@server.tool(annotations=SAFE)
async def steps(path: str, key: str, count: int, pause: float, ctx: Context) -> str:
    """Tell how far it is."""
    async with work(path, key):
        for step in range(1, count + 1):
            await ctx.report_progress(step, count, f"step {step}")
            await take(pause)
    return f"steps {key}"


if __name__ == "__main__":
    server.run("stdio")
