"""A client in a process of its own that is killed at one step of its work, as a machine is lost.

    driver.py URL JOURNAL STEP LINES ASKED [TOOL]

Calls `ask`, answers its question, prints the result. LINES is the file that the tool writes to,
ASKED the one to which each question that is shown adds a line.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outlast.adapters.journal import SqliteJournal
from outlast.domain.clienting import Entry
from outlast.service.client import Handlers, TaskClient, TaskHandle

URL, JOURNAL, STEP, LINES, ASKED = sys.argv[1:6]
TOOL = sys.argv[6] if len(sys.argv) > 6 else "ask"


def die_at(step: str) -> None:
    if step == STEP:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """`Journal` that dies before or after a change."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal

    async def begin(self, entry: Entry) -> None:
        die_at("before begin")
        await self._journal.begin(entry)
        die_at("after begin")

    async def accept(self, entry_id: str, task_id: str) -> None:
        die_at("before accept")
        await self._journal.accept(entry_id, task_id)
        die_at("after accept")

    async def answer(self, entry_id: str, answers: Mapping[str, Any]) -> None:
        die_at("before answer")
        await self._journal.answer(entry_id, answers)
        die_at("after answer")

    async def end(self, entry_id: str, how: str) -> None:
        die_at("before end")
        await self._journal.end(entry_id, how)
        die_at("after end")

    async def entries(self) -> Any:
        return await self._journal.entries()


async def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    with Path(ASKED).open("a") as lines:
        lines.write(request["params"]["message"] + "\n")
    die_at("asked")
    return {"action": "accept", "content": {"name": "Ada"}}


async def main() -> None:
    journal = await SqliteJournal.open(Path(JOURNAL), lambda: datetime.now(UTC))
    handlers = Handlers(any=answer)
    async with TaskClient.connect(URL, via="listen", journal=Mortal(journal), input=handlers) as c:
        outcome = await c.call_tool(TOOL, {"path": LINES})
        result = await outcome.result(60) if isinstance(outcome, TaskHandle) else outcome
    await journal.close()
    sys.stdout.write(json.dumps(result) + "\n")


asyncio.run(main())
