"""/admin over a served Outlast: real PostgreSQL, real endpoints, the server's own sender."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from standardwebhooks import Webhook
from starlette.responses import Response

from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft
from outlast.tests.delivery.webhook_world import KEY, SECRET, Hook, hook, now
from outlast.tests.service.operators_world import (
    ADMIN_TOKEN,
    ALICE,
    ALICES_TOKEN,
    Operated,
    operated,
)

pytestmark = pytest.mark.anyio

UNKNOWN = "sub_" + "0" * 32


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Operated]:
    async with operated(tmp_path_factory.mktemp("operated"), module_database_url) as world:
        yield world


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


async def test_the_list_shows_what_a_subscription_is_and_how_it_goes(
    made: Operated, endpoint: Hook
):
    ours = await made.subscribed(endpoint)
    task_id = await ours.finished()
    await endpoint.got(1)
    told = await ours.settled()
    rows = (await made.get(limit=1000)).json()["webhooks"]
    (row,) = [row for row in rows if row["id"] == ours.id]
    assert row == {name: told[name] for name in row}
    assert {name: row[name] for name in ("url", "name", "arguments", "owner", "active")} == {
        "url": endpoint.url,
        "name": draft.TASK_FINISHED,
        "arguments": {"tools": [ours.tool]},
        "owner": [ALICE.issuer, ALICE.subject, ALICE.client],
        "active": True,
    }
    assert (row["waiting"], row["lastError"], row["failingSince"]) == (0, None, None)
    assert row["lastDeliveryAt"] is not None
    assert (told["behindSince"], told["nextAttemptAt"]) == (None, None)
    assert told["breaker"]["state"] == "closed"
    (attempt,) = (await made.get(f"/{ours.id}/attempts")).json()["attempts"]
    assert {name: attempt[name] for name in ("event", "task", "version", "number")} == {
        "event": endpoint.events[0].webhook_id,
        "task": task_id,
        "version": 3,
        "number": 1,
    }
    assert (attempt["outcome"], attempt["status"], attempt["reason"]) == ("delivered", "2xx", None)


async def test_the_list_comes_in_pages_and_is_narrowed(made: Operated, endpoint: Hook):
    for _ in range(3):
        await made.subscribed(endpoint)
    whole = (await made.get(limit=1000)).json()
    ids = [row["id"] for row in whole["webhooks"]]
    assert whole["next"] is None
    assert ids == sorted(ids)
    paged: list[str] = []
    after = ""
    while True:
        page = (await made.get(limit=2, after=after)).json()
        assert 0 < len(page["webhooks"]) <= 2
        paged += [row["id"] for row in page["webhooks"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert paged == ids
    alices = '["outlast:tokens", "alice", "default"]'
    assert [
        row["id"] for row in (await made.get(limit=1000, owner=alices)).json()["webhooks"]
    ] == ids
    nobodys = '["outlast:tokens", "nobody", "default"]'
    assert (await made.get(owner=nobodys)).json() == {"webhooks": [], "next": None}


async def ids_of(made: Operated, only: str) -> list[str]:
    return [row["id"] for row in (await made.get(limit=1000, only=only)).json()["webhooks"]]


async def test_a_gone_endpoint_is_suspended_and_resumed_from_where_it_stood(
    made: Operated, endpoint: Hook
):
    ours = await made.subscribed(endpoint)
    endpoint.behaves = lambda _: 410
    tasks = [await ours.finished()]
    shown = await made.until_shown(ours.id, active=False)
    tasks.append(await ours.finished())
    assert (shown["lastError"], shown["nextAttemptAt"]) == ("http_4xx", None)
    assert (await made.show(ours.id))["behindSince"] is not None
    assert ours.id in await ids_of(made, "suspended")
    assert ours.id not in await ids_of(made, "failing")
    refused = await made.post(f"/{ours.id}/resend", {"since": "1h"})
    assert refused.status_code == httpx2.codes.CONFLICT
    assert "resume" in refused.json()["error"]
    endpoint.posted.clear()
    endpoint.behaves = lambda _: 204
    resumed = await made.post(f"/{ours.id}/resume")
    assert (resumed.status_code, resumed.json()["active"]) == (httpx2.codes.OK, True)
    await endpoint.got(2)
    healthy = await made.until_shown(ours.id, waiting=0, behindSince=None)
    assert sorted(post.content["data"]["taskId"] for post in endpoint.events) == sorted(tasks)
    assert (healthy["lastError"], healthy["failingSince"]) == (None, None)
    assert ours.id not in await ids_of(made, "suspended")


async def test_an_endpoint_that_is_left_in_peace_is_tried_at_once_for_an_operator(
    made: Operated, endpoint: Hook
):
    ours = await made.subscribed(endpoint)
    endpoint.behaves = lambda _: 429
    await ours.finished()
    await endpoint.got(1)
    shown = await made.until_shown(ours.id, breaker="open", lastError="http_4xx")
    assert (shown["active"], shown["waiting"]) == (True, 1)
    assert shown["nextAttemptAt"] >= shown["breaker"]["openUntil"] > shown["failingSince"]
    assert shown["behindSince"] is not None
    assert ours.id in await ids_of(made, "failing")
    endpoint.behaves, endpoint.may_answer = lambda _: 204, asyncio.Event()
    assert (await made.post(f"/{ours.id}/resume")).json()["breaker"]["state"] == "half_open"
    endpoint.may_answer.set()  # not before: what is answered closes it again
    await endpoint.got(2)
    await made.until_shown(ours.id, breaker="closed", waiting=0)
    attempts = (await made.get(f"/{ours.id}/attempts")).json()["attempts"]
    told = [(each["number"], each["outcome"], each["status"]) for each in attempts]
    assert told == [(2, "delivered", "2xx"), (1, "retry", "4xx")]


@pytest.mark.parametrize("by", ["event", "task"])
async def test_one_event_is_sent_again_under_its_own_id(made: Operated, endpoint: Hook, by: str):
    ours = await made.subscribed(endpoint)
    first, second = await ours.finished(), await ours.finished()
    await endpoint.got(2)
    await ours.settled()
    wanted = next(post for post in endpoint.events if post.content["data"]["taskId"] == second)
    named: dict[str, Any] = {"event": wanted.webhook_id}
    if by == "task":
        named = {"task": second, "version": 3}
    assert (await made.post(f"/{ours.id}/resend", named)).json() == {"queued": 1}
    again = (await endpoint.got(3))[-1]
    await ours.settled()
    assert first != second
    assert len(endpoint.events) == 3
    assert (again.webhook_id, again.content["data"]) == (wanted.webhook_id, wanted.content["data"])
    Webhook(SECRET).verify(again.body, dict(again.headers))
    attempts = (await made.get(f"/{ours.id}/attempts", event=wanted.webhook_id)).json()["attempts"]
    assert [each["number"] for each in attempts] == [1, 1]


async def test_all_since_an_instant_or_of_the_last_hours_come_again(made: Operated, endpoint: Hook):
    ours = await made.subscribed(endpoint)
    await ours.finished()
    between = now()
    later = [await ours.finished(), await ours.finished()]
    await endpoint.got(3)
    await ours.settled()
    ids = ours.webhook_ids
    late_ids = {
        post.webhook_id for post in endpoint.events if post.content["data"]["taskId"] in later
    }
    endpoint.posted.clear()
    since = {"since": between.isoformat()}
    assert (await made.post(f"/{ours.id}/resend", since)).json() == {"queued": 2}
    await endpoint.got(2)
    await ours.settled()
    assert sorted(ours.webhook_ids) == sorted(late_ids)
    endpoint.posted.clear()
    assert (await made.post(f"/{ours.id}/resend", {"since": "2h"})).json() == {"queued": 3}
    await endpoint.got(3)
    await ours.settled()
    assert sorted(ours.webhook_ids) == sorted(ids)


async def test_what_waits_for_its_retry_is_brought_forward_and_not_doubled(
    made: Operated, endpoint: Hook
):
    ours = await made.subscribed(endpoint)
    endpoint.behaves = lambda _: 500
    await ours.finished()
    await endpoint.got(1)
    await made.until_shown(ours.id, lastError="http_5xx", waiting=1)
    # From here on it answers well, but not before both wishes have found it waiting.
    endpoint.behaves, endpoint.may_answer = lambda _: 204, asyncio.Event()
    for body in ({"since": "1h"}, {"event": endpoint.events[0].webhook_id}):
        assert (await made.post(f"/{ours.id}/resend", body)).status_code == httpx2.codes.OK
    assert (await made.show(ours.id))["waiting"] == 1
    endpoint.may_answer.set()
    await ours.settled()
    numbers = [
        each["number"] for each in (await made.get(f"/{ours.id}/attempts")).json()["attempts"]
    ]
    # Its own second try, after seconds, may have come before the wishes.
    assert numbers in ([2, 1], [3, 2, 1])
    assert len(set(ours.webhook_ids)) == 1
    assert len(endpoint.events) == len(numbers)


async def test_a_test_says_ok_or_why_not_and_changes_nothing(made: Operated, endpoint: Hook):
    async with hook() as dying:
        ours, theirs = await made.subscribed(endpoint), await made.subscribed(dying)
    before = await made.show(ours.id)
    asked = len(endpoint.challenges)
    said = await made.post(f"/{ours.id}/test")
    assert said.json() == {"id": ours.id, "url": endpoint.url, "ok": True, "reason": None}
    challenge = endpoint.challenges[-1]
    Webhook(SECRET).verify(challenge.body, dict(challenge.headers))
    assert challenge.headers["x-mcp-subscription-id"] == ours.id
    endpoint.echoes = False
    for _ in range(2):  # a refusal is not remembered against the next test
        said = (await made.post(f"/{ours.id}/test")).json()
        assert (said["ok"], said["reason"]) == (False, "challenge_failed")
    assert len(endpoint.challenges) == asked + 3
    said = (await made.post(f"/{theirs.id}/test")).json()
    assert (said["ok"], said["reason"]) == (False, "connection_refused")
    assert await made.show(ours.id) == before
    assert not endpoint.posted


async def test_no_answer_and_no_log_line_holds_a_secret(made: Operated, endpoint: Hook):
    ours = await made.subscribed(endpoint)
    await ours.finished()
    await endpoint.got(1)
    await ours.settled()
    replies = [await made.get(limit=1000)]
    replies += [await made.get(f"/{ours.id}{end}") for end in ("", "/attempts")]
    for deed, body in (("resend", {"since": "1h"}), ("resume", None), ("test", None)):
        replies.append(await made.post(f"/{ours.id}/{deed}", body))
    assert {reply.status_code for reply in replies} == {httpx2.codes.OK}
    secret = bytes(range(32))
    sealed = Vault(KEY).seal(secret, ours.id)
    spelled = [SECRET, SECRET.removeprefix("whsec_"), secret.hex(), sealed.hex(), ADMIN_TOKEN]
    spelled += [base64.b64encode(sealed).decode(), base64.urlsafe_b64encode(sealed).decode(), KEY]
    said = "".join(reply.text for reply in replies) + made.server.log.read_text()
    assert [word for word in spelled if word in said] == []


DOORS = [
    ("GET", ""),
    ("GET", f"/{UNKNOWN}"),
    ("GET", f"/{UNKNOWN}/attempts"),
    ("POST", f"/{UNKNOWN}/resend"),
    ("POST", f"/{UNKNOWN}/resume"),
    ("POST", f"/{UNKNOWN}/test"),
]


@pytest.mark.parametrize(("method", "path"), DOORS)
async def test_only_the_operators_token_opens_and_only_by_our_own_name(
    made: Operated, method: str, path: str
):
    url = made.url(path)
    ours = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    wrong = [
        f"Bearer {ADMIN_TOKEN}x",
        f"Bearer {ADMIN_TOKEN[:-1]}",
        f"Basic {ADMIN_TOKEN}",
        ADMIN_TOKEN,
        "Bearer",
        "Bearer \xff",
    ]
    bare = await made.http.request(method, url)
    assert (bare.status_code, bare.headers["www-authenticate"]) == (401, "Bearer")
    for authorization in wrong:
        headers = [(b"Authorization", authorization.encode("latin-1"))]
        reply = await made.http.request(method, url, headers=headers)
        assert reply.status_code == httpx2.codes.UNAUTHORIZED, authorization
        assert reply.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        assert reply.headers["cache-control"] == "no-store"
        assert list(reply.json()) == ["error"]
    hers = await made.http.request(method, url, headers={"Authorization": f"Bearer {ALICES_TOKEN}"})
    assert (hers.status_code, hers.headers["www-authenticate"], hers.json()) == (
        403,
        'Bearer error="insufficient_scope", scope="outlast:operate"',
        {"error": "This needs the scope outlast:operate"},
    )
    elsewhere = await made.http.request(method, url, headers={**ours, "Host": "evil.example"})
    assert elsewhere.status_code == httpx2.codes.MISDIRECTED_REQUEST
    origin = {**ours, "Origin": "https://evil.example"}
    foreign = await made.http.request(method, url, headers=origin)
    assert foreign.status_code == httpx2.codes.FORBIDDEN
    assert (await made.http.request(method, url, headers=ours)).status_code != 401


async def test_without_an_admin_token_only_the_scope_opens(
    made: Operated, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("plain")
    async with operated(folder, made.server.database_url, admin_token=None) as plain:
        for token, status in ((ADMIN_TOKEN, 401), (ALICES_TOKEN, 403), ("None", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            for method, path in DOORS:
                reply = await plain.http.request(method, plain.url(path), headers=headers)
                assert reply.status_code == status


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("", {"limit": "0"}, "limit"),
        ("", {"limit": "1001"}, "limit"),
        ("", {"only": "broken"}, "suspended"),
        ("", {"onyl": "failing"}, "onyl"),
        ("", {"owner": "alice"}, "owner"),
        ("", {"owner": "[" * 5000}, "owner"),
        ("", {"after": "\0"}, "after"),
        ("/{id}/attempts", {"event": "evt one"}, "event"),
        ("/{id}", {"secret": "true"}, "secret"),
    ],
)
async def test_a_wrong_query_is_refused_and_says_what_is_wrong(
    made: Operated, endpoint: Hook, path: str, query: dict[str, str], said: str
):
    ours = await made.subscribed(endpoint)
    reply = await made.get(path.format(id=ours.id), **query)
    assert reply.status_code == httpx2.codes.BAD_REQUEST
    assert said in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "JSON"),
        (b"[]", 400, ""),
        (b"", 400, "since"),
        (b'{"since": "2h", "event": "evt_1"}', 400, "give event"),
        (b'{"task": "t"}', 400, "version"),
        (b'{"task": "t", "version": true}', 400, "version"),
        (b'{"since": "soon"}', 400, "duration"),
        (b'{"since": "2026-01-31T09:00:00"}', 400, "zone"),
        (b'{"since": "0001-01-01T00:00:00+14:00"}', 400, "since"),
        (b'{"event": "evt\\u0000"}', 400, "event"),
        (b'{"event": "evt_unheard_3"}', 404, "task and version"),
        (b'{"task": "t\\u0000", "version": 3}', 404, "stored no more"),
        (b'{"since": "' + b"2" * 17_000 + b'"}', 413, "larger"),
    ],
)
async def test_a_wrong_body_is_refused_and_says_what_is_wrong(
    made: Operated, endpoint: Hook, body: bytes, status: int, said: str
):
    ours = await made.subscribed(endpoint)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
    url = made.url(f"/{ours.id}/resend")
    reply = await made.http.post(url, content=body, headers=headers)
    assert reply.status_code == status
    assert said in reply.json()["error"]
    if body:
        form = {**headers, "Content-Type": "text/plain"}
        reply = await made.http.post(url, content=body[:100], headers=form)
        assert reply.status_code == httpx2.codes.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize("name", [UNKNOWN, "sub_%00", "%F0%9F%8D%8B"])
async def test_an_unknown_subscription_is_not_found_by_any_road(made: Operated, name: str):
    replies = [await made.get(f"/{name}{end}") for end in ("", "/attempts")]
    replies += [await made.post(f"/{name}/{deed}") for deed in ("resume", "test")]
    for body in ({"since": "1h"}, {"event": "evt_1"}, {"task": "t", "version": 1}):
        replies.append(await made.post(f"/{name}/resend", body))
    for reply in replies:
        assert reply.status_code == httpx2.codes.NOT_FOUND
        assert "no such webhook subscription" in reply.json()["error"]


async def test_a_notice_of_ours_is_not_sent_again(made: Operated, endpoint: Hook):
    task_id = await made.publisher.opened(owner=ALICE.key)
    granted = await made.here.subscribe(endpoint.url, {"taskId": task_id}, owner=ALICE.key)
    endpoint.behaves = lambda post: Response(status_code=500 if "type" in post.content else 204)
    await made.publisher.ends(task_id)
    await endpoint.until(lambda seen: bool(seen.envelopes))
    path = f"/{granted['id']}"
    await made.until_shown(granted["id"], lastError="http_5xx")
    attempts = (await made.get(f"{path}/attempts")).json()["attempts"]
    notice = next(attempt for attempt in attempts if attempt["task"] is None)
    assert (notice["version"], notice["outcome"]) == (None, "retry")
    reply = await made.post(f"{path}/resend", {"event": notice["event"]})
    assert reply.status_code == httpx2.codes.CONFLICT
    endpoint.behaves = lambda _: 204
