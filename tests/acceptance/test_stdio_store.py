"""What outlives `outlast stdio`: its tasks, and the one store that all in a folder share."""

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest

from outlast.tests.acceptance.stdio_store import servers, until_no_store
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.lines import ANSWER_S_MAX, END_S_MAX, Talk, talking
from outlast.tests.support.serving import OUTLAST, command_of

pytestmark = pytest.mark.anyio

RESTART_S_MAX = 120.0  # of a server that was left behind and is ended first
UPSTREAM = Path(__file__).with_name("slow_server.py")
CONFIG = f"[upstreams.slow]\ncommand = {command_of(UPSTREAM)}\n" + "".join(
    f'[tools.{tool}]\nrun = "task"\n' for tool in ("slow_echo", "fails")
)


def arguments(folder: Path) -> list[str]:
    file = folder / "outlast.toml"
    file.write_text(CONFIG)
    return ["--config", str(file)]


@pytest.mark.promise("stdio-tasks-outlive-the-process")
async def test_a_task_goes_on_in_the_next_process_after_a_kill(tmp_path: Path):
    flags = arguments(tmp_path)
    async with talking(tmp_path, flags) as talk:
        task_id = await talk.opened("slow_echo", {"text": "durable", "seconds": 4})
        talk.process.kill()
        await talk.process.wait()
    async with talking(tmp_path, flags) as talk:
        ended = await talk.until_ended(task_id)
        assert ended["result"]["content"][0]["text"] == "durable"
        assert ended["status"] == "completed"
        await talk.hang_up()
        assert await talk.ended() == 0
    await until_no_store(tmp_path)


@pytest.mark.promise("stdio-clients-share-a-store")
async def test_several_in_one_folder_have_one_store_that_goes_with_the_last(tmp_path: Path):
    flags = arguments(tmp_path)
    async with talking(tmp_path, flags) as first, talking(tmp_path, flags) as second:
        started: list[str] = []

        async def begin(talk: Talk) -> None:
            started.append(await talk.opened("slow_echo", {"text": "x", "seconds": 3}))

        async with anyio.create_task_group() as group:  # both find no store, and one makes it
            group.start_soon(begin, first)
            group.start_soon(begin, second)
        assert len(servers(tmp_path)) == 1
        first.process.kill()  # whoever was there first
        await first.process.wait()
        for task_id in started:
            assert (await second.until_ended(task_id))["status"] == "completed"
        async with talking(tmp_path, flags) as third:
            await third.ask("tasks/get", {"taskId": started[0]})
            await second.hang_up()
            assert await second.ended() == 0
            assert (await third.ask("tasks/get", {"taskId": started[1]}))["result"]
            await third.hang_up()
            assert await third.ended() == 0
    await until_no_store(tmp_path)


@pytest.mark.promise("stdio-clients-share-a-store")
@pytest.mark.parametrize("length", [0, 100])
async def test_a_store_whose_keeper_is_killed_is_there_again(length: int, tmp_path: Path):
    if length:  # longer than the path of a socket may be
        tmp_path = tmp_path / ("long" * (length // 4))
        tmp_path.mkdir()
    async with talking(tmp_path, arguments(tmp_path)) as talk:
        await talk.ask("tasks/get", {"taskId": "x"})
        lock = tmp_path / ".outlast" / "owner.lock"
        owner = lock.read_text().splitlines()[0]
        os.kill(int(owner), signal.SIGKILL)

        async def has_new_owner() -> bool:
            told = lock.read_text().splitlines()
            return len(told) > 1 and told[0] != owner  # and it says where its server is

        async def is_served() -> bool:
            answer = await talk.ask("tasks/get", {"taskId": "x"})
            return answer["error"]["code"] == -32602

        await until(has_new_owner, RESTART_S_MAX)
        await until(is_served, ANSWER_S_MAX)
        await talk.hang_up()
        assert await talk.ended() == 0
    await until_no_store(tmp_path)


@pytest.mark.promise("stdio-clients-share-a-store")
async def test_a_folder_that_a_service_owns_is_joined(tmp_path: Path):
    folder = ["--port", "0", *arguments(tmp_path)]
    service = await anyio.open_process(
        [str(OUTLAST), "serve", *folder], cwd=tmp_path, stderr=sys.stderr
    )
    try:
        assert service.stdout is not None
        with anyio.fail_after(ANSWER_S_MAX):
            assert b"serving" in await service.stdout.receive()
        async with talking(tmp_path, arguments(tmp_path)) as talk:
            task_id = await talk.opened("fails", {})
            assert (await talk.until_ended(task_id))["status"] == "failed"
            assert len(servers(tmp_path)) == 1
            await talk.hang_up()
            assert await talk.ended() == 0
        assert len(servers(tmp_path)) == 1, "the service's store went with its guest"
    finally:
        service.terminate()
        with anyio.fail_after(END_S_MAX):
            await service.wait()
        await service.aclose()
