"""Generated deliveries against the receiving half of webhooks, behind a real socket.

Whatever comes, there is no 500; what was refused is not stored; what was stored can be read.
"""

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import pytest

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver
from outlast.tests.delivery.posting import bound, event, now, served, signed
from outlast.tests.delivery.receiving import SECRET, STRANGER
from outlast.tests.fuzz.campaign import Campaign
from outlast.tests.fuzz.chance import Chance
from outlast.tests.fuzz.wire import Line, Request

pytestmark = pytest.mark.anyio

STATUSES = frozenset({200, 204, 400, 401, 405, 413})
UNKNOWN = 503  # a subscription that is not known may be known in a second: the sender tries again
IDS = ("evt_1", "evt_2", "msg_gap_1")


class Deliveries:
    """Posts deliveries, most of them signed as they should be."""

    def __init__(self, url: str, line: Line, inbox: sqlite3.Connection) -> None:
        self._path = urlsplit(url).path.encode()
        self._line, self._inbox = line, inbox
        self.last: Request | None = None

    def trial(self, chance: Chance) -> str:
        request, is_ours, was_bent = self._drawn(chance)
        self.last = request
        before = self._stored()
        answer = self._line.ask(request)
        after = self._stored()
        if answer is None or (was_bent and not answer.is_json and answer.status == 400):
            assert was_bent, "the receiver hung up"
            assert after == before, "no HTTP, and yet stored"
            return "refused"
        assert answer.status in STATUSES or (answer.status == UNKNOWN and not is_ours), answer
        if answer.status == 200:
            assert answer.body == {"challenge": json.loads(request.content)["challenge"]}
        if answer.status != 204:
            assert after == before, f"{answer.status}, and yet stored"
            return "refused"
        return "stored" if after != before else "again"

    def _drawn(self, chance: Chance) -> tuple[Request, bool, bool]:
        """The request, whether it names a subscription of ours, and whether it may be no HTTP."""
        number = chance.randrange(100_000)
        body: Any = chance.choice(
            (
                event(number, f"c{number}"),
                event(number, None, data={"text": chance.string(), "more": chance.value()}),
                {"type": "gap", "cursor": f"c{number}"},
                {"type": "terminated", "error": {"code": -32012, "message": "Forbidden"}},
                {"type": "verification", "challenge": "nonce-1"},
                {"type": chance.string(), "news": chance.value()},
            )
        )
        for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
            body = chance.mutated(body)
        content = chance.encoded(body)
        if chance.one_in(6):
            content = chance.damaged(content)
        subscription = chance.choice(("sub_1",) * 8 + ("sub_2", "sub_1x"))
        secret = chance.choice((SECRET,) * 9 + (STRANGER,))
        webhook_id = chance.choice((f"evt_{number}", *IDS))
        named = signed(secret, subscription, webhook_id, content, chance.choice((0,) * 9 + (3600,)))
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
        if chance.one_in(5):
            place = chance.randrange(len(headers))
            text = str(chance.mutated(headers[place][1].decode()))
            headers[place] = headers[place][0], text.encode("utf-8", "surrogatepass")
            if chance.one_in(2):
                headers.append(headers[place])
        headers = [(name, value.translate(None, b"\r\n")) for name, value in headers]
        is_clean = all(0x20 <= byte < 0x7F for _, value in headers for byte in value)
        is_ours = (b"X-MCP-Subscription-Id", b"sub_1") in headers
        method = chance.choice(("POST",) * 30 + ("GET", "PUT", "DELETE"))
        given = [(b"host", b"127.0.0.1"), *headers]
        return Request(method, self._path, given, content), is_ours, not is_clean

    def _stored(self) -> int:
        """A number that SQLite changes with every commit of another connection."""
        return self._inbox.execute("PRAGMA data_version").fetchone()[0]


@pytest.mark.promise("no-input-makes-it-stumble")
async def test_no_delivery_makes_the_receiver_stumble(tmp_path: Path):
    keyring = MemoryKeyring()
    keyring.bind("sub_1", SECRET)
    inbox = await SqliteInbox.open(tmp_path / "inbox.db", now)
    receiver = Receiver(inbox, keyring, now)
    listener = bound()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    looking = sqlite3.connect(inbox.path, check_same_thread=False)
    async with served(receiver, listener) as url:
        with Line(*listener.getsockname()) as line:
            target = Deliveries(url, line, looking)
            run = Campaign.of_environment().run
            await anyio.to_thread.run_sync(run, "receiver", target.trial, lambda: repr(target.last))
    looking.close()
    await _all_can_be_read(inbox, receiver)
    await inbox.close()


async def _all_can_be_read(inbox: SqliteInbox, receiver: Receiver) -> None:
    waiting = [webhook_id for _, _, webhook_id, _ in await inbox.waiting(10**6)]
    read: list[str] = []
    while len(read) < len(waiting):
        read += [each.webhook_id async for each in receiver.received(lambda _: True)]
    assert (read, await inbox.waiting(1)) == (waiting, [])
