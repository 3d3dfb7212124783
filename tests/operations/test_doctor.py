"""`outlast doctor` on real databases and real misconfigurations."""

import base64
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import pytest

from outlast.domain.diagnosing import StoreFacts
from outlast.service.doctor import store
from outlast.tests.delivery.webhook_world import hook
from outlast.tests.operations import clusters
from outlast.tests.operations.doctoring import (
    UPSTREAMS,
    Visit,
    answering,
    discovered,
    open_folder,
    visit,
)
from outlast.tests.support.databases import database
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import serving

pytestmark = pytest.mark.anyio

KEY = f"k1:{base64.urlsafe_b64encode(bytes(range(32))).decode()}"
SECRET = "a secret that is long enough to be one"
GOOD = {"secret_key": SECRET, "data_keys": KEY}


def test_a_good_deployment_has_no_problem(tmp_path: Path, database_url: str):
    seen = visit(tmp_path, database_url, **GOOD)
    assert (seen.code, seen.bad(), seen.err) == (0, set(), "")
    for check in ("database", "version", "schema", "clock", "listen", "session", "prepared"):
        assert seen.of(check) == ["ok"], check
    for check in ("upstream ci", "queue", "outbox", "follower", "connections", "webhooks"):
        assert seen.of(check) == ["ok"], check
    assert all(one["change"] for one in seen.findings if one["level"] != "ok")


def test_the_text_says_the_same_for_people(tmp_path: Path, database_url: str):
    seen = visit(tmp_path, database_url, flags=())
    assert seen.code == 0
    assert "WARNING  data_keys" in seen.out
    assert "-> Run `outlast keys new`" in seen.out
    assert re.fullmatch(r"\d+ findings; problems: 0, warnings: [1-9]", seen.out.splitlines()[-1])


def test_the_text_counts_problems_too(tmp_path: Path):
    seen = visit(tmp_path, f"postgresql://o@127.0.0.1:{free_port()}/o", flags=())
    assert seen.code == 1
    assert "PROBLEM  database" in seen.out
    assert re.fullmatch(r"\d+ findings; problems: 1, warnings: 2", seen.out.splitlines()[-1])


