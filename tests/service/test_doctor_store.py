"""What `outlast doctor` says of a store: where each limit lies, and real databases past it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from outlast.domain.audit import Standing
from outlast.domain.diagnosing import Manners, StoreFacts
from outlast.domain.operating import Backlog, Load
from outlast.service import config as configuration, settings, wiring
from outlast.service.doctor import store
from outlast.service.doctor.finding import Finding, Level, ok, problem, warning, worst
from outlast.service.doctor.visit import Wanted, visit
from outlast.tests.support.databases import name_of
from outlast.tests.support.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.promise("doctor-names-what-to-change")]

WELL = {
    "archive_mode": "on",
    "autovacuum": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "statement_timeout": "0",
    "synchronous_commit": "on",
    "TimeZone": "UTC",
    "wal_level": "replica",
}
FACTS = StoreFacts(160_004, WELL, False, 100, [1, 2], [1, 2], 0.0, 0.01)


def levels(found: Sequence[Finding], check: str) -> list[str]:
    assert all(bool(one.change) == (one.level != "ok") for one in found)
    return [one.level for one in found if one.check == check]


def with_settings(**changed: str) -> StoreFacts:
    return replace(FACTS, settings={**WELL, **changed})


@pytest.mark.parametrize(
    ("version", "level"),
    [(130_022, "problem"), (139_999, "problem"), (140_000, "ok"), (180_001, "ok")],
)
def test_a_release_that_is_too_old_is_named(version: int, level: str):
    [found] = store.check_server(replace(FACTS, version=version))
    assert (found.check, found.level) == ("version", level)
    assert f"PostgreSQL {version // 10_000}." in found.says


def test_a_standby_is_named():
    found = list(store.check_server(replace(FACTS, is_standby=True)))
    assert levels(found, "primary") == ["problem"]
    assert levels(list(store.check_server(FACTS)), "primary") == []


@pytest.mark.parametrize(
    ("changed", "durability", "backup"),
    [
        ({}, ["ok"], ["ok"]),
        ({"fsync": "off"}, ["problem"], ["ok"]),
        ({"full_page_writes": "off"}, ["problem"], ["ok"]),
        ({"synchronous_commit": "off"}, ["problem"], ["ok"]),
        ({"synchronous_commit": "local"}, ["ok"], ["ok"]),
        ({"fsync": "off", "synchronous_commit": "off"}, ["problem", "problem"], ["ok"]),
        ({"wal_level": "minimal"}, ["ok"], ["warning"]),
        ({"wal_level": "logical"}, ["ok"], ["ok"]),
        ({"archive_mode": "off"}, ["ok"], ["warning"]),
        ({"archive_mode": "always"}, ["ok"], ["ok"]),
    ],
)
def test_each_setting_that_loses_something_is_named(
    changed: Mapping[str, str], durability: list[str], backup: list[str]
):
    found = list(store.check_durability(with_settings(**changed)))
    assert levels(found, "durability") == durability
    assert levels(found, "backup") == backup


@pytest.mark.parametrize(("room", "level"), [(44, "ok"), (43, "warning")])
def test_more_connections_than_there_is_room_for_are_named(room: int, level: str):
    found = list(store.check_settings(replace(FACTS, room=room), processes=4, each=11))
    assert levels(found, "connections") == [level]
    assert "44" in found[0].says


@pytest.mark.parametrize(
    ("changed", "check", "wanted"),
    [
        ({}, "autovacuum", ["ok"]),
        ({"autovacuum": "off"}, "autovacuum", ["warning"]),
        ({"statement_timeout": "0"}, "statement_timeout", []),
        ({"statement_timeout": "1"}, "statement_timeout", ["warning"]),
        ({"statement_timeout": "9999"}, "statement_timeout", ["warning"]),
        ({"statement_timeout": "10000"}, "statement_timeout", []),
        ({"TimeZone": "Asia/Kathmandu"}, "timezone", ["ok"]),
    ],
)
def test_settings_that_slow_or_end_are_named(
    changed: Mapping[str, str], check: str, wanted: list[str]
):
    found = list(store.check_settings(with_settings(**changed), 1, 11))
    assert levels(found, check) == wanted


@pytest.mark.parametrize(
    ("applied", "wanted", "level", "words"),
    [
        ([1, 2], [1, 2], "ok", "0002"),
        ([], [], "ok", "0000"),
        ([1], [1, 2, 3], "problem", "lacks 0002, 0003"),
        ([1, 2, 3], [1, 2], "warning", "0003"),
        ([1, 3], [1, 2], "problem", "lacks 0002"),
    ],
)
def test_the_steps_are_compared(applied: list[int], wanted: list[int], level: str, words: str):
    [found] = store.check_schema(replace(FACTS, applied=applied, wanted=wanted))
    assert (found.check, found.level) == ("schema", level)
    assert words in found.says


@pytest.mark.parametrize(
    ("ahead_s", "unsure_s", "level"),
    [
        (1.0, 0.0, "ok"),
        (1.1, 0.0, "warning"),
        (-1.1, 0.0, "warning"),
        (30.0, 0.0, "warning"),
        (30.1, 0.0, "problem"),
        (-30.1, 0.0, "problem"),
        # A slow answer says little of the clock.
        (1.1, 0.2, "ok"),
        (-30.1, 0.2, "warning"),
    ],
)
def test_clocks_may_be_apart_by_what_signatures_allow(ahead_s: float, unsure_s: float, level: str):
    [found] = store.check_clock(replace(FACTS, ahead_s=ahead_s, unsure_s=unsure_s))
    assert (found.check, found.level) == ("clock", level)
    if level != "ok":
        assert ("ahead of" in found.says, "behind" in found.says) == (ahead_s > 0, ahead_s < 0)


@pytest.mark.parametrize("lost", ["listen", "session", "prepared"])
def test_each_thing_that_a_pooler_takes_is_named_by_itself(lost: str):
    manners = Manners(lost != "listen", lost != "session", lost != "prepared")
    found = {one.check: one.level for one in store.check_connections(manners)}
    wanted = dict.fromkeys(("listen", "session", "prepared"), Level.OK) | {lost: Level.PROBLEM}
    assert found == wanted


def load(queued_s: float | None = None, late_s: float | None = None) -> Load:
    return Load(Backlog(3, 0, queued_s), Backlog(7, 0, late_s), 0, 0)


@pytest.mark.parametrize(
    ("queued_s", "level"),
    [(None, "ok"), (30.0, "ok"), (30.1, "warning"), (300.0, "warning"), (300.1, "problem")],
)
def test_a_queue_that_waits_is_named(queued_s: float | None, level: str):
    found = list(store.check_work(load(queued_s=queued_s)))
    assert (levels(found, "queue"), levels(found, "outbox")) == ([level], ["ok"])
    assert "3 tasks" in found[0].says


@pytest.mark.parametrize(("late_s", "level"), [(None, "ok"), (900.0, "ok"), (900.1, "warning")])
def test_deliveries_that_are_late_are_named(late_s: float | None, level: str):
    found = list(store.check_work(load(late_s=late_s)))
    assert (levels(found, "queue"), levels(found, "outbox")) == (["ok"], [level])
    assert "7 deliveries" in found[1].says


@pytest.mark.parametrize(
    ("head", "position", "size", "checkpointed", "age_s", "level"),
    [
        (0, 0, 0, 0, None, "ok"),
        (10_000, 0, 0, 0, None, "ok"),
        (10_001, 0, 0, 0, None, "warning"),
        (20_001, 10_001, 0, 0, None, "ok"),
        (9, 9, 9, 9, 10_000.0, "ok"),  # there was nothing to sign
        (9, 9, 9, 8, 300.0, "ok"),
        (9, 9, 9, 8, 300.1, "warning"),
        (9, 9, 9, 0, None, "warning"),  # the first leaf of all is signed at once
    ],
)
def test_a_tree_that_is_behind_or_unsigned_is_named(
    head: int, position: int, size: int, checkpointed: int, age_s: float | None, level: str
):
    standing = Standing(head, head, head, size, position, checkpointed, age_s)
    [found] = store.check_follower(standing)
    assert (found.check, found.level) == ("follower", level)
    never = size > 0 and age_s is None
    assert f"{head - position} positions" in found.says or never
    assert ("no checkpoint was ever signed" in found.says) == never


async def test_where_no_audit_tree_is_built_nobody_is_late_with_it(database_url: str):
    found = await seen(database_url, audit=False)
    assert levels(found, "audit_signing_key") == ["warning"]
    assert levels(found, "queue") == ["ok"]
    assert levels(found, "follower") == []


def test_the_worst_decides():
    fine, so_so, bad = ok("a", "b"), warning("a", "b", "c"), problem("a", "b", "c")
    assert worst([]) is worst([fine]) is Level.OK
    assert worst([fine, so_so, fine]) is Level.WARNING
    assert worst([bad, so_so]) is worst([fine, bad, fine]) is Level.PROBLEM


async def seen(url: str, path: Path | None = None, *, audit: bool = True) -> list[Finding]:
    """What a whole visit finds, in this process; there are no upstreams."""
    config = configuration.parse("", "defaults")
    chosen = settings.load({"database_url": url, "audit": audit}, config.server)
    asked = visit(chosen, config, Wanted(path, None, None, None), wiring.doctor(chosen, config))
    return [finding async for finding in asked]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def test_a_visit_looks_at_everything_in_this_order(tmp_path: Path, database_url: str):
    (tmp_path / "outlast.toml").touch(mode=0o600)
    found = await seen(database_url, tmp_path / "outlast.toml")
    assert [one.check for one in found] == [
        *("reach", "secret_key", "data_keys", "audit_signing_key", "files", "webhooks"),
        *("database", "version", "durability", "backup", "connections", "autovacuum", "timezone"),
        *("schema", "clock", "listen", "session", "prepared", "queue", "outbox", "follower"),
        "upstream",
    ]
    assert [one.check for one in found if one.level == "problem"] == ["upstream"]


async def test_what_a_real_database_is_told_is_found(database_url: str):
    name = name_of(database_url)
    execute(
        database_url,
        f"ALTER DATABASE {name} SET synchronous_commit = 'off'",
        f"ALTER DATABASE {name} SET statement_timeout = '9s'",
        f"ALTER DATABASE {name} SET timezone = 'Asia/Kathmandu'",
        f"ALTER DATABASE {name} CONNECTION LIMIT 10",
    )
    found = await seen(database_url)
    assert levels(found, "durability") == ["problem"]
    assert levels(found, "statement_timeout") == ["warning"]
    assert "9000 ms" in next(one.says for one in found if one.check == "statement_timeout")
    assert "Asia/Kathmandu" in next(one.says for one in found if one.check == "timezone")
    assert levels(found, "connections") == ["warning"]  # one process wants 11


async def test_what_waits_in_a_real_database_is_found(database_url: str):
    late = (
        "INSERT INTO outlast.run_queue (task_id, due, owner)"
        " VALUES ('waits', now() - interval '2 minutes', '\\x00')"
    )
    execute(database_url, late)
    found = await seen(database_url)
    assert levels(found, "queue") == ["warning"]
    [said] = [one.says for one in found if one.check == "queue"]
    assert re.fullmatch(r"1 tasks wait for a worker, the oldest for 1\d\d s\.", said)


async def test_a_schema_that_is_not_there_is_named_and_nothing_is_looked_for_in_it(
    postgres_url: str,
):
    found = await seen(postgres_url)
    assert levels(found, "schema") == ["problem"]
    assert {"queue", "outbox", "follower"}.isdisjoint({one.check for one in found})
    assert levels(found, "database") == ["ok"]


async def test_a_role_that_may_see_nothing_is_one_finding(database_url: str):
    execute(database_url, "REVOKE ALL ON SCHEMA outlast FROM CURRENT_USER")
    found = await seen(database_url)
    assert levels(found, "database") == ["problem"]
    [said] = [one.says for one in found if one.check == "database"]
    assert "permission denied" in said
    assert found[-1].check == "upstream"


async def test_a_database_that_goes_away_in_the_middle_is_one_finding(
    postgres_url: str, database_url: str
):
    name = name_of(database_url)
    config = configuration.parse("", "defaults")
    chosen = settings.load({"database_url": database_url}, config.server)
    asked = visit(chosen, config, Wanted(None, None, None, None), wiring.doctor(chosen, config))
    found: list[Finding] = []
    async for finding in asked:
        found.append(finding)
        if finding.check == "prepared":
            execute(
                postgres_url,
                f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
            )
    assert levels(found, "database") == ["ok", "problem"]
    assert found[-1].check == "upstream"


@pytest.mark.promise("doctor-tells-no-secret")
async def test_a_password_is_not_told_even_where_the_reason_has_the_same_word():
    found = await seen(f"postgresql://o:refused@127.0.0.1:{free_port()}/o")
    [bad] = [one for one in found if one.check == "database"]
    assert (bad.level, "127.0.0.1" in bad.says, "refused" in bad.says) == ("problem", True, False)


@pytest.mark.parametrize("denied", ["run_queue", "audit_leaves"])
async def test_a_role_that_may_not_see_the_work_is_one_finding(denied: str, database_url: str):
    execute(database_url, f"REVOKE ALL ON outlast.{denied} FROM CURRENT_USER")
    found = await seen(database_url)
    assert levels(found, "schema") == ["ok"]
    assert levels(found, "database") == ["ok", "problem"]
    [bad] = [one for one in found if one.check == "database" and one.change]
    assert f"permission denied for table {denied}" in bad.says
    assert found[-1].check == "upstream"


async def test_too_few_connections_are_named(database_url: str):
    execute(database_url, f"ALTER DATABASE {name_of(database_url)} CONNECTION LIMIT 1")
    found = await seen(database_url)
    assert levels(found, "database") == ["problem"]
    [said] = [one.says for one in found if one.check == "database"]
    assert "no more connections (SQLSTATE 53300): " in said
    assert "too many connections for database" in said
