"""The processes at both ends of a webhook, driven by `webhooks.py` over their pipes.

Roles: `receiver` answers 204 to whatever is posted and notes when; `sender` is the real one on a
store; `bare` posts signed messages as fast as it can, without a store. Each reads one JSON object
from stdin, answers one, and answers every further line. Stamps are of the monotonic clock, which
all processes of a machine share.
"""

import asyncio
import json
import re
import resource
import sys
import time
from datetime import UTC, datetime
from typing import Any

from outlast.adapters import codec
from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.outbox import PostgresOutbox
from outlast.adapters.postgres import Database
from outlast.adapters.signal import PostgresSignal
from outlast.adapters.task_view import PostgresTaskViews
from outlast.adapters.webhooks import PostgresWebhookSubscriptions
from outlast.delivery.events.cursors import Cursors
from outlast.delivery.events.occurrences import Occurrences
from outlast.delivery.feed import Feed
from outlast.delivery.webhook.challenge import signed
from outlast.delivery.webhook.exchange import WebhookClient
from outlast.delivery.webhook.sender import Sealing, Sender, SenderStores
from outlast.delivery.webhook.vault import Vault

KEY = "a key for benchmarks that is long enough"
BARE_AT_ONCE = 32
HEAD_END = b"\r\n\r\n"
ID = re.compile(rb"\r\nwebhook-id: *([^\r]+)", re.IGNORECASE)
FOR = re.compile(rb"\r\nx-mcp-subscription-id: *([^\r]+)", re.IGNORECASE)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"

Arrivals = list[tuple[str, str, int]]  # webhook-id, subscription, nanoseconds


class Connection(asyncio.Protocol):
    """One connection of the receiver. An arrival is a whole request."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._buffer = arrivals, b""

    def connection_made(self, transport: Any) -> None:
        """Keep the way back."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        self._buffer += data
        while (end := self._buffer.find(HEAD_END)) >= 0:
            head = self._buffer[: end + 2]
            length = LENGTH.search(head)
            whole = end + len(HEAD_END) + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            event, subscription = ID.search(head), FOR.search(head)
            assert event is not None
            assert subscription is not None
            arrival = event[1].decode(), subscription[1].decode(), time.monotonic_ns()
            self._arrivals.append(arrival)
            self._buffer = self._buffer[whole:]
            self._transport.write(ANSWER)


async def heard() -> Any:
    """The next line of stdin; None at its end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


def say(answer: Any) -> None:
    """One line to stdout."""
    print(json.dumps(answer), flush=True)


async def receiver(wanted: dict[str, Any]) -> None:
    """Listen on so many ports; tell the count when asked, and all arrivals when told `take`."""
    arrivals: Arrivals = []
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: Connection(arrivals), "127.0.0.1", 0, backlog=512)
        for _ in range(wanted["ports"])
    ]
    say([server.sockets[0].getsockname()[1] for server in servers])
    while (asked := await heard()) is not None:
        if asked == "take":
            say(arrivals)
            arrivals.clear()
        else:
            say(len(arrivals))


def cpu_s() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def sender(wanted: dict[str, Any]) -> None:
    """Send what is due in the store; tell the counts and the time used when asked."""
    database = Database(wanted["url"])
    await database.open()
    signal = PostgresSignal(wanted["url"], database)
    await signal.open()
    log = PostgresEventLog(database)
    feed = Feed(PostgresTaskViews(database), log, codec.wire_of, _now)
    made = Sender(
        SenderStores(
            PostgresOutbox(database),
            PostgresWebhookSubscriptions(database),
            Occurrences(feed),
            signal,
        ),
        WebhookClient(allow_loopback_http=True),
        Sealing(Cursors(KEY, 1), Vault(KEY)),
        _now,
        lambda _: True,
    )
    made.start()
    say("sending")
    while await heard() is not None:
        say({"counts": made.counts, "cpu_s": cpu_s()})
    await made.drain()
    await signal.close()
    log.close()
    await database.close()


async def bare(wanted: dict[str, Any]) -> None:
    """Post so many signed messages, with the same body, and tell how long it took."""
    body = bytes.fromhex(wanted["body"])
    numbers = iter(range(wanted["posts"]))

    async def posting(client: WebhookClient, place: int) -> None:
        url = wanted["urls"][place % len(wanted["urls"])]
        for number in numbers:
            instant = int(_now().timestamp())
            headers = signed([bytes(32)], None, f"evt_bare_{number}", instant, body, "bench")
            outcome = await client.post(url, body, headers)
            assert outcome.status == 204, outcome

    async with WebhookClient(allow_loopback_http=True) as client:
        begun, used = time.monotonic(), cpu_s()
        await asyncio.gather(*[posting(client, place) for place in range(BARE_AT_ONCE)])
        say({"seconds": time.monotonic() - begun, "cpu_s": cpu_s() - used})


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    roles = {"receiver": receiver, "sender": sender, "bare": bare}
    asyncio.run(roles[sys.argv[1]](json.loads(sys.stdin.readline())))
