"""From a task's creation to its start, as the log has it: how soon a free slot takes it up.

`measure` starts one or two `serve` on a database of its own, creates tasks over HTTP and reads the
log: the time from the row of a task's first event to the row of its `WorkStarted`, by the clock of
the store. The commit of the creation, the signal, the claim, the read and the second append lie in
between. Every slot that a task could want is free.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from outlast.ops.bench import contenders
from outlast.ops.bench.contenders import Contender
from outlast.ops.bench.delivery import percentile
from outlast.tests.support.ports import free_port

CREATED_AT_IDLE = 100
PAUSE_S = 0.05  # between two of these: each meets a service at rest
AT_ONCE = 64
BURSTS = 8
BURST_PAUSE_S = 0.5
STARTED_S_MAX = 30.0
SLOTS_MAX = 1_000
# Everything becomes a task; the tool never ends, so that what is measured is the way to its start.
CONFIG = """
[upstreams.bench]
command = {command}
[defaults]
run = "task"
[quotas]
calls_per_minute = "unlimited"
working_per_owner = "unlimited"
"""
_STARTS = (
    "SELECT extract(epoch FROM started.recorded_at - opened.recorded_at) * 1000"
    " FROM outlast.task_events opened LEFT JOIN outlast.task_events started"
    " ON started.originator_id = opened.originator_id AND started.originator_version = 2"
    " WHERE opened.originator_version = 1 AND opened.notification_id > %s"
)


def measure(
    url: str, folder: Path, *, idle: int = CREATED_AT_IDLE, bursts: int = BURSTS
) -> dict[str, dict[str, Any]]:
    """The figures of one `serve` and of two, each created one by one and so many at once.

    Each has `p50_ms`, `p99_ms` and `max_ms` from creation to start. `url` is a migrated database
    that nobody else uses; `folder` takes configurations and logs.
    """
    found: dict[str, dict[str, Any]] = {}
    for count in (1, 2):
        with ExitStack() as stack:
            started = [stack.enter_context(_serving(url, folder, n)) for n in range(count)]
            asyncio.run(_created(started, 2 * count, 1, BURST_PAUSE_S))  # upstreams are connected
            name = "one process" if count == 1 else "two processes"
            found[f"one at a time, {name}"] = _taken(url, started, idle, 1, PAUSE_S)
            found[f"{AT_ONCE} at once, {name}"] = _taken(
                url, started, bursts * AT_ONCE, AT_ONCE, BURST_PAUSE_S
            )
    return found


def _serving(url: str, folder: Path, number: int) -> Any:
    config, port = folder / "dispatch.toml", free_port()
    command = [sys.executable, str(contenders.PEERS), "tool"]
    config.write_text(CONFIG.format(command=json.dumps(command)))
    outlast = str(Path(sys.executable).with_name("outlast"))
    serve = (outlast, "serve", "--config", str(config), "--port", str(port))
    slots = str(SLOTS_MAX)
    environment = {"OUTLAST_DATABASE_URL": url, "OUTLAST_SLOTS": slots, "OUTLAST_DRAIN_S": "0"}
    return contenders.running(f"dispatch-{number}", serve, port, folder, **environment)


def _taken(
    url: str, servers: Sequence[Contender], count: int, at_once: int, pause_s: float
) -> dict[str, Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT coalesce(max(notification_id), 0) FROM outlast.task_events"
        ).fetchone()
        assert row is not None
        asyncio.run(_created(servers, count, at_once, pause_s))
        end = time.monotonic() + STARTED_S_MAX
        while True:
            rows = connection.execute(_STARTS, row).fetchall()
            if all(ms is not None for (ms,) in rows):
                break
            if time.monotonic() > end:
                raise RuntimeError("some tasks did not start")
            time.sleep(0.1)
    taken = [float(ms) for (ms,) in rows]
    assert len(taken) == count
    return {
        "tasks": count,
        "p50_ms": percentile(taken, 0.5),
        "p99_ms": percentile(taken, 0.99),
        "max_ms": max(taken),
    }


async def _created(servers: Sequence[Contender], count: int, at_once: int, pause_s: float) -> None:
    """So many tasks, over as many connections as are created at once; the servers take turns."""
    lines = [await _Line.to(servers[n % len(servers)]) for n in range(max(at_once, len(servers)))]
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        await asyncio.gather(*(lines[number % len(lines)].create(number) for number in numbers))
        await asyncio.sleep(pause_s)
    for line in lines:
        line.close()


class _Line:
    """A connection that creates one task after the other, and takes little of the processor."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, server: Contender) -> "_Line":
        """Connected."""
        port = int(server.url.split(":")[2].split("/")[0])
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def create(self, number: int) -> None:
        """Return once the task is stored."""
        arguments = {"task": str(number)}
        asked = contenders.body(number, "tools/call", name=contenders.TOOL, arguments=arguments)
        body = json.dumps(asked).encode()
        heads = {"host": "127.0.0.1", **contenders.headers(asked), "content-length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in heads.items())
        self._writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length:")[1].split("\r\n")[0])
        result = json.loads(await self._reader.readexactly(length))
        if "taskId" not in result.get("result", {}):
            raise RuntimeError(f"no task was created: {result}")

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
