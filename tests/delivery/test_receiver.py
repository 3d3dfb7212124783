"""The receiver over real HTTP: what it takes and what it refuses."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook import receiver as module, signing
from outlast.delivery.webhook.keyring import EXPECTED_MAX
from outlast.delivery.webhook.receiver import Received, Receiver
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.posting import event, now, served, signed
from outlast.tests.delivery.receiving import (
    NEW_SECRET,
    PATIENCE_S,
    SECRET,
    STRANGER,
    Half,
    receiving,
)

pytestmark = pytest.mark.anyio

CHALLENGE = {"type": "verification", "challenge": "nonce-1"}


@pytest.fixture
async def half(tmp_path: Path) -> AsyncGenerator[Half]:
    async with receiving(tmp_path) as served_half:
        yield served_half


# What is taken


async def test_an_event_is_stored_acknowledged_and_handed_on(half: Half):
    answer = await half.post(event(1, "c1"))
    assert (answer.status_code, answer.content) == (204, b"")
    assert await half.inbox.cursor_of("sub_1") == "c1"
    assert await half.take(1) == [Received("sub_1", "evt_1", None, "c1", event(1, "c1"))]


async def test_a_waiting_reader_is_woken_by_what_comes(half: Half, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "RECHECK_S", 1000.0)
    changes = half.receiver.received()
    found: list[str] = []

    async def read() -> None:
        found.append((await anext(changes)).webhook_id)

    with anyio.fail_after(PATIENCE_S):
        for number in (1, 2, 3):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await half.post(event(number), f"evt_{number}")
    await changes.aclose()
    assert found == ["evt_1", "evt_2", "evt_3"]


async def test_a_reader_finds_what_another_process_stored(
    half: Half, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "RECHECK_S", 0.01)
    changes = half.receiver.received()

    async def read() -> None:
        assert (await anext(changes)).webhook_id == "evt_1"

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            other = await SqliteInbox.open(half.inbox.path, now)
            await other.store("sub_1", "evt_1", None, b'{"eventId":"evt_1","name":"n"}')
            await other.close()
    await changes.aclose()


async def test_what_comes_again_is_acknowledged_and_not_handed_on_again(half: Half):
    for cursor in ("c1", "c2"):
        assert (await half.post(event(1, cursor))).status_code == 204
    await half.post(event(2, "c3"), "evt_2")
    assert [received.webhook_id for received in await half.take(2)] == ["evt_1", "evt_2"]
    assert (await half.post(event(1))).status_code == 204
    assert await half.waiting() == []
    assert await half.inbox.cursor_of("sub_1") == "c3"


async def test_the_same_id_of_another_subscription_is_another_delivery(half: Half):
    half.keyring.bind("sub_2", NEW_SECRET)
    assert (await half.post(event(1))).status_code == 204
    other = await half.post(event(1), subscription_id="sub_2", secret=NEW_SECRET)
    assert other.status_code == 204
    assert [received.subscription_id for received in await half.take(2)] == ["sub_1", "sub_2"]


async def test_gap_and_terminated_are_handed_on_and_a_gap_moves_the_cursor(half: Half):
    gap = {"type": "gap", "cursor": "c9"}
    error = {"code": -32012, "message": "Forbidden", "data": {"reason": "Access revoked"}}
    terminated = {"type": "terminated", "error": error}
    later = {"type": "of-a-later-draft", "news": 1}
    assert (await half.post(gap, "msg_gap_1")).status_code == 204
    assert await half.inbox.cursor_of("sub_1") == "c9"
    assert (await half.post(terminated, "msg_terminated_1")).status_code == 204
    assert (await half.post(later, "msg_later_1")).status_code == 204
    assert await half.inbox.cursor_of("sub_1") == "c9"
    assert await half.take(3) == [
        Received("sub_1", "msg_gap_1", "gap", "c9", gap),
        Received("sub_1", "msg_terminated_1", "terminated", None, terminated),
        Received("sub_1", "msg_later_1", "of-a-later-draft", None, later),
    ]


async def test_an_event_without_replay_leaves_the_cursor(half: Half):
    await half.post(event(1, "c1"))
    await half.post(event(2, None), "evt_2")
    assert await half.inbox.cursor_of("sub_1") == "c1"


async def test_a_reader_that_stops_in_the_middle_gets_the_same_again(half: Half):
    await half.post(event(1))
    changes = half.receiver.received()
    assert (await anext(changes)).webhook_id == "evt_1"
    await changes.aclose()
    again = half.receiver.received()
    assert (await anext(again)).webhook_id == "evt_1"
    await again.aclose()


async def test_the_body_may_come_in_pieces(half: Half):
    body = b'{"eventId":"evt_1","name":"n","cursor":null}'

    async def pieces() -> AsyncGenerator[bytes]:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    answer = await half.post.client.post(
        half.post.url, content=pieces(), headers=signed(SECRET, "sub_1", "evt_1", body)
    )
    assert answer.status_code == 204


# The challenge


async def test_a_challenge_is_echoed_also_when_it_comes_again(half: Half):
    for _ in range(2):
        answer = await half.post(CHALLENGE, "msg_verification_1")
        assert (answer.status_code, answer.json()) == (200, {"challenge": "nonce-1"})
    assert await half.waiting() == []


async def test_while_subscribing_the_challenge_comes_before_the_id_is_known(half: Half):
    async def ask(content: Any, secret: bytes = NEW_SECRET) -> int:
        answer = await half.post(content, "msg_1", "sub_new", secret)
        return answer.status_code

    assert await ask(CHALLENGE) == 503
    with half.keyring.expecting(NEW_SECRET):
        assert await ask(CHALLENGE) == 200
        assert await ask(CHALLENGE, STRANGER) == 503
        # The proof of an expected secret is enough for a challenge, and for nothing else.
        assert await ask(event(1)) == 503
        half.keyring.bind("sub_new", NEW_SECRET)
    assert await ask(event(1)) == 204
    assert await half.waiting() == ["msg_1"]


async def test_a_known_subscription_may_be_challenged_by_its_next_secret(half: Half):
    assert (await half.post(CHALLENGE, secret=NEW_SECRET)).status_code == 401
    with half.keyring.expecting(NEW_SECRET):
        assert (await half.post(CHALLENGE, secret=NEW_SECRET)).status_code == 200
        assert (await half.post(event(1), secret=NEW_SECRET)).status_code == 503
        assert (await half.post(event(1), secret=STRANGER)).status_code == 401
    assert await half.waiting() == []


async def test_a_challenge_that_nobody_of_ours_signed_is_not_echoed(half: Half):
    answer = await half.post(CHALLENGE, secret=STRANGER)
    assert answer.status_code == 401
    assert b"nonce-1" not in answer.content


@pytest.mark.parametrize("challenge", [None, 1, "", "x" * 1025])
async def test_a_challenge_without_a_nonce_is_malformed(half: Half, challenge: Any):
    answer = await half.post({"type": "verification", "challenge": challenge})
    assert answer.status_code == 400


async def test_subscribe_calls_under_way_are_counted(half: Half):
    with ExitStack() as stack:
        for _ in range(EXPECTED_MAX):
            stack.enter_context(half.keyring.expecting(NEW_SECRET))
        with pytest.raises(errors.TooManyWatches):
            stack.enter_context(half.keyring.expecting(STRANGER))
    assert await half.keyring.expected() == ()


# What is refused


async def test_an_unknown_subscription_is_asked_to_come_again(half: Half):
    assert (await half.post(event(1), subscription_id="sub_2")).status_code == 503
    half.keyring.forget("sub_1")
    assert (await half.post(event(1))).status_code == 503


async def test_a_large_event_of_a_subscription_that_may_become_ours_is_not_given_up(half: Half):
    with half.keyring.expecting(NEW_SECRET):
        large = event(1, text="x" * module.CHALLENGE_BYTES_MAX)
        assert (await half.post(large, "evt_1", "sub_new", NEW_SECRET)).status_code == 503


@pytest.mark.parametrize("age_s", [301, -330])
async def test_a_delivery_that_is_replayed_later_is_refused(half: Half, age_s: int):
    assert (await half.post(event(1), age_s=age_s)).status_code == 401
    assert await half.waiting() == []


async def test_a_changed_body_is_refused(half: Half):
    headers = signed(SECRET, "sub_1", "evt_1", b'{"eventId":"evt_1","name":"n"}')
    answer = await half.post.client.post(
        half.post.url, content=b'{"eventId":"evt_1","name":"m"}', headers=headers
    )
    assert answer.status_code == 401
    assert await half.waiting() == []


async def test_old_and_new_secret_verify_while_one_is_replaced(half: Half):
    half.keyring.bind("sub_1", NEW_SECRET, SECRET)
    for number, secret in enumerate((SECRET, NEW_SECRET)):
        answer = await half.post(event(number), f"evt_{number}", secret=secret)
        assert answer.status_code == 204
    half.keyring.bind("sub_1", NEW_SECRET)
    assert (await half.post(event(3), "evt_3", secret=SECRET)).status_code == 401


HEADERS = ["webhook-id", "webhook-timestamp", "webhook-signature", "X-MCP-Subscription-Id"]


@pytest.mark.parametrize("name", HEADERS)
async def test_each_of_the_four_headers_is_needed_exactly_once(half: Half, name: str):
    body = b'{"eventId":"evt_1","name":"n"}'
    headers = signed(SECRET, "sub_1", "evt_1", body)
    without = {key: value for key, value in headers.items() if key != name}
    post = half.post.client.post
    answer = await post(half.post.url, content=body, headers=without)
    assert answer.status_code == 400
    twice = [*headers.items(), (name, headers[name])]
    answer = await post(half.post.url, content=body, headers=twice)
    assert answer.status_code == (204 if name == "webhook-signature" else 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b'{"eventId":1,"name":"n"}',
        b'{"eventId":"e"}',
        b'{"eventId":"e","name":"n","cursor":7}',
        b'{"type":"gap"}',
        b'{"type":"gap","cursor":null}',
        b'{"type":null,"eventId":"e","name":"n"}',
        b'{"type":["gap"],"cursor":"c"}',
    ],
)
async def test_a_signed_body_that_is_no_delivery_is_malformed(half: Half, body: bytes):
    assert (await half.post(body)).status_code == 400
    assert await half.waiting() == []


@pytest.mark.parametrize(
    ("name", "value"), [("webhook-timestamp", "soon"), ("webhook-id", "evt 1"), ("webhook-id", "é")]
)
async def test_an_id_or_a_timestamp_that_is_none_is_malformed(half: Half, name: str, value: str):
    headers = {**signed(SECRET, "sub_1", "evt_1", b"{}"), name: value.encode()}
    answer = await half.post.client.post(half.post.url, content=b"{}", headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_only_posts_are_taken(half: Half, method: str):
    answer = await half.post.client.request(method, half.post.url)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_body_beyond_the_limit_is_refused_and_one_at_the_limit_is_not(half: Half):
    room = module.BODY_BYTES_MAX - len(b'{"eventId":"e","name":"n","d":""}')
    fits = b'{"eventId":"e","name":"n","d":"%b"}' % (b"x" * room)
    assert (await half.post(fits)).status_code == 204
    assert (await half.post(fits + b" ", "evt_2")).status_code == 413
    assert await half.waiting() == ["evt_1"]


@asynccontextmanager
async def half_a_request(half: Half) -> AsyncGenerator[anyio.abc.ByteStream]:
    """A connection on which all of a delivery has come but the end that it announced."""
    host, port = half.post.url.split("/")[2].split(":")
    body = b'{"eventId":"evt_9","name":"n"}'
    headers = {**signed(SECRET, "sub_1", "evt_9", body), "content-length": str(len(body) + 1)}
    lines = [f"{name}: {value}" for name, value in headers.items()]
    request = ["POST / HTTP/1.1", "host: x", *lines, "", body.decode()]
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send("\r\n".join(request).encode())
        yield stream


async def test_a_body_that_drips_is_cut_off(half: Half, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BODY_S_MAX", 0.05)
    async with half_a_request(half) as stream:
        with anyio.fail_after(PATIENCE_S):
            assert (await stream.receive()).startswith(b"HTTP/1.1 408")


async def test_too_many_bodies_at_a_time_are_asked_to_come_again(
    half: Half, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "READING_MAX", 0)
    assert (await half.post(event(1))).status_code == 503
    monkeypatch.setattr(module, "READING_MAX", 1)
    for _ in range(3):
        assert (await half.post(event(1))).status_code == 204


async def test_a_sender_that_hangs_up_leaves_nothing_and_blocks_nobody(half: Half):
    async with half_a_request(half):

        async def is_read() -> bool:
            return half.receiver._reading == 1

        await until(is_read, PATIENCE_S)

    async def is_left() -> bool:
        return half.receiver._reading == 0

    await until(is_left, PATIENCE_S)
    assert (await half.post(event(1))).status_code == 204
    assert await half.waiting() == ["evt_1"]


async def test_a_server_signature_is_asked_for_where_the_server_is_known(
    half: Half, monkeypatch: pytest.MonkeyPatch
):
    server = signing.ServerKey(bytes(32))
    strict = Receiver(half.inbox, half.keyring, now, [server.public])
    body = b'{"eventId":"evt_1","name":"n"}'
    headers = signed(SECRET, "sub_1", "evt_1", body)
    async with served(strict) as url:
        assert (await half.post.client.post(url, content=body, headers=headers)).status_code == 401
        stamp = int(headers["webhook-timestamp"])
        headers["webhook-signature"] += " " + server.sign("evt_1", stamp, body)
        assert (await half.post.client.post(url, content=body, headers=headers)).status_code == 204
