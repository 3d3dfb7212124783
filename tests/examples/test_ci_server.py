"""The example upstream, driven over stdio by the official client, with no Outlast between."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client import stdio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult, InputResponses

from outlast.examples import ci_server
from outlast.service.cli.demo import make_demo_repository
from outlast.tests.support.upstreams import is_alive

pytestmark = pytest.mark.anyio

BOUND_S = 120
LOOK_AGAIN_S = 0.02
KEY = "k" * 32
PIPELINE = "run_ci_pipeline"

Answer = Callable[[str], ElicitResult]


class User:
    """Answers every question alike, and remembers what was asked."""

    def __init__(self, action: str = "accept", **form: Any) -> None:
        self.answer = ElicitResult.model_validate({"action": action, "content": form or None})
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return self.answer


class Desk:
    """A demo repository, and a place where servers put their checkouts."""

    def __init__(self, folder: Path) -> None:
        self.repository = make_demo_repository(folder / "project")
        self.checkouts = folder / "checkouts"
        self.checkouts.mkdir()
        self.ran = folder / "ran"
        self._log = folder / "server.log"

    @asynccontextmanager
    async def client(
        self, user: User | None = None, mode: str = "auto", key: str | None = KEY
    ) -> AsyncIterator[Client]:
        """A fresh server process, and a client of it."""
        environment = {"TMPDIR": str(self.checkouts)} | ({ci_server.STATE_KEY: key} if key else {})
        server = StdioServerParameters(
            command=sys.executable, args=[ci_server.__file__], env=environment
        )
        with anyio.fail_after(BOUND_S), self._log.open("a") as log:
            transport = stdio_client(server, errlog=log)
            async with Client(transport, mode=mode, elicitation_callback=user) as client:
                yield client

    def stage(self, name: str, command: str = "true", **more: Any) -> dict[str, Any]:
        """A stage that leaves its name in `ran` before its command."""
        return {"name": name, "run": f"echo {name} >> '{self.ran}'; {command}", **more}

    def call(self, *stages: dict[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = {"repository": str(self.repository)}
        return {**arguments, "stages": list(stages)} if stages else arguments

    @property
    def stages_run(self) -> list[str]:
        return self.ran.read_text().split() if self.ran.exists() else []

    @property
    def leftovers(self) -> list[str]:
        return [path.name for path in self.checkouts.iterdir()]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is left gets the time to clean up, however busy the machine is."""
    monkeypatch.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", float(BOUND_S))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_an_approved_pipeline_tests_builds_and_deploys_the_demo_project(desk: Desk):
    user, seen = User(approve=True, note="go"), []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with desk.client(user) as client:
        result = await client.call_tool(PIPELINE, desk.call(), progress_callback=note)

    assert not result.is_error, text_of(result)
    assert report_of(result)["outcome"] == "passed"
    assert report_of(result)["note"] == "go"
    assert statuses(result) == dict.fromkeys(["test", "lint", "build", "deploy"], "passed")
    assert "Ran 2 tests" in report_of(result)["stages"][0]["output"]
    commit = head_of(desk.repository)
    assert report_of(result)["commit"] == commit
    assert [f.name for f in (desk.repository / "deployed").iterdir()] == [
        f"primes-{commit[:10]}.zip"
    ]
    assert user.asked == [f"Deploy main at {commit[:10]}? Passed so far: test, lint, build."]
    names = ["test", "lint", "build", "deploy"]
    assert seen == [
        *((number, 4, f"{name}: running") for number, name in enumerate(names)),
        (4, 4, "all stages passed"),
    ]
    assert desk.leftovers == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_stage_runs_once_although_the_question_stands_between_them(
    desk: Desk, mode: str
):
    stages = [desk.stage("test"), desk.stage("deploy"), desk.stage("announce")]
    user = User(approve=True)
    async with desk.client(user, mode) as client:
        assert (client.protocol_version < "2026") == (mode == "legacy")
        result = await client.call_tool(PIPELINE, desk.call(*stages))
    assert statuses(result) == dict.fromkeys(["test", "deploy", "announce"], "passed")
    assert desk.stages_run == ["test", "deploy", "announce"]
    assert len(user.asked) == 1
    assert desk.leftovers == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    "user", [User("decline"), User("cancel"), User(approve=False)], ids=["decline", "cancel", "no"]
)
async def test_without_approval_nothing_is_deployed_and_the_result_says_so(
    desk: Desk, mode: str, user: User
):
    stages = [desk.stage("test"), desk.stage("deploy"), desk.stage("announce")]
    async with desk.client(user, mode) as client:
        result = await client.call_tool(PIPELINE, desk.call(*stages))
    assert not result.is_error
    assert report_of(result)["outcome"] == "not_approved"
    assert statuses(result) == {"test": "passed", "deploy": "not_approved", "announce": "not_run"}
    assert desk.stages_run == ["test"]


