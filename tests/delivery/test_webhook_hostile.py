"""Endpoints that never end, and endpoints that are none. Real sockets, on loopback."""

import gzip
import logging

import anyio
import pytest

from outlast.delivery.webhook.exchange import Limits, WebhookClient
from outlast.delivery.webhook.network import REPLY_WIRE_BYTES_MAX
from outlast.tests.delivery.exchanges import (
    PATIENCE_S,
    SHORT,
    at,
    dev_client,
    dripping,
    flooding,
    hanging_up,
    outcome_of,
    post,
    seen,
    silent,
)
from outlast.tests.delivery.internet import OK, Answer, Exchange, Internet, endpoint, reply, saying

pytestmark = pytest.mark.anyio


# Endpoints that do not end


async def test_a_reply_that_drips_its_head_is_a_timeout():
    gone = anyio.Event()
    async with endpoint(dripping(b"HTTP/1.1 200 OK\r\nX-Drip: ", b"a", gone)) as served:
        async with dev_client(SHORT) as client:
            outcome = await post(client, at(served))
        gone.set()
    assert seen(outcome) == (None, "timeout")
    assert outcome.latency_ms >= SHORT.total_s * 1_000


DRIPPED = b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{"


async def test_a_reply_that_drips_its_body_has_acknowledged_and_is_not_waited_for():
    gone = anyio.Event()
    async with endpoint(dripping(DRIPPED, b"a", gone)) as served:
        # The whole exchange might take longer than the test has patience.
        async with dev_client(Limits(drain_s=0.2, total_s=2 * PATIENCE_S)) as client:
            outcome = await post(client, at(served))
        gone.set()
    assert seen(outcome) == (200, None)


async def test_a_dripped_body_that_is_waited_for_is_a_timeout():
    gone = anyio.Event()
    async with endpoint(dripping(DRIPPED, b"a", gone)) as served:
        async with dev_client(Limits(total_s=5.0)) as client:  # time for some drops
            outcome = await post(client, at(served), head_bytes=4_096)
        gone.set()
    assert seen(outcome) == (200, "timeout")
    assert outcome.body_head.startswith(b"{aa")


@pytest.mark.parametrize("head_bytes", [0, 4_096])
@pytest.mark.parametrize("framing", ["Content-Length: 9999999999", "Transfer-Encoding: chunked"])
async def test_an_endless_body_is_read_no_further_than_the_limit(head_bytes: int, framing: str):
    chunk = b"x" * 65_536 if "Length" in framing else b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    flood = flooding(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode(), chunk)
    internet = Internet()
    async with endpoint(flood) as served, dev_client(internet=internet) as client:
        outcome = await post(client, at(served), head_bytes)
        again = await post(client, at(served), head_bytes)
    assert seen(outcome) == seen(again) == (200, None)
    assert outcome.body_head == b"x" * head_bytes
    assert internet.bytes_read <= 2 * REPLY_WIRE_BYTES_MAX
    assert served.connections == 2  # what is unread is not left for the next exchange


@pytest.mark.parametrize(
    ("first", "chunk"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Flood: yes\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Flood: ", b"x" * 1_000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
        (b"", b"x" * 1_000),
    ],
    ids=["headers", "one header", "informational replies", "no HTTP"],
)
async def test_an_endless_head_is_no_answer_and_is_read_no_further(first: bytes, chunk: bytes):
    internet = Internet()
    async with endpoint(flooding(first, chunk)) as served, dev_client(internet=internet) as client:
        outcome = await post(client, at(served))
    assert seen(outcome) == (None, "connection_refused")
    assert internet.bytes_read <= REPLY_WIRE_BYTES_MAX


async def test_a_body_in_countless_chunks_is_given_up_in_time():
    trickle = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    internet = Internet()
    flood = flooding(trickle, b"1;" + b"e" * 500 + b"\r\nx\r\n")
    async with endpoint(flood) as served, dev_client(internet=internet) as client:
        outcome = await post(client, at(served), head_bytes=4_096)
    assert seen(outcome) == (200, "connection_refused")
    assert internet.bytes_read <= REPLY_WIRE_BYTES_MAX


async def test_a_compressed_reply_stays_packed():
    bomb = gzip.compress(b"0" * 10_000_000)
    packed = saying(reply(200, "Content-Encoding: gzip", body=bomb))
    outcome = await outcome_of(packed, head_bytes=4_096)
    assert seen(outcome) == (200, None)
    assert outcome.body_head == bomb[:4_096]


async def test_an_endpoint_that_reads_nothing_is_a_timeout():
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, dev_client(SHORT) as client:
        with anyio.fail_after(PATIENCE_S):
            outcome = await client.post(f"http://127.0.0.1:{port}/", b"x" * 30_000_000, {})
    assert seen(outcome) == (None, "timeout")


async def test_a_silent_endpoint_is_a_timeout():
    assert seen(await outcome_of(silent, limits=SHORT)) == (None, "timeout")


# Endpoints that are none


async def test_a_closed_port_refuses():
    async with endpoint(saying(OK)) as served:
        pass
    async with dev_client() as client:
        assert seen(await post(client, at(served))) == (None, "connection_refused")


@pytest.mark.parametrize(
    "answer",
    [
        hanging_up,
        saying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        saying(b"HTTP/1.1 99 Low\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
        saying(b"\x16\x03\x01\x00\x00\r\n\r\n"),
    ],
)
async def test_what_is_no_http_counts_as_no_connection(answer: Answer):
    assert seen(await outcome_of(answer)) == (None, "connection_refused")


async def test_a_reply_cut_short_has_acknowledged_unless_its_body_matters():
    async def cut(exchange: Exchange) -> None:
        await exchange.stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
        await exchange.stream.aclose()

    assert seen(await outcome_of(cut)) == (200, None)
    assert seen(await outcome_of(cut, head_bytes=10)) == (200, "connection_refused")


@pytest.mark.parametrize("url", ["https://[::1]/", "http://a.example/", "https://u@a.example/", ""])
async def test_a_url_that_cannot_be_a_webhook_is_not_tried(url: str):
    internet = Internet()
    async with WebhookClient(dial=internet) as client:
        assert seen(await post(client, url)) == (None, "connection_refused")
    assert internet.dialled == []


async def test_the_endpoints_words_are_in_no_log_and_no_repr(caplog):
    caplog.set_level(logging.DEBUG)
    outcome = await outcome_of(saying(reply(200, body=b"s3cret-challenge")), head_bytes=4_096)
    assert outcome.body_head == b"s3cret-challenge"
    assert "s3cret" not in repr(outcome) + caplog.text
