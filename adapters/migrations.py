"""The schema, step by step: numbered SQL files, each applied once, in order, under one lock.

A step only adds, so that the code of the release before keeps working on the new schema. One that
begins with `-- concurrently` builds indexes while others write: no transaction may hold that, so
each of its statements stands for itself, and all of them may be run again after a failure.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from ..domain import errors
from . import failures, postgres

FOLDER = Path(__file__).parent.parent / "ops" / "migrations"
LOCK = (7710428, 0)  # two processes that start at once apply the steps one after the other

LOCK_PAUSE_S = 0.05
CONCURRENTLY = "-- concurrently\n"

_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")


@dataclass(frozen=True)
class Migration:
    """One numbered step."""

    number: int
    name: str
    text: str


def available(folder: Path = FOLDER) -> list[Migration]:
    """Every step that this release brings, in order.

    Raises ConfigurationError on a gap or a double number.
    """
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.match(path.name)
        if match is None:
            raise errors.ConfigurationError(f"{path.name} is not named like 0001_what_it_does.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise errors.ConfigurationError("the migrations are not numbered 1, 2, 3 …")
    return found


async def upgrade(url: str, folder: Path = FOLDER) -> list[str]:
    """Apply what is missing and return the names of the steps applied. Raises StoreUnavailable."""
    steps = available(folder)
    settings = postgres.settings_of(url)
    with failures.as_ours():
        # The lock is the session's, so that it ends with the connection, whatever happens.
        async with await psycopg.AsyncConnection.connect(autocommit=True, **settings) as connection:
            await _lock(connection)
            return await _apply_missing(connection, steps)


async def _lock(connection: psycopg.AsyncConnection) -> None:
    # Asked for again and again: who stood in line for it would be in a transaction, and whoever
    # builds an index under this lock waits for the end of every transaction.
    while True:
        cursor = await connection.execute("SELECT pg_try_advisory_lock(%s, %s)", LOCK)
        if await cursor.fetchone() == (True,):
            return
        await asyncio.sleep(LOCK_PAUSE_S)  # noqa: TID251 - a lock that is polled tells nobody


async def _apply_missing(connection: psycopg.AsyncConnection, steps: list[Migration]) -> list[str]:
    await connection.execute("CREATE SCHEMA IF NOT EXISTS outlast")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS outlast.migrations (number integer PRIMARY KEY,"
        " name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    cursor = await connection.execute("SELECT number FROM outlast.migrations")
    done = {row[0] for row in await cursor.fetchall()}
    applied: list[str] = []
    for step in steps:
        if step.number in done:
            continue
        if step.text.startswith(CONCURRENTLY):
            for statement in step.text.split(";\n"):
                await _run(connection, statement)
            await _note(connection, step)
        else:
            async with connection.transaction():
                await _run(connection, step.text)
                await _note(connection, step)
        applied.append(f"{step.number:04d}_{step.name}")
    return applied


async def _run(connection: psycopg.AsyncConnection, text: str) -> None:
    await connection.execute(sql.SQL(text))  # pyright: ignore[reportArgumentType]  # a file of this release, not input


async def _note(connection: psycopg.AsyncConnection, step: Migration) -> None:
    await connection.execute(
        "INSERT INTO outlast.migrations (number, name) VALUES (%s, %s)", (step.number, step.name)
    )