async def test_a_failing_stage_ends_the_pipeline_with_its_exit_code_and_the_end_of_its_output(
    desk: Desk,
):
    noisy = "seq 1 100000; echo broken here >&2; exit 7"
    async with desk.client(User(approve=True)) as client:
        result = await client.call_tool(
            PIPELINE, desk.call(desk.stage("test", noisy), desk.stage("deploy"))
        )
    assert result.is_error
    assert "Stage test failed: exit code 7" in text_of(result)
    failed = report_of(result)["stages"][0]
    assert (failed["status"], failed["exit_code"]) == ("failed", 7)
    assert failed["output"].endswith("100000\nbroken here\n")
    assert len(failed["output"]) == ci_server.OUTPUT_TAIL_BYTES
    assert statuses(result)["deploy"] == "not_run"
    assert desk.stages_run == ["test"]
    assert desk.leftovers == []


async def test_a_stage_whose_time_is_up_is_ended_with_all_its_children(desk: Desk):
    command = f"{sleeper(desk)} & wait"
    async with desk.client() as client:
        for seconds in (0.3, 3.0, 30.0):  # until the child had the time to begin
            stage = desk.stage("slow", command, seconds_max=seconds)
            result = await client.call_tool(PIPELINE, desk.call(stage))
            assert statuses(result) == {"slow": "timed_out"}
            assert "its time was up" in text_of(result)
            if Path(f"{desk.ran}.pid").exists():
                break
    await gone(await pid_of(desk))


async def test_cancelling_ends_the_running_stage_and_leaves_the_server_free_for_the_next(
    desk: Desk,
):
    stages = [desk.stage("test", sleeper(desk)), desk.stage("never")]
    async with desk.client() as client:
        tasks = anyio.create_task_group()
        async with tasks:
            tasks.start_soon(client.call_tool, PIPELINE, desk.call(*stages))
            await pid_of(desk)
            assert len(desk.leftovers) == 1
            tasks.cancel_scope.cancel()
        await gone(await pid_of(desk))
        await until(lambda: not desk.leftovers)
        result = await client.call_tool(PIPELINE, desk.call(desk.stage("another")))
    assert statuses(result) == {"another": "passed"}
    assert desk.stages_run == ["test", "another"]


async def test_a_client_that_leaves_takes_its_stages_with_it(desk: Desk):
    async with anyio.create_task_group() as tasks:
        async with desk.client() as client:
            tasks.start_soon(ignore_the_end, client, desk.call(desk.stage("a", sleeper(desk))))
            await pid_of(desk)
        await gone(await pid_of(desk))
    await until(lambda: not desk.leftovers)


async def test_another_process_with_the_same_key_takes_up_the_second_leg(desk: Desk):
    call = desk.call(desk.stage("test"), desk.stage("deploy"))
    commit = head_of(desk.repository)
    async with desk.client(User()) as client:
        asked = await first_leg(client, call)
    assert desk.leftovers == []
    move_on(desk.repository)
    async with desk.client(User()) as client:
        result = await client.call_tool(
            PIPELINE, call, input_responses=yes_to(asked), request_state=asked.request_state
        )
    assert statuses(result) == {"test": "passed", "deploy": "passed"}
    assert report_of(result)["commit"] == commit != head_of(desk.repository)
    assert desk.stages_run == ["test", "deploy"]


async def test_a_process_without_the_key_refuses_the_second_leg(desk: Desk):
    call = desk.call(desk.stage("test"), desk.stage("deploy"))
    async with desk.client(User(), key=None) as client:
        asked = await first_leg(client, call)
    async with desk.client(User(), key=None) as client:
        with pytest.raises(MCPError, match="requestState"):
            await client.call_tool(
                PIPELINE, call, input_responses=yes_to(asked), request_state=asked.request_state
            )
    assert desk.stages_run == ["test"]


async def test_an_answer_without_its_question_deploys_nothing(desk: Desk):
    call = desk.call(desk.stage("deploy"))
    async with desk.client(User()) as client:
        asked = await first_leg(client, call)
        again = await client.session.call_tool(
            PIPELINE, call, input_responses=yes_to(asked), allow_input_required=True
        )
    assert isinstance(again, InputRequiredResult)
    assert desk.stages_run == []


