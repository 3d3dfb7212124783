"""The client is killed at every step that it writes down, and the next one goes on."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from outlast.service.client import TaskClient
from outlast.service.client.client import Via
from outlast.tests.client.world import PATIENCE_S, VIAS, Person, World, client_of, text_of

pytestmark = pytest.mark.anyio

DRIVER = Path(__file__).with_name("driver.py")
GREETING = "Hello, Ada"


@dataclass(frozen=True)
class Scene:
    """Where the driver leaves what the next client and the test read."""

    folder: Path
    url: str

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    async def killed(self, step: str, tool: str = "ask") -> None:
        """Run the driver until it is killed at this step."""
        files = [str(self.folder / name) for name in ("greeted", "asked")]
        command = [sys.executable, str(DRIVER), self.url, str(self.journal), step, *files, tool]
        with anyio.fail_after(PATIENCE_S):
            ran = await anyio.run_process(
                command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        assert ran.returncode == -signal.SIGKILL, ran.stdout.decode()


@pytest.fixture
def scene(lone: World, tmp_path: Path) -> Scene:
    return Scene(tmp_path, lone.url)


def ada() -> Person:
    return Person(lambda _: {"name": "Ada"})


# The step, how often the first process had shown the question, and how often the second has to.
STEPS = [
    ("after begin", 0, 1),
    ("before accept", 0, 1),  # the task is there, and only the server knows
    ("after accept", 0, 1),
    ("asked", 1, 1),  # nobody had answered yet
    ("before answer", 1, 1),
    ("after answer", 1, 0),  # written down, never sent
    ("before end", 1, 0),
]


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize(("step", "shown", "again"), STEPS, ids=[step for step, _, _ in STEPS])
async def test_after_a_kill_the_task_is_found_and_runs_once(
    scene: Scene, step: str, shown: int, again: int
):
    await scene.killed(step)
    person = ada()
    via = VIAS[[s for s, _, _ in STEPS].index(step) % len(VIAS)]
    async with client_of(scene.url, via, person, scene.journal) as client:
        [handle] = await client.resume()
        assert handle.tool == "ask"
        assert await text_of(handle) == GREETING
        assert await client.resume() == []
    assert (len(scene.lines("asked")), len(person.asked)) == (shown, again)
    assert scene.lines("greeted") == ["greeted"]


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize(("step", "greeted"), [("before begin", []), ("after end", ["greeted"])])
async def test_before_the_intent_and_after_the_end_nothing_is_owed(
    scene: Scene, step: str, greeted: list[str]
):
    await scene.killed(step)
    async with client_of(scene.url, "polling", ada(), scene.journal) as client:
        found = await client.resume()
    assert (list(found), found.lost, found.results, found.failures) == ([], [], [], [])
    assert scene.lines("greeted") == greeted


async def test_an_answer_on_the_call_itself_survives_a_kill(scene: Scene):
    """The question comes before any task; what was answered is not asked again."""
    await scene.killed("after answer", "ask_direct")
    person = ada()
    async with client_of(scene.url, "polling", person, scene.journal) as client:
        found = await client.resume()
    [(entry, result)] = found.results
    assert (entry.tool, result["content"][0]["text"]) == ("ask_direct", GREETING)
    assert (scene.lines("asked"), person.asked) == (["Name?"], [])
    assert scene.lines("greeted") == ["greeted"]


@pytest.mark.promise("client-loses-no-task")
@pytest.mark.parametrize("via", VIAS)
async def test_every_source_resumes_what_another_began(scene: Scene, via: Via):
    (scene.folder / "file").write_text("done")
    async with client_of(scene.url, "polling", None, scene.journal) as client:
        await client.call_tool("wait", {"file": str(scene.folder / "file")})
    async with client_of(scene.url, via, None, scene.journal) as client:
        [handle] = await client.resume()
        assert await text_of(handle) == "done"
        assert [entry.ended async for entry in client.journal_entries()] == ["completed"]


async def test_another_owner_and_another_server_resume_nothing(scene: Scene):
    async with client_of(scene.url, "polling", None, scene.journal) as client:
        await client.call_tool("fast", {"text": "x"})
    async with TaskClient.connect(scene.url, "a token", journal=scene.journal) as other:
        assert await other.resume() == []
    async with TaskClient.connect(f"{scene.url}/", journal=scene.journal) as elsewhere:
        assert await elsewhere.resume() == []


async def test_a_journal_is_for_its_owner_alone(scene: Scene):
    before = os.umask(0)
    try:
        async with client_of(scene.url, "polling", None, scene.folder / "new" / "j.db") as client:
            await client.call_tool("fast", {"text": "x"})
            files = list((scene.folder / "new").iterdir())
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
            assert (scene.folder / "new").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


async def test_what_ended_leaves_no_answers_behind(scene: Scene):
    secret = "a word that nobody may find"
    person = Person(lambda _: {"name": secret})
    async with client_of(scene.url, "polling", person, scene.journal) as client:
        handle = await client.call_tool("ask", {"path": str(scene.folder / "greeted")})
        assert not isinstance(handle, dict)
        assert await text_of(handle) == f"Hello, {secret}"
    assert all(secret.encode() not in file.read_bytes() for file in scene.folder.glob("journal*"))
