"""`outlast audit show`, `replay` and `export`: what happened, as far as it may still be known."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...domain import errors
from ...domain.history import History, Step
from ...domain.owner import Owner
from .. import wiring
from ..auditing.exporting import Wanted
from ..auditing.history import Historian, NoSuchVersion, UnknownTask, Unreadable, json_of
from ..auditing.words import DOING, length, sentence
from ..jsonrpc import dumps
from ..settings import Settings
from .client.text import line, plain
from .store import ConfigOption, DatabaseOption, store_of

REFUSED = 1  # exit code
PAYLOAD_CHARS_MAX = 160  # shown of one payload, but for --full
OWNER_HASH_CHARS = 32

Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's id, past tasks included.")]

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    ids = {"ignore_unknown_options": True}  # one id in 64 begins with a dash
    app.command(context_settings=ids, epilog="Example: outlast audit show TASK --full")(show)
    app.command(context_settings=ids, epilog="Example: outlast audit replay TASK --at 3")(replay)
    app.command(epilog="Example: outlast audit export --since 2026-07-28T00:00:00Z")(export)


def show(
    task: Task,
    full: Annotated[bool, typer.Option("--full", help="Payloads as a whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Show what happened to a task: when, by whom, and how long it took."""

    async def history(historian: Historian) -> History:
        return await historian.history(task)

    found = _asked(config, database_url, history)
    if as_json:
        _write(dumps(json_of(found)) + b"\n")
    else:
        _print(found, full=full)


def replay(
    task: Task,
    at: Annotated[
        int | None, typer.Option(help="At this version; default: all, a line each.")
    ] = None,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print a task as its client saw it: the very bytes of the task in tasks/get."""

    async def states(historian: Historian) -> None:
        history = await historian.history(task)
        if at is not None:
            _write(historian.state_at(history, at) + b"\n")
            return
        for state in historian.states(history):
            _write(state + b"\n")

    _asked(config, database_url, states)


def export(
    since: Annotated[
        str,
        typer.Option(
            help="From this instant on (with its zone), or all behind this position: to go on"
            " after an export, the position of its last line."
        ),
    ] = "0",
    until: Annotated[
        str | None, typer.Option(help="Up to this instant or position; default: up to now.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help='Of this owner: ["ISSUER","SUBJECT","CLIENT"] as JSON, or its hash.'),
    ] = None,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print events as CloudEvents, one JSON line each, in the order of the log.

    The attribute `position` of a line is where to go on. A payload that was erased has no `data`
    and the attribute `absent`. Exit code 1 if one could not be read for another reason.
    """
    wanted = _wanted(since, until, owner)
    _, chosen = store_of(config, database_url)
    with wiring.database(chosen, share=True) as url:
        unreadable = asyncio.run(_exported(chosen, url, wanted))
    if unreadable:
        typer.echo(f"outlast: {unreadable} payloads cannot be read; `absent` says why", err=True)
        raise typer.Exit(REFUSED)


async def _exported(chosen: Settings, url: str, wanted: Wanted) -> int:
    """Write all lines; how many lack a payload that should be there."""
    await wiring.upgrade(url)
    unreadable = 0
    async with wiring.audit_reading(chosen, url) as reading:
        async for each in reading.exporter.lines(wanted):
            _write(each.text)
            unreadable += not each.is_whole
    return unreadable


def _wanted(since: str, until: str | None, owner: str | None) -> Wanted:
    """Raises ConfigurationError."""
    after, begin = _place("--since", since)
    upto, end = _place("--until", until) if until is not None else (None, None)
    return Wanted(after or 0, begin, upto, end, None if owner is None else _hash_of(owner))


def _place(option: str, text: str) -> tuple[int | None, datetime | None]:
    """A position or an instant."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(2**62)):
        return int(text), None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise errors.ConfigurationError(
            f"{option} is a position, or an instant with its zone: 2026-07-28T12:00:00Z"
        )
    return None, instant


def _hash_of(owner: str) -> bytes:
    try:
        if len(owner) == OWNER_HASH_CHARS:
            return bytes.fromhex(owner)
        issuer, subject, client = json.loads(owner)
        key = Owner(issuer, subject, client).key
    except (ValueError, TypeError):
        raise errors.ConfigurationError(
            "--owner is a JSON list of issuer, subject and client, or the hash that show tells"
        ) from None
    return hashlib.sha256(key.encode()).digest()[: OWNER_HASH_CHARS // 2]


def _asked(
    config: Path | None, database_url: str | None, ask: Callable[[Historian], Awaitable[T]]
) -> T:
    """What is found out over the store. Exits with the reason when nothing is."""
    _, chosen = store_of(config, database_url)

    async def asked(url: str) -> T:
        await wiring.upgrade(url)
        async with wiring.audit_reading(chosen, url) as reading:
            return await ask(reading.historian)

    try:
        with wiring.database(chosen, share=True) as url:
            return asyncio.run(asked(url))
    except (UnknownTask, NoSuchVersion, Unreadable) as error:
        typer.echo(f"outlast: {error}", err=True)
        raise typer.Exit(REFUSED) from None


def _write(text: bytes) -> None:
    """To standard output as it is. Whoever closed it wants no more."""
    try:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Python would try once more at its exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(REFUSED) from None


def _print(history: History, *, full: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    for fact in _facts(history):
        console.print(Text(fact))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("version", "when", "after", "what", "attempt", "worker", "bytes"):
        right = column in {"version", "after", "attempt", "bytes"}
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for step in history.steps:
        table.add_row(*_row(step, full=full))
    console.print(table)
    spent = [f"{DOING[doing]} {length(how_long)}" for doing, how_long in history.totals.items()]
    console.print(Text(", ".join(spent)))


def _facts(history: History) -> list[str]:
    opening, owner = history.opening, history.last("owner")
    whose = "unknown" if owner is None else f"hash {bytes(owner).hex()}"
    if opening is not None:
        whose = f"{opening.owner} ({whose})"
    state = str(history.last("status"))
    if history.steps[-1].row.is_past:
        state += ", past: clients are told of it no more"
    if history.is_erased:
        state += ", erased"
    facts = {
        "task": history.task_id,
        "tool": history.last("tool"),
        "owner": whose,
        "status": state,
    }
    return [f"{name:<7} {line(value)}" for name, value in facts.items()]


def _row(step: Step, *, full: bool) -> list[Text]:
    row, what = step.row, Text(line(sentence(step)))
    if step.told.payload is not None:
        payload: Any = dict(step.told.payload)
        shown = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        shown = plain(shown) if full else line(shown, PAYLOAD_CHARS_MAX)
        what.append(f"\n{shown}", style="dim")
    when = row.recorded_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    after = "" if step.since is None else f"+{length(step.since)}"
    attempt = "" if step.attempt is None else str(step.attempt)
    cells = (str(row.version), when, after, what, attempt, line(step.worker or ""))
    told = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
    return [*told, Text(f"{len(row.state):,}")]
