"""What an endpoint may say and do, and what the client makes of it. Real sockets, on loopback."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import anyio
import pytest
from hypothesis import given, strategies as st

from outlast.delivery.webhook.exchange import Limits, Outcome, WebhookClient
from outlast.delivery.webhook.reply import RETRY_AFTER_S_MAX, retry_after_s
from outlast.tests.delivery.exchanges import (
    BODY,
    HEADERS,
    NOW,
    PATIENCE_S,
    at,
    dev_client,
    outcome_of,
    post,
    seen,
    silent,
)
from outlast.tests.delivery.internet import (
    OK,
    Endpoint,
    endpoint,
    reply,
    saying,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[WebhookClient]:
    async with dev_client() as made:
        yield made


# What is sent


async def test_a_post_brings_the_bytes_the_path_and_the_headers_as_they_are(client):
    async with endpoint(saying(OK)) as served:
        outcome = await post(client, at(served, "/a%2Fb/../c?x=1&y"))
        [exchange] = served.seen
    assert seen(outcome) == (200, None)
    assert outcome.attempted
    assert exchange.head.startswith(b"POST /a%2Fb/../c?x=1&y HTTP/1.1\r\n")
    assert exchange.body == BODY
    wanted = {
        "host": f"127.0.0.1:{served.port}",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
        "webhook-id": "evt_1",
        "webhook-signature": "v1,aaaa v1,bbbb",
        "cookie": None,
        "authorization": None,
    }
    assert {name: exchange.header(name) for name in wanted} == wanted


async def test_what_belongs_to_the_exchange_is_not_the_callers_to_say(client):
    mine = {"Host": "b.example", "content-type": "text/html", "ACCEPT-ENCODING": "gzip"}
    mine |= {"Content-Length": "1", "Transfer-Encoding": "chunked", "Cookie": "a=b"}
    async with endpoint(saying(OK)) as served:
        await client.post(at(served), BODY, {**mine, "X-Kept": "yes"})
        [exchange] = served.seen
    assert exchange.body == BODY
    assert exchange.head.lower().count(b"host:") == 1
    assert exchange.header("host") == f"127.0.0.1:{served.port}"
    assert exchange.header("content-type") == "application/json"
    assert exchange.header("accept-encoding") == "identity"
    assert exchange.header("transfer-encoding") is None
    assert exchange.header("cookie") is None
    assert exchange.header("x-kept") == "yes"


@pytest.mark.parametrize(
    ("name", "value"), [("a b", "x"), ("", "x"), ("a", "x\r\nb: y"), ("a", "ü"), ("a", "")]
)
async def test_a_header_of_ours_that_cannot_be_sent_is_our_error(client, name: str, value: str):
    with pytest.raises(ValueError, match="cannot be sent"):
        await client.post("https://a.example/", BODY, {name: value})


async def test_a_cookie_is_not_brought_back(client):
    async with endpoint(saying(reply(200, "Set-Cookie: session=abc; Path=/"))) as served:
        await post(client, at(served))
        await post(client, at(served))
    assert [exchange.header("cookie") for exchange in served.seen] == [None, None]


async def test_a_proxy_in_the_environment_is_not_used(monkeypatch):
    async with endpoint(saying(OK)) as proxy, endpoint(saying(OK)) as served:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with dev_client() as client:
            assert seen(await post(client, at(served))) == (200, None)
    assert (len(served.seen), proxy.connections) == (1, 0)


# What an answer means


@pytest.mark.parametrize(
    ("status", "category"),
    [
        *((status, None) for status in (200, 201, 202, 299)),
        *((status, "http_4xx") for status in (300, 301, 302, 307, 308, 399)),
        *((status, "http_4xx") for status in (400, 401, 404, 410, 413, 425, 429, 499)),
        *((status, "http_5xx") for status in (500, 502, 503, 504, 599, 999)),
    ],
)
async def test_a_status_has_its_category(client, status: int, category: str | None):
    async with endpoint(saying(reply(status, body=b"why"))) as served:
        outcome = await post(client, at(served))
    assert seen(outcome) == (status, category)
    assert (outcome.attempted, outcome.body_head) == (True, b"")


async def test_no_content_and_an_early_hint_are_understood(client):
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    async with endpoint(saying(early)) as served:
        assert [seen(await post(client, at(served))) for _ in range(2)] == [(204, None)] * 2
    assert served.connections == 1


async def test_a_switch_of_protocols_is_no_acknowledgement():
    switch = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    assert (await outcome_of(saying(switch))).category is not None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirection_is_not_followed(client, status: int):
    async with endpoint(saying(OK)) as secret:
        away = reply(status, f"Location: http://127.0.0.1:{secret.port}/admin")
        async with endpoint(saying(away)) as served:
            assert seen(await post(client, at(served))) == (status, "http_4xx")
    assert (len(served.seen), secret.connections) == (1, 0)


def http_date(instant: datetime) -> str:
    return instant.strftime("%a, %d %b %Y %H:%M:%S GMT")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("00060", 60),
        ("99999999999999999999", RETRY_AFTER_S_MAX),
        (http_date(NOW + timedelta(seconds=90)), 90),
        (http_date(NOW - timedelta(days=400)), 0),
        (http_date(NOW + timedelta(days=400)), RETRY_AFTER_S_MAX),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_S_MAX),
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
        ("Sun, 29 Nov 2026 13:00:00 +0100", 0),
        ("Sun, 29 Nov 2026 12:00:07", 7),
        ("9" * 5_000, None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("soon", None),
        ("NaN", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_heard_within_bounds(
    client, status: int, value: str, seconds: int | None
):
    async with endpoint(saying(reply(status, f"Retry-After: {value}"))) as served:
        outcome = await post(client, at(served))
    assert (outcome.status, outcome.retry_after_s) == (status, seconds)


async def test_the_first_retry_after_counts_and_none_after_an_acknowledgement(client):
    twice = ("retry-after: 7", "Retry-After: 70")
    async with (
        endpoint(saying(reply(429, *twice))) as busy,
        endpoint(saying(reply(200, *twice))) as fine,
    ):
        assert (await post(client, at(busy))).retry_after_s == 7
        assert (await post(client, at(fine))).retry_after_s is None


@given(st.text(max_size=80) | st.from_regex(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} .*"))
def test_no_retry_after_brings_down_the_sender(value: str):
    seconds = retry_after_s(value, NOW)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_S_MAX


# Many at once


async def until_asked(served: Endpoint, times: int) -> None:
    with anyio.fail_after(PATIENCE_S):
        while len(served.seen) < times:
            await anyio.lowlevel.checkpoint()


async def test_one_connection_serves_one_post_after_another(client):
    long = b"thanks" * 2_500  # together more than one reply may have
    async with endpoint(saying(reply(200, body=long))) as served:
        for _ in range(5):
            assert seen(await post(client, at(served))) == (200, None)
    assert (len(served.seen), served.connections) == (5, 1)


async def test_a_connection_that_the_endpoint_closed_is_replaced(client):
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with endpoint(saying(closing)) as served:
        assert [seen(await post(client, at(served))) for _ in range(2)] == [(200, None)] * 2
    assert served.connections == 2


async def test_fifty_posts_at_once_share_a_few_connections():
    outcomes: list[Outcome] = []
    async with (
        endpoint(saying(OK)) as served,
        dev_client(Limits(per_host=4, place_s=PATIENCE_S)) as client,
    ):

        async def one() -> None:
            outcomes.append(await post(client, at(served)))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
    assert [seen(outcome) for outcome in outcomes] == [(200, None)] * 50
    assert len(served.seen) == 50
    assert served.open_most <= 4
    assert served.connections <= 4


async def test_a_dead_endpoint_delays_nobody_but_itself():
    limits = Limits(per_host=2, in_all=4, place_s=8)
    dead, outcomes = [], []

    async def to_the_dead(client: WebhookClient, served: Endpoint) -> None:
        dead.append(await post(client, at(served)))

    async with (
        endpoint(silent) as grave,
        endpoint(saying(OK)) as served,
        dev_client(limits) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(20):
            tasks.start_soon(to_the_dead, client, grave)
        await until_asked(grave, 2)
        outcomes.append(await post(client, at(served)))
        assert dead == []  # while all of them were still waiting
        with anyio.fail_after(PATIENCE_S):
            while len(dead) < 18:  # all that wait in vain; two still hang on to the dead
                outcomes.append(await post(client, at(served)))
        assert {seen(outcome) for outcome in outcomes} == {(200, None)}
        assert set(dead) == {Outcome(None, None, attempted=False)}
        assert grave.connections == 2
        tasks.cancel_scope.cancel()


async def test_a_full_house_makes_room_by_closing_what_is_idle():
    async with (
        endpoint(saying(OK)) as one,
        endpoint(saying(OK)) as other,
        dev_client(Limits(in_all=1)) as client,
    ):
        for served in (one, other, one):
            assert seen(await post(client, at(served))) == (200, None)


async def test_a_post_that_is_cancelled_gives_its_place_back():
    async with (
        endpoint(silent) as grave,
        dev_client(Limits(per_host=1, in_all=1, place_s=PATIENCE_S)) as client,
    ):
        for times in (1, 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.post, at(grave), BODY, HEADERS)
                await until_asked(grave, times)
                tasks.cancel_scope.cancel()


def test_the_limits_are_those_that_were_promised():
    assert Limits() == Limits(connect_s=5, total_s=15, place_s=5, per_host=8, in_all=200)
