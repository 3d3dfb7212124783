"""The schema comes from numbered steps, each applied once, by one process at a time."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outlast.adapters import migrations
from outlast.domain import errors
from outlast.tests.support.databases import database

pytestmark = pytest.mark.anyio

STEPS = {
    "0001_first.sql": "CREATE TABLE outlast.first (id integer); SELECT pg_sleep(0.05);",
    "0002_second.sql": "ALTER TABLE outlast.first ADD name text DEFAULT '100 % {odd}';",
}


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    """A database that nobody has migrated."""
    with database(postgres_url) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in STEPS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.promise("migrations-own-the-schema")
async def test_of_upgrades_at_once_one_applies_each_step(empty_url: str, folder: Path) -> None:
    outcomes = await asyncio.gather(*(migrations.upgrade(empty_url, folder) for _ in range(4)))
    assert sorted(outcomes) == [[], [], [], ["0001_first", "0002_second"]]
    assert applied(empty_url) == [(1, "first"), (2, "second")]


@pytest.mark.promise("migrations-own-the-schema")
async def test_what_is_applied_is_not_applied_again(empty_url: str) -> None:
    names = [f"{step.number:04d}_{step.name}" for step in migrations.available()]
    assert await migrations.upgrade(empty_url) == names
    assert await migrations.upgrade(empty_url) == []


async def test_only_what_is_missing_is_applied(empty_url: str, folder: Path) -> None:
    await migrations.upgrade(empty_url, folder)
    (folder / "0003_third.sql").write_text("DROP TABLE outlast.first;")
    assert await migrations.upgrade(empty_url, folder) == ["0003_third"]


async def test_the_release_before_leaves_a_newer_schema_alone(empty_url: str, folder: Path) -> None:
    await migrations.upgrade(empty_url, folder)
    (folder / "0002_second.sql").unlink()
    assert await migrations.upgrade(empty_url, folder) == []


@pytest.mark.parametrize(
    "failing",
    [
        "SELECT 1/0;",
        "ALTER TABLE outlast.migrations ADD CHECK (number = 1);",  # done, and cannot be recorded
    ],
)
async def test_a_step_that_fails_leaves_nothing_and_holds_up_nobody(
    empty_url: str, folder: Path, failing: str
) -> None:
    (folder / "0002_second.sql").write_text("CREATE TABLE outlast.half (id integer); " + failing)
    with pytest.raises((psycopg.errors.DivisionByZero, psycopg.errors.CheckViolation)):
        await migrations.upgrade(empty_url, folder)
    assert applied(empty_url) == [(1, "first")]
    (folder / "0002_second.sql").write_text("CREATE TABLE outlast.half (id integer);")
    assert await migrations.upgrade(empty_url, folder) == ["0002_second"]


@pytest.mark.parametrize(
    "names",
    [
        ["0001_first.sql", "0003_third.sql"],
        ["0002_second.sql"],
        ["0001_first.sql", "0001_other.sql"],
        ["0000_zero.sql", "0001_first.sql"],
        ["1_first.sql"],
        ["0001-first.sql"],
        ["0001_First.sql"],
        ["first.sql"],
    ],
)
async def test_a_wrong_number_or_name_stops_the_upgrade(
    empty_url: str, tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(errors.ConfigurationError):
        await migrations.upgrade(empty_url, tmp_path)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT to_regnamespace('outlast')").fetchone() == (None,)


async def test_a_database_that_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreUnavailable):
        await migrations.upgrade(f"host={tmp_path} dbname=nowhere")


def applied(url: str) -> list[tuple[int, str]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT number, name FROM outlast.migrations ORDER BY number"
        ).fetchall()
