"""What a shell offers when Tab is pressed: the server's tools, and the tasks of the journal.

Nobody waits for a shell: what cannot be had at once is not offered, and no error is shown.
"""

import asyncio
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import typer

from ....domain import errors
from . import tools
from .reach import JOURNAL, SERVER
from .text import line

COMPLETE_S_MAX = 1.5
TASKS_MAX = 50  # the newest


def tool_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Tools by name, with what they are for."""
    server = _chosen(ctx, "server", "OUTLAST_SERVER") or SERVER
    token = _chosen(ctx, "token", "OUTLAST_TOKEN")

    async def offered() -> Sequence[Mapping[str, Any]]:
        with anyio.fail_after(COMPLETE_S_MAX):  # of all pages together
            return await tools.listed(server, token, COMPLETE_S_MAX)

    try:
        found = asyncio.run(offered())
    except (errors.RemoteError, TimeoutError):
        return []
    names = [(line(tool.get("name", "")), line(tool.get("description", ""), 60)) for tool in found]
    return [each for each in names if each[0].startswith(incomplete)]


def task_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Unfinished tasks, the newest first."""
    chosen = _chosen(ctx, "journal", "OUTLAST_JOURNAL")
    path = Path(chosen) if chosen else JOURNAL
    try:
        # Read only: Tab makes no file.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.5)
        try:
            rows = connection.execute(_UNFINISHED, (TASKS_MAX,)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return []
    offered = [(line(task_id), line(tool or "")) for task_id, tool in rows]
    return [each for each in offered if each[0].startswith(incomplete)]


_UNFINISHED = """
    SELECT task_id, tool FROM entries WHERE ended IS NULL AND task_id IS NOT NULL
    ORDER BY number DESC LIMIT ?
"""


def _chosen(ctx: typer.Context, name: str, variable: str) -> str | None:
    value = ctx.params.get(name) or os.environ.get(variable)
    return None if value is None else str(value)
