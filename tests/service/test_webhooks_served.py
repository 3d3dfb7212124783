"""Webhooks of the real `outlast serve`, asked for over HTTP as a client does."""

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from standardwebhooks import Webhook

from outlast.delivery.webhook.signing import PublicKey, verify_server
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.webhook_world import SECRET, Hook, hook
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_listen import ALICE, BOB, TOKENS, key_of
from outlast.tests.service.test_owners import token_file
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import publishing
from outlast.tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

SEED = bytes(range(32))
SIGNING_KEY = "whsk_" + base64.b64encode(SEED).decode()
SERVER = f'tokens_file = "tokens.toml"\nwebhook_signing_key = "{SIGNING_KEY}"'
FLAGS = ["--no-work"]
NOTICE_S_MAX = 20.0
NOT_PUBLIC = (
    "http://hooks.example.com/a",
    "https://127.0.0.1/a",
    "https://localhost/a",
    "https://[::ffff:169.254.169.254]/a",
    "https://hooks.example.com:8443/a",
    "https://user@hooks.example.com/a",
)


def config(events: str = "development = true") -> str:
    return f"{desk_config(SERVER)}[events]\n{events}\n"


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokens.toml").write_text(token_file(TOKENS))
    return tmp_path


def delivery(url: str) -> dict[str, str]:
    return {"mode": "webhook", "url": url, "secret": SECRET}


async def subscribed(client: RawClient, url: str) -> dict[str, str]:
    asked = {"name": "task.finished", "delivery": delivery(url)}
    return (await client.request("events/subscribe", asked)).result


async def finished(server: Serving, token: str = ALICE) -> str:
    with publishing(server.database_url) as publisher:
        task_id = await publisher.opened(owner=key_of(token))
        await publisher.ends(task_id)
    return task_id


async def public_keys(server: Serving) -> list[PublicKey]:
    """What the server's own origin says that its keys are."""
    async with http_client() as http:
        page = await http.get(f"{server.base_url}/.well-known/mcp-webhook-jwks.json")
    keys = page.raise_for_status().json()["keys"]
    return [PublicKey(base64.urlsafe_b64decode(key["x"] + "=")) for key in keys]


@pytest.mark.promise("webhooks-are-standard")
async def test_a_subscription_made_over_http_outlives_the_server_that_took_it(
    folder: Path, database_url: str, endpoint: Hook
):
    async with serving(folder, config(), database_url, FLAGS) as first, http_client() as http:
        granted = await subscribed(RawClient(first.url, http, ALICE), endpoint.url)
        assert granted["id"].startswith("sub_")
    async with serving(folder, config(), database_url, FLAGS) as second:
        await finished(second, BOB)
        ours = await finished(second)
        (post,) = await endpoint.got(1)
        keys = await public_keys(second)
    assert post.content["data"]["taskId"] == ours
    Webhook(SECRET).verify(post.body, dict(post.headers))
    verify_server(keys, post.headers, post.body, datetime.now(UTC))
    assert post.headers["x-mcp-subscription-id"] == granted["id"]
    assert len(endpoint.challenges) == 1


@pytest.mark.promise("webhook-secrets-stay-inside")
async def test_neither_the_store_nor_the_log_holds_a_secret(
    folder: Path, database_url: str, endpoint: Hook
):
    async with serving(folder, config(), database_url, FLAGS) as server, http_client() as http:
        client = RawClient(server.url, http, ALICE)
        await subscribed(client, endpoint.url)
        await finished(server)
        await endpoint.got(1)
        answers = [await client.request("events/list"), await client.request("events/poll")]
    secret = base64.b64decode(SECRET.removeprefix("whsec_"))
    spellings = [SECRET, SECRET.removeprefix("whsec_").rstrip("="), secret.hex()]
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT s::text FROM outlast.webhook_subscriptions s").fetchall()
    told = "\n".join(
        [server.log.read_text(), json.dumps(rows), *(str(answer.content) for answer in answers)]
    )
    assert rows
    assert not [spelling for spelling in spellings if spelling in told]


@pytest.mark.promise("webhooks-go-to-public-addresses")
async def test_without_the_development_switch_only_public_https_is_taken(
    folder: Path, database_url: str
):
    text = config("development = false")
    async with serving(folder, text, database_url, FLAGS) as server, http_client() as http:
        client = RawClient(server.url, http, ALICE)
        for url in NOT_PUBLIC:
            asked = {"name": "task.finished", "delivery": delivery(url)}
            refused = await client.request("events/subscribe", asked)
            assert refused.error["code"] == -32602, url


async def test_with_webhooks_switched_off_events_are_still_there(folder: Path, database_url: str):
    text = config("webhooks = false")
    async with serving(folder, text, database_url, FLAGS) as server, http_client() as http:
        client = RawClient(server.url, http, ALICE)
        kinds = (await client.request("events/list")).result["events"]
        asked = {"name": "task.finished", "delivery": delivery("https://hooks.example.com/a")}
        refused = await client.request("events/subscribe", asked)
    assert {tuple(kind["delivery"]) for kind in kinds} == {("poll", "push")}
    assert refused.error["code"] == -32014


async def test_an_owner_hears_of_a_suspended_webhook_where_it_polls(
    folder: Path, database_url: str, endpoint: Hook
):
    endpoint.behaves = lambda _: 410
    async with serving(folder, config(), database_url, FLAGS) as server, http_client() as http:
        client = RawClient(server.url, http, ALICE)
        granted = await subscribed(client, endpoint.url)
        await finished(server)
        await endpoint.got(1)

        found: list[dict[str, str]] = []

        async def is_told() -> bool:
            polled = (await client.request("events/poll", {"name": "task.updated"})).result
            found[:] = polled["_meta"].get("dev.outlast/suspended", [])
            return bool(found)

        await until(is_told, NOTICE_S_MAX)
        others = (await RawClient(server.url, http, BOB).request("events/list")).result
    assert [(each["id"], each["lastError"]) for each in found] == [(granted["id"], "http_4xx")]
    assert "dev.outlast/suspended" not in others["_meta"]