def test_where_there_is_no_store_none_is_made(tmp_path: Path):
    seen = visit(tmp_path, None)
    assert seen.code == 1
    [only] = seen.findings
    assert (only["check"], "there is no store" in only["says"]) == ("configuration", True)
    assert not (tmp_path / ".outlast").exists()


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose settings lose what was acknowledged, and much else."""
    folder = tmp_path_factory.mktemp("careless")
    clusters.make(folder / "data")
    settings = {
        "fsync": "off",
        "synchronous_commit": "off",
        "autovacuum": "off",
        "max_connections": "12",
        "wal_level": "minimal",
        "max_wal_senders": "0",
    }
    with clusters.running(folder / "data", settings) as url:
        yield url


@pytest.mark.promise("doctor-names-what-to-change")
def test_settings_that_lose_tasks_are_named(tmp_path: Path, careless: str):
    seen = visit(tmp_path, careless, processes="4")
    assert seen.code == 1
    assert seen.of("durability") == ["problem", "problem"]
    for check in ("autovacuum", "connections", "backup"):
        assert seen.of(check) == ["warning"], check
    assert seen.of("schema") == ["problem"]
    [schema] = [one for one in seen.findings if one["check"] == "schema"]
    assert "0001" in schema["says"]
    assert "outlast db upgrade" in schema["change"]


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_standby_is_named_and_not_listened_to(tmp_path: Path):
    clusters.make(tmp_path / "data")
    (tmp_path / "data" / "standby.signal").touch()
    with clusters.running(tmp_path / "data") as url:
        seen = visit(tmp_path, url)
    assert (seen.code, seen.of("primary"), seen.of("listen")) == (1, ["problem"], [])
    assert seen.of("upstream ci") == ["ok"]
    assert "Traceback" not in seen.err


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_schema_that_lacks_a_step_or_has_one_more_is_named(tmp_path: Path, database_url: str):
    newer = "INSERT INTO outlast.migrations (number, name) VALUES (9999, 'later')"
    clusters.execute(database_url, newer)
    assert visit(tmp_path, database_url).of("schema") == ["warning"]
    clusters.execute(database_url, "DELETE FROM outlast.migrations WHERE number IN (3, 9999)")
    seen = visit(tmp_path, database_url)
    assert seen.of("schema") == ["problem"]


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_task_that_nobody_takes_is_named(tmp_path: Path, database_url: str):
    statement = (
        "INSERT INTO outlast.run_queue (task_id, due, owner)"
        " VALUES ('waits', now() - interval '10 minutes', '\\x00')"
    )
    clusters.execute(database_url, statement)
    seen = visit(tmp_path, database_url)
    assert seen.of("queue") == ["problem"]
    assert seen.code == 1


@pytest.mark.promise("doctor-names-what-to-change")
@pytest.mark.parametrize(("ahead_s", "level"), [(0.5, "ok"), (-5.0, "warning"), (400.0, "problem")])
def test_a_clock_that_goes_wrong_is_named(ahead_s: float, level: str):
    facts = StoreFacts(160000, {}, False, 100, [1], [1], ahead_s, 0.01)
    assert [one.level for one in store.check_clock(facts)] == [level]


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_database_that_is_away_is_one_finding_and_the_rest_goes_on(tmp_path: Path):
    port = free_port()
    seen = visit(tmp_path, f"postgresql://o:pa55word@127.0.0.1:{port}/o")
    assert (seen.code, seen.bad()) == (1, {"database"})
    assert seen.of("upstream ci") == ["ok"]


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path):
    seen = visit(tmp_path, None, "[server]\nport = 1\nprot = 2\n")
    assert seen.code == 1
    [only] = seen.findings
    assert only["check"] == "configuration"
    assert "doctor.toml:3" in only["says"]


@pytest.mark.promise("doctor-names-what-to-change")
def test_what_is_missing_beyond_loopback_is_named(tmp_path: Path, database_url: str):
    config = f'[server]\nhost = "0.0.0.0"\nencrypt = "off"\nallow_anonymous = true\n{UPSTREAMS}'
    seen = visit(tmp_path, database_url, config + "[events]\ndevelopment = true\n")
    assert seen.of("reach") == ["warning", "warning"]
    for check in ("secret_key", "data_keys", "admin_token", "audit_signing_key", "webhooks"):
        assert seen.of(check) == ["warning"], check


@pytest.mark.promise("doctor-names-what-to-change")
def test_upstreams_that_are_down_are_named_one_by_one(tmp_path: Path, database_url: str):
    config = (
        f"{UPSTREAMS}[upstreams.gone]\nurl = 'http://127.0.0.1:{free_port()}/mcp'\n"
        f"[upstreams.dies]\ncommand = ['{sys.executable}', '-c', 'raise SystemExit']\n"
    )
    seen = visit(tmp_path, database_url, config)
    assert seen.bad() == {"upstream gone", "upstream dies"}
    assert seen.of("upstream ci") == ["ok"]


@pytest.mark.promise("doctor-names-what-to-change")
def test_a_file_with_secrets_that_everybody_may_read_is_named(tmp_path: Path, database_url: str):
    with open_folder() as folder:
        key = folder / "key"
        key.write_text(SECRET)
        key.chmod(0o444)
        seen = visit(tmp_path, database_url, secret_key_file=str(key))
        [bad] = [one for one in seen.findings if one["level"] == "problem"]
        assert (bad["check"], bad["change"]) == ("files", f"Run: chmod o= {key}")
        folder.chmod(0o700)  # as docs/deployment.md has it
        assert visit(tmp_path, database_url, secret_key_file=str(key)).bad() == set()


@pytest.mark.promise("doctor-names-what-to-change")
async def test_a_webhook_is_tried_under_the_rules_of_webhooks(tmp_path: Path, database_url: str):
    async def tried(url: str, config: str = UPSTREAMS) -> dict[str, str]:
        flags = ("--json", "--webhook", url)
        seen = await anyio.to_thread.run_sync(visit, tmp_path, database_url, config, flags)
        [one] = [one for one in seen.findings if one["check"] == "webhook probe"]
        return one

    async with hook() as endpoint:
        assert (await tried(endpoint.url))["level"] == "problem"
        assert endpoint.challenges == []  # refused here, and nothing was sent
        allowed = UPSTREAMS + "[events]\ndevelopment = true\n"
        assert (await tried(endpoint.url, allowed))["level"] == "ok"
        assert len(endpoint.challenges) == 1


@pytest.mark.promise("doctor-names-what-to-change")
async def test_a_running_service_is_asked(tmp_path: Path, database_url: str):
    async with serving(tmp_path, UPSTREAMS, database_url) as server:
        flags = ("--json", "--url", server.base_url)
        seen = await anyio.to_thread.run_sync(visit, tmp_path, database_url, UPSTREAMS, flags)
    for check in ("health", "ready", "endpoint"):
        assert seen.of(check) == ["ok"], check
    assert seen.code == 0
    flags = ("--json", "--url", f"http://127.0.0.1:{free_port()}")
    gone = await anyio.to_thread.run_sync(visit, tmp_path, database_url, UPSTREAMS, flags)
    assert gone.bad() == {"service"}


async def test_the_token_of_the_environment_is_shown_to_the_service(
    tmp_path: Path, database_url: str
):
    async with answering(mcp=discovered("0.0.9")) as (url, asked):

        def visited() -> Visit:
            return visit(tmp_path, database_url, flags=("--json", "--url", url), token="a token")

        seen = await anyio.to_thread.run_sync(visited)
    assert (seen.code, seen.of("endpoint")) == (0, ["warning"])
    shown = {request.url.path: request.headers.get("authorization") for request in asked}
    assert shown["/mcp"] == "Bearer a token"


@pytest.mark.promise("doctor-tells-no-secret")
def test_no_secret_is_printed_whatever_is_wrong(tmp_path: Path, postgres_url: str):
    token, audit = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    env = {**GOOD, "admin_token": token, "audit_signing_key": audit, "token": token}
    config = f"{UPSTREAMS}env = {{ WORD = 'unspeakable' }}\n"
    said = ""
    with database(postgres_url) as url:
        for store_url in (
            url,
            "postgresql://o:unspeakable@127.0.0.1:1/o",
            "postgresql://o:unspeakable@127.0.0.1:port/o",
            "unspeakable",
        ):
            for flags in ((), ("--json",)):
                asked = (*flags, "--url", f"http://127.0.0.1:{free_port()}")
                seen = visit(tmp_path, store_url, config, asked, **env)
                assert "Traceback" not in seen.err
                said += seen.out + seen.err
    for secret in (SECRET, KEY, KEY.partition(":")[2], token, audit, "unspeakable"):
        assert secret not in said
