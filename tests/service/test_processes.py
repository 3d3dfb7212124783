"""`serve --processes N` as processes: started, killed, stopped, and nothing left of them."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import anyio
import httpx2
import psycopg
import pytest

from outlast.domain.errors import ConfigurationError
from outlast.service import hosting
from outlast.service.siblings import LINE_BYTES_MAX, Line
from outlast.service.supervising import START_TRIES_MAX, Supervisor
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.service.conftest import desk_config, status_stored
from outlast.tests.support.doors import taken_by, zombies_of
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.services import (
    READY_S_MAX,
    SERVED,
    Service,
    children_of,
    served,
    until_gone,
    until_restarted,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("processes-are-supervised")]

STOP_S_MAX = 60.0
CONNECTIONS = 64
SHARE_MIN = 10  # of 64 connections spread over two, one gets fewer once in 10 ** 9 times


# --- the start and the end


async def test_it_says_once_that_it_serves_and_a_signal_ends_all_of_it_in_order(
    database_url: str, tmp_path: Path
):
    async with served(Service(tmp_path, database_url, 3)) as service, http_client() as http:
        assert sorted(service.processes) == [1, 2, 3]
        client, family = RawClient(f"{service.url}/mcp", http), service.family()
        note = tmp_path / "note"
        calls = [
            asyncio.create_task(client.call("note_direct", {"path": str(note), "seconds": 3}))
            for _ in range(6)
        ]
        begun = tmp_path / "begun"
        held = await client.opened("note_task", {"path": str(begun), "seconds": 2})
        await until_lines(note, 6)
        await until_lines(begun, 1)  # what had not begun would be left for another to run
        family |= service.family()
        service.send(signal.SIGTERM)
        told = await asyncio.gather(*calls)
        assert all("result" in reply.body for reply in told)
        assert await service.until_ended(STOP_S_MAX) == 0, service.log.read_text()
        await until_gone(family)
        assert service.log.read_text().count(SERVED) == 1
    assert status_stored(database_url, held) == "completed"


async def until_lines(path: Path, count: int) -> None:
    async def are_there() -> bool:
        return path.exists() and len(path.read_text().splitlines()) >= count

    await until(are_there, READY_S_MAX)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
async def test_a_second_signal_does_not_wait_for_what_runs(
    database_url: str, tmp_path: Path, number: signal.Signals
):
    async with served(Service(tmp_path, database_url)) as service, http_client() as http:
        marker = tmp_path / "marker"
        client = RawClient(f"{service.url}/mcp", http)
        await client.opened("hold_task", {"marker": str(marker)})
        await until_file_says(marker, "started", READY_S_MAX)
        family = service.family()
        service.send(number)
        await until_refused(service)
        assert service.is_running
        service.send(number)
        assert await service.until_ended(STOP_S_MAX) == 128 + number
        await until_gone(family)


async def until_refused(service: Service) -> None:
    async def is_refused() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        except OSError:
            return True
        writer.transport.abort()
        return False

    await until(is_refused, STOP_S_MAX)


async def test_a_process_that_cannot_start_ends_the_service_with_its_reason(
    database_url: str, tmp_path: Path
):
    (tmp_path / "outlast.toml").write_text(desk_config('tokens_file = "missing.toml"'))
    service = Service(tmp_path, database_url)
    service.start()
    try:
        assert await service.until_ended(READY_S_MAX) == 2
        last = service.log.read_text().splitlines()[-1]
        assert last.startswith("outlast: ")
        assert "missing.toml" in last
        await service.until_childless()
    finally:
        await service.make_gone()


async def test_a_process_that_dies_without_a_word_is_tried_a_few_times_and_then_named():
    begun = Counter[int]()

    async def spawn(number: int, *_: object) -> asyncio.subprocess.Process:
        begun[number] += 1
        program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        # The second one waits, to be ended with the first.
        waiting = "import time; time.sleep(60)"
        words = sys.executable, "-c", program if number == 1 else waiting
        return await asyncio.create_subprocess_exec(*words)

    supervisor = Supervisor(2, hosting.SharedPort("127.0.0.1", 0, 8), spawn, b"")
    with pytest.raises(ConfigurationError, match="process 1 was ended by SIGKILL before it served"):
        await supervisor.run(asyncio.Queue(), lambda: pytest.fail("it serves nothing"), 1.0)
    assert begun == {1: START_TRIES_MAX, 2: 1}


READY = """
import os, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
while sys.argv[2] and not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
end.sendall(b'{"ready": 1}\\n')
open(sys.argv[3], "w").close()
while end.recv(4096):
    pass
