"""What a request is asked for many times, or waits for once: its headers, and a body at hand."""

import asyncio

import pytest
from hypothesis import given, strategies as st
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outlast.service import bodies
from outlast.service.heads import Asked, Heads
from outlast.tests.support.asgi import listening

NAMES = st.sampled_from([b"host", b"mcp-name", b"accept"])
VALUES = st.sampled_from([b"", b"a", b"b c", b"\xe9", b" a\t", b"\t"])
BOUND_S = 60.0


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_they_say_what_the_framework_says_without_the_space_around(raw: list[tuple[bytes, bytes]]):
    ours = Heads(raw)
    theirs = Headers(raw=[(name, value.strip(b" \t")) for name, value in raw])
    for name in ("host", "Host", "MCP-Name", "accept", "other"):
        assert ours.get(name) == theirs.get(name)
        assert (name in ours) == (name in theirs)
        assert ours.getlist(name) == theirs.getlist(name)
    assert ours.items() == theirs.items()
    assert ours.are_single == (len({name for name, _ in raw}) == len(raw))
    assert 5 not in ours


def test_a_request_has_them_once():
    request = Asked({"type": "http", "headers": [(b"host", b"a ")]})
    assert request.headers["host"] == "a"
    assert request.headers is request.headers


def noting(found: list[tuple[bool, bytes]], begun: asyncio.Event) -> Starlette:
    """Notes of each request whether its body was at hand, and the body."""

    async def note(request: Request) -> Response:
        is_there = bodies.has_come(request)
        begun.set()
        found.append((is_there, await bodies.read(request, 1_000_000, BOUND_S)))
        return Response()

    return Starlette(routes=[Route("/", note, methods=["POST"])])


@pytest.mark.anyio
async def test_a_body_that_has_come_is_taken_at_once_and_one_in_pieces_is_waited_for():
    found: list[tuple[bool, bytes]] = []
    begun = asyncio.Event()
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n"
    async with listening(noting(found, begun)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for first, rest in ((b"abcdef", b""), (b"abc", b"def")):
            begun.clear()
            writer.write(head + first)
            await asyncio.wait_for(begun.wait(), BOUND_S)
            writer.write(rest)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND_S)
        writer.close()
        await writer.wait_closed()
    assert found == [(True, b"abcdef"), (False, b"abcdef")]
