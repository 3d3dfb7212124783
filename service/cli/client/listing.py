"""`outlast tasks`: the journal, as it stands. No server is asked, and no answer is shown."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....domain.clienting import Entry
from . import codes, options
from .options import JournalOption, JsonOption, ServerOption, TokenOption
from .reach import SERVER, Reach, reach
from .session import entries
from .text import line

EXAMPLES = options.examples(
    "outlast tasks",
    "outlast tasks --unfinished --json",
)
COLUMNS = ("task", "tool", "state", "begun")


def tasks(
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only what `outlast resume` would pick up.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """List the tasks begun at this server: a table, or tabs when piped."""
    at = reach(server, token, journal)
    raise options.run(_tasks(at, only=unfinished, as_json=as_json))


async def _tasks(at: Reach, *, only: bool, as_json: bool) -> int:
    found = [entry for entry in await entries(at) if not (only and entry.ended)]
    console = Console(highlight=False, markup=False, emoji=False)
    if as_json:
        for entry in found:
            typer.echo(json.dumps(_told(entry)))
    elif console.is_terminal:
        _print_table(console, found)
    else:
        for entry in found:
            typer.echo("\t".join(_row(entry)))
    return codes.DONE


def _told(entry: Entry) -> dict[str, Any]:
    """Answers and arguments stay in the file: they may be secrets."""
    return {
        "taskId": entry.task_id,
        "tool": entry.tool,
        "state": _state(entry),
        "begun": entry.made_at.isoformat(),
        "server": entry.server,
        "idempotencyKey": entry.idempotency_key,
        "answered": list(entry.answers),
    }


def _state(entry: Entry) -> str:
    if entry.ended is not None:
        return entry.ended
    return "unfinished" if entry.task_id else "not confirmed"


def _row(entry: Entry) -> list[str]:
    begun = entry.made_at.astimezone().isoformat(timespec="seconds")
    facts = (entry.task_id or "-", entry.tool or "-", _state(entry), begun)
    return [line(fact) for fact in facts]


def _print_table(console: Console, found: Sequence[Entry]) -> None:
    table = Table()
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for entry in found:
        table.add_row(*(Text(cell) for cell in _row(entry)))
    console.print(table if found else Text("the journal is empty"))