"""


async def test_it_serves_once_every_process_does(tmp_path: Path):
    go, told = tmp_path / "go", list[bool]()

    async def spawn(number: int, _: object, end: socket.socket) -> asyncio.subprocess.Process:
        words = str(end.fileno()), str(go) if number == 2 else "", str(tmp_path / str(number))
        command = sys.executable, "-c", READY, *words
        return await asyncio.create_subprocess_exec(*command, pass_fds=[end.fileno()])

    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    supervisor = Supervisor(2, hosting.SharedPort("127.0.0.1", 0, 8), spawn, b"")
    running = asyncio.create_task(supervisor.run(signals, lambda: told.append(go.exists()), 1.0))
    await until(anyio.Path(tmp_path / "1").exists, READY_S_MAX)
    go.touch()

    async def is_told() -> bool:
        return bool(told)

    await until(is_told, READY_S_MAX)
    signals.put_nowait(signal.SIGTERM)
    assert await running == 0
    assert told == [True]


async def test_an_address_that_is_taken_is_refused_and_not_shared_with_a_stranger():
    port = hosting.SharedPort("127.0.0.1", 0, 8)
    taken = int(port.address.rpartition(":")[2])
    try:
        port.listener(2)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="cannot listen"):
                hosting.SharedPort("127.0.0.1", taken, 8)
            with pytest.raises(ConfigurationError, match="cannot listen"):
                hosting.listener_on("127.0.0.1", taken, 8)
            port.release(1)  # the others alone hold it now
    finally:
        port.close()
    hosting.SharedPort("127.0.0.1", taken, 8).close()


# --- what they tell each other


@pytest.mark.parametrize("beyond", [1, 3 * LINE_BYTES_MAX], ids=["just", "far"])
async def test_a_line_that_is_too_long_is_skipped_and_the_next_one_is_heard(
    beyond: int, caplog: pytest.LogCaptureFixture
):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    lines = [b'{"tell": 1}', b'"' + b"x" * (LINE_BYTES_MAX + beyond - 2) + b'"', b'{"tell": 2}']
    line = await Line.over(theirs)
    with ours:
        telling = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(ours, b"\n".join([*lines, b'{"tell": 3']))
        )
        heard: list[dict[str, int]] = []
        async for message in line.messages():
            heard.append(message)
            if len(heard) == 2:
                await telling
                ours.shutdown(socket.SHUT_WR)  # in the middle of a line: gone
    line.close()
    assert heard == [{"tell": 1}, {"tell": 2}]
    assert [one.name for one in caplog.records if "skipped" in one.message] == ["outlast.processes"]


# --- deaths


async def test_a_killed_process_is_begun_again_and_who_comes_meanwhile_is_served(
    database_url: str, tmp_path: Path
):
    async with served(Service(tmp_path, database_url)) as service:
        former = service.processes
        family = service.family()
        os.kill(former[1], signal.SIGKILL)
        async with http_client() as http:
            pages = await asyncio.gather(
                *(
                    http.get(
                        f"{service.url}/readyz",
                        headers={"connection": "close"},
                        timeout=READY_S_MAX,  # until the killed one is there again
                    )
                    for _ in "*" * 32
                )
            )
        assert {page.status_code for page in pages} == {httpx2.codes.OK}
        await service.until_said("process 1 was ended by SIGKILL; it is started again in 0.0 s")
        await until_restarted(service, 1, former[1])
        assert service.processes[2] == former[2]
        await until_gone(family - {former[2], *children_of(former[2])})
        assert zombies_of(service.pid) == []
        await until_both_hear(service)
        assert await shares(service) >= SHARE_MIN
        service.send(signal.SIGTERM)
        assert await service.until_ended(STOP_S_MAX) == 0, service.log.read_text()


async def until_both_hear(service: Service) -> None:
    """Return once each of two processes serves, and hears of changes."""

    async def they_do() -> bool:
        try:
            async with http_client() as http:
                page = (await http.get(f"{service.url}/metrics")).text
        except httpx2.TransportError:
            return False
        return {'_live{process="1"} 1.0', '_live{process="2"} 1.0'} <= {
            line.removeprefix("outlast_signal") for line in page.splitlines()
        }

    await until(they_do, READY_S_MAX)


async def shares(service: Service) -> int:
    """How many of many connections the process has that has the fewest."""
    pids, found = list(service.processes.values()), Counter[int]()
    for _ in range(CONNECTIONS):
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        found[await taken_by(service.port, writer, pids)] += 1
        writer.transport.abort()
    return min(found[pid] for pid in pids)


async def test_the_death_of_the_parent_ends_its_processes_in_order(
    database_url: str, tmp_path: Path
):
    async with served(Service(tmp_path, database_url)) as service, http_client() as http:
        note = tmp_path / "note"
        client, family = RawClient(f"{service.url}/mcp", http), service.family()
        running = asyncio.create_task(client.call("note_direct", {"path": str(note), "seconds": 2}))
        await until_lines(note, 1)
        family |= service.family()
        service.kill()
        assert "result" in (await running).body
        await until_gone(family)


async def test_the_death_of_the_parent_ends_its_embedded_database_too(tmp_path: Path):
    async with served(Service(tmp_path, None)) as service:
        family = service.family()
        assert len(family) > 3  # the two, and a server with its own
        service.kill()
        await until_gone(family)
    async with served(Service(tmp_path, None)) as service:
        family = service.family()
        service.send(signal.SIGTERM)
        assert await service.until_ended(STOP_S_MAX) == 0, service.log.read_text()
        await until_gone(family)


async def test_a_log_line_says_which_process_wrote_it(database_url: str, tmp_path: Path):
    async with served(Service(tmp_path, database_url)) as service:
        await until_both_hear(service)  # who does not yet has no loss to tell of
        with psycopg.connect(database_url, autocommit=True) as store:
            store.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        async def both_said() -> bool:
            lines = re.findall(r'"process": (\d)', service.log.read_text())
            return {"1", "2"} <= set(lines)

        await until(both_said, READY_S_MAX)
