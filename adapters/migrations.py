"""The schema, step by step: numbered SQL files, each applied once, in order, under one lock.

A step only adds, so that the code of the release before keeps working on the new schema.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from ..domain import errors
from . import failures, postgres

FOLDER = Path(__file__).parent.parent / "ops" / "migrations"
LOCK = (7710428, 0)  # two processes that start at once apply the steps one after the other

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
            await connection.execute("SELECT pg_advisory_lock(%s, %s)", LOCK)
            return await _apply_missing(connection, steps)


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
        async with connection.transaction():
            await connection.execute(sql.SQL(step.text))  # pyright: ignore[reportArgumentType]  # a file of this release, not input
            await connection.execute(
                "INSERT INTO outlast.migrations (number, name) VALUES (%s, %s)",
                (step.number, step.name),
            )
        applied.append(f"{step.number:04d}_{step.name}")
    return applied