async def test_a_form_filled_in_wrongly_is_shown_again_and_runs_nothing_twice(desk: Desk):
    call = desk.call(desk.stage("test"), desk.stage("deploy"))
    async with desk.client(User()) as client:
        asked = await first_leg(client, call)
        wrong: InputResponses = {
            key: ElicitResult(action="accept", content={}) for key in yes_to(asked)
        }
        again = await client.session.call_tool(
            PIPELINE,
            call,
            input_responses=wrong,
            request_state=asked.request_state,
            allow_input_required=True,
        )
    assert isinstance(again, InputRequiredResult)
    assert again.input_requests == asked.input_requests
    assert desk.stages_run == ["test"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_cannot_be_asked_is_refused_before_any_stage_runs(
    desk: Desk, mode: str
):
    async with desk.client(mode=mode) as client:
        with pytest.raises(MCPError, match="elicitation"):
            await client.call_tool(PIPELINE, desk.call(desk.stage("test"), desk.stage("deploy")))
    assert desk.stages_run == []


async def test_stages_see_the_facts_of_the_run_but_not_the_key_that_seals_the_state(desk: Desk):
    show = 'echo "$CI_BRANCH $CI_COMMIT $CI_REPOSITORY"; env'
    async with desk.client() as client:
        result = await client.call_tool(PIPELINE, desk.call(desk.stage("show", show)))
    output = report_of(result)["stages"][0]["output"]
    assert output.startswith(f"main {head_of(desk.repository)} {desk.repository}\n")
    assert KEY not in output


async def test_a_call_that_cannot_work_says_why(desk: Desk):
    twice = [{"name": "a", "run": "true"}] * 2
    cases: list[tuple[dict[str, Any], str]] = [
        ({"repository": "https://example.test/x.git"}, "path or a file URL"),
        ({"branch": "nowhere"}, "nowhere"),
        ({"branch": "--upload-pack=x"}, "git clone failed"),
        ({"stages": []}, "at least 1 item"),
        ({"stages": twice}, "same name"),
    ]
    async with desk.client() as client:
        for change, reason in cases:
            result = await client.call_tool(PIPELINE, desk.call() | change)
            assert result.is_error
            assert reason in text_of(result)
    assert desk.leftovers == []


async def test_the_hints_tell_which_tools_are_safe_to_call_again(desk: Desk):
    async with desk.client() as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        branches = await client.call_tool("list_branches", {"repository": desk.repository.as_uri()})
    hints = {
        n: (a.read_only_hint, a.idempotent_hint, a.destructive_hint) for n, a in tools.items() if a
    }
    assert hints == {
        "run_ci_pipeline": (False, False, True),
        "list_branches": (True, True, None),
        "wait": (True, True, None),
    }
    assert branches.structured_content == {"result": ["main"]}


async def test_waiting_tells_how_much_is_over(desk: Desk):
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with desk.client() as client:
        result = await client.call_tool("wait", {"seconds": 4.1}, progress_callback=note)
        refused = await client.call_tool("wait", {"seconds": ci_server.WAIT_S_MAX + 1})
    assert text_of(result) == "Waited 4.1 s"
    assert len(seen) >= 2
    assert seen == sorted(set(seen))
    assert refused.is_error


def text_of(result: CallToolResult) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


def report_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None, text_of(result)
    return result.structured_content


def statuses(result: CallToolResult) -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in report_of(result)["stages"]}


def head_of(repository: Path) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def move_on(repository: Path) -> None:
    """One more commit on the branch."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "commit", "--quiet", "--allow-empty", "--message=later"]
    subprocess.run(command, cwd=repository, check=True)


async def first_leg(client: Client, call: dict[str, Any]) -> InputRequiredResult:
    asked = await client.session.call_tool(PIPELINE, call, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    return asked


def yes_to(asked: InputRequiredResult) -> InputResponses:
    yes = ElicitResult(action="accept", content={"approve": True})
    return dict.fromkeys(asked.input_requests or {}, yes)


async def ignore_the_end(client: Client, call: dict[str, Any]) -> None:
    with pytest.raises(MCPError):
        await client.call_tool(PIPELINE, call)


def sleeper(desk: Desk) -> str:
    """A command that writes its process id and then takes far too long."""
    return f"sh -c 'echo $$ > {desk.ran}.new; mv {desk.ran}.new {desk.ran}.pid; exec sleep 60'"


async def pid_of(desk: Desk) -> int:
    file = Path(f"{desk.ran}.pid")
    await until(file.exists)
    return int(file.read_text())


async def gone(pid: int) -> None:
    await until(lambda: not is_alive(pid))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(BOUND_S):
        while not condition():
            with anyio.move_on_after(LOOK_AGAIN_S):
                await anyio.sleep_forever()
