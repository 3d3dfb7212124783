"""A CI server as an ordinary MCP server, written with the official SDK alone.

    python examples/ci_server.py                 MCP over stdio
    python examples/ci_server.py --port 8100     MCP over Streamable HTTP, on loopback only

`run_ci_pipeline` checks out a branch, runs its stages one after another and asks before it deploys.
The question ends the call's first leg; what was done so far travels in the sealed request state, so
the second leg runs only the rest, on the same commit, in a fresh checkout. Nothing is kept in this
process between the two: set CI_SERVER_STATE_KEY (32 bytes or more), and a restarted server takes up
a call that an earlier one began. POSIX only: a stage is a process group.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import anyio
from anyio import abc, to_thread
from mcp.server.elicitation import render_elicitation_schema
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
    ToolAnnotations,
)
from mcp_types.version import is_version_at_least
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

STATE_KEY = "CI_SERVER_STATE_KEY"
STATE_S_MAX = 7 * 24 * 3600.0  # an approval may wait this long; a later one is refused
STAGES_MAX = 50
STAGE_S_MAX = 900.0  # a stage that takes longer is ended and counts as failed
GIT_S_MAX = 300.0
KILL_GRACE_S = 1.0  # from SIGTERM to SIGKILL; below the two seconds that a client gives us to leave
OUTPUT_TAIL_BYTES = 4_000  # of each stage; what was printed before that is dropped
WAIT_S_MAX = 600.0
NOT_INHERITED = frozenset({STATE_KEY, "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
APPROVAL_STAGE = "deploy"
APPROVAL_KEY = "approve_deploy"
ROUNDS_SINCE = "2026-07-28"  # from here on a question ends the leg; before, it is asked in mid-call


class Stage(BaseModel):
    """One step of a pipeline: a command for the shell, run in the checkout."""

    name: str = Field(min_length=1, max_length=100)
    run: str = Field(min_length=1, max_length=10_000)
    seconds_max: float = Field(default=STAGE_S_MAX, gt=0, le=STAGE_S_MAX)


def _distinct(stages: list[Stage]) -> list[Stage]:
    if len({stage.name for stage in stages}) < len(stages):
        raise ValueError("two stages have the same name")
    return stages


Stages = Annotated[
    list[Stage], Field(min_length=1, max_length=STAGES_MAX), AfterValidator(_distinct)
]


class StageReport(BaseModel):
    """What became of one stage. `output` is the tail of what it printed."""

    name: str
    status: Literal["passed", "failed", "timed_out", "not_approved", "not_run"]
    exit_code: int | None = None
    seconds: float = 0.0
    output: str = ""


class PipelineReport(BaseModel):
    """What became of a pipeline."""

    branch: str
    commit: str
    outcome: Literal["passed", "failed", "not_approved"]
    note: str | None = None
    stages: list[StageReport]


class Approval(BaseModel):
    """The form that is shown before a deployment."""

    approve: bool = Field(description="Deploy this commit?")
    note: str | None = Field(default=None, max_length=1_000, description="Why, or why not")


class Leg(BaseModel):
    """What one leg hands to the next through the request state."""

    commit: str
    reports: list[StageReport]


@dataclass(frozen=True)
class Ended:
    """A command that is over. No exit code: its time was up."""

    exit_code: int | None
    seconds: float
    output: str


@dataclass(frozen=True)
class Checkout:
    """A working tree of one commit, and the environment in which its stages run."""

    tree: Path
    branch: str
    commit: str
    environment: Mapping[str, str]


async def run_ci_pipeline(
    repository: Annotated[str, Field(description="Path or file URL of a git repository")],
    ctx: Context,
    branch: str = "main",
    stages: Stages | None = None,
) -> Annotated[CallToolResult, PipelineReport] | InputRequiredResult:
    """Check out a branch and run its stages; asks for approval before a stage named `deploy`.

    The stages are those of .ci.toml or ci.toml on that branch, unless the call names its own.
    """
    last = Leg.model_validate_json(ctx.request_state) if ctx.request_state else None
    async with _checkout(_local(repository), branch, last and last.commit) as checkout:
        plan = stages or _stages_of(checkout.tree)
        if any(stage.name == APPROVAL_STAGE for stage in plan):
            _require_elicitation(ctx)
        return await _run_stages(ctx, checkout, plan, last.reports if last else [])


async def _run_stages(
    ctx: Context, checkout: Checkout, plan: Sequence[Stage], done: Sequence[StageReport]
) -> CallToolResult | InputRequiredResult:
    reports, note = list(done), None
    for number, stage in enumerate(plan[len(done) :], start=len(done)):
        if stage.name == APPROVAL_STAGE:
            verdict = await _approval(ctx, checkout, reports)
            if isinstance(verdict, InputRequiredResult):
                return verdict
            note = verdict.note
            if not verdict.approve:
                reports.append(StageReport(name=stage.name, status="not_approved"))
                break
        await ctx.report_progress(number, len(plan), f"{stage.name}: running")
        reports.append(await _run_stage(stage, checkout))
        if reports[-1].status != "passed":
            break
    else:
        await ctx.report_progress(len(plan), len(plan), "all stages passed")
    skipped = [StageReport(name=s.name, status="not_run") for s in plan[len(reports) :]]
    return _result(checkout, reports, skipped, note)


async def _approval(
    ctx: Context, checkout: Checkout, reports: Sequence[StageReport]
) -> Approval | InputRequiredResult:
    """The verdict, or the question with which this leg has to end."""
    passed = ", ".join(report.name for report in reports) or "nothing"
    question = f"Deploy {checkout.branch} at {checkout.commit[:10]}? Passed so far: {passed}."
    if not is_version_at_least(ctx.protocol_version or "", ROUNDS_SINCE):
        try:
            answer = await ctx.elicit(question, Approval)
        except ValueError as error:
            raise ToolError("The answer does not fit the form; nothing was deployed") from error
        return answer.data if answer.action == "accept" else Approval(approve=False)
    # An answer counts only together with the state in which the question was asked: nobody
    # approves a commit that was never shown.
    answer = (ctx.input_responses or {}).get(APPROVAL_KEY) if ctx.request_state else None
    if isinstance(answer, ElicitResult):
        if answer.action != "accept":
            return Approval(approve=False)
        with suppress(ValidationError):  # a form filled in wrongly is shown again
            return Approval.model_validate(answer.content)
    schema = render_elicitation_schema(Approval)
    form = ElicitRequestFormParams(message=question, requested_schema=schema)
    return InputRequiredResult(
        input_requests={APPROVAL_KEY: ElicitRequest(params=form)},
        request_state=Leg(commit=checkout.commit, reports=list(reports)).model_dump_json(),
    )


def _require_elicitation(ctx: Context) -> None:
    """Refuse before any work is done what could not be finished."""
    offered = ctx.client_capabilities and ctx.client_capabilities.elicitation
    # No mode named means forms: that was the only mode once.
    if offered is None or (offered.form is None and offered.url is not None):
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="A pipeline that deploys needs a client that can be asked (form elicitation)",
            data={"requiredCapabilities": {"elicitation": {"form": {}}}},
        )


async def _run_stage(stage: Stage, checkout: Checkout) -> StageReport:
    ended = await _run(stage.run, checkout.tree, checkout.environment, stage.seconds_max)
    report = StageReport(name=stage.name, status="passed", **asdict(ended))
    if ended.exit_code != 0:
        report.status = "timed_out" if ended.exit_code is None else "failed"
    return report


def _result(
    checkout: Checkout, ran: Sequence[StageReport], skipped: Sequence[StageReport], note: str | None
) -> CallToolResult:
    last = ran[-1]
    outcome = last.status if last.status in ("passed", "not_approved") else "failed"
    report = PipelineReport(
        branch=checkout.branch,
        commit=checkout.commit,
        outcome=outcome,
        note=note,
        stages=[*ran, *skipped],
    )
    lines = [f"{checkout.branch} at {checkout.commit[:10]}: {outcome}"]
    lines += [f"- {stage.name}: {stage.status} ({stage.seconds:.1f} s)" for stage in report.stages]
    if outcome == "failed":
        why = "its time was up" if last.exit_code is None else f"exit code {last.exit_code}"
        lines += ["", f"Stage {last.name} failed: {why}. The end of its output:", last.output]
    return CallToolResult(
        content=[TextContent(type="text", text="\n".join(lines))],
        structured_content=report.model_dump(mode="json"),
        is_error=outcome == "failed",
    )


@asynccontextmanager
async def _checkout(source: Path, branch: str, commit: str | None) -> AsyncGenerator[Checkout]:
    """The branch in a folder of its own, at `commit` if one is given; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ci-server-"))
    try:
        tree = folder / "tree"
        await _git(
            folder, "clone", "--quiet", "--no-tags", f"--branch={branch}", "--", str(source), "tree"
        )
        if commit is not None:
            await _git(tree, "checkout", "--quiet", "--detach", commit)
        commit = (await _git(tree, "rev-parse", "HEAD")).strip()
        yield Checkout(tree, branch, commit, _stage_environment(source, branch, commit))
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


def _stage_environment(source: Path, branch: str, commit: str) -> dict[str, str]:
    # `python3` is the Python that runs this server, whatever else the machine has.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    facts = {"CI_REPOSITORY": str(source), "CI_BRANCH": branch, "CI_COMMIT": commit}
    return {**_environment(), "PATH": path, "CI": "true", **facts}


def _environment() -> dict[str, str]:
    """What a child may inherit: not our key, and no repository that we were started in."""
    return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}


def _local(repository: str) -> Path:
    url = urlsplit(repository)
    is_file_url = url.scheme == "file" and url.netloc in ("", "localhost")
    path = Path(url2pathname(url.path) if is_file_url else repository).expanduser().resolve()
    if not path.is_dir():
        raise ToolError(f"No such folder: {repository}. Give a path or a file URL")
    return path


def _stages_of(tree: Path) -> list[Stage]:
    found = next((f for f in (tree / ".ci.toml", tree / "ci.toml") if f.is_file()), None)
    if found is None:
        raise ToolError("The branch has no .ci.toml or ci.toml, and the call names no stages")
    try:
        stages = tomllib.loads(found.read_text(encoding="utf-8")).get("stages")
        return TypeAdapter[list[Stage]](Stages).validate_python(stages)
    except ValueError as error:
        raise ToolError(f"{found.name} is not valid: {error}") from error


async def _git(folder: Path, *arguments: str) -> str:
    # No password prompts, and no transport that could run a command.
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file", "LC_ALL": "C"}
    ended = await _run(["git", *arguments], folder, {**_environment(), **quiet}, GIT_S_MAX)
    if ended.exit_code != 0:
        raise ToolError(f"git {arguments[0]} failed: {ended.output.strip() or 'its time was up'}")
    return ended.output


async def _run(
    command: str | Sequence[str], folder: Path, environment: Mapping[str, str], seconds_max: float
) -> Ended:
    """Run a command; nothing of it is left when this returns or raises."""
    began, tail = anyio.current_time(), bytearray()
    async with _group(command, folder, environment) as process:
        with anyio.move_on_after(seconds_max) as limit:
            async for chunk in cast(abc.ByteReceiveStream, process.stdout):
                tail += chunk
                del tail[:-OUTPUT_TAIL_BYTES]
            await process.wait()
    exit_code = None if limit.cancelled_caught else process.returncode
    seconds = round(anyio.current_time() - began, 3)
    return Ended(exit_code, seconds, tail.decode(errors="replace"))


@asynccontextmanager
async def _group(
    command: str | Sequence[str], folder: Path, environment: Mapping[str, str]
) -> AsyncGenerator[abc.Process]:
    """A command in a process group of its own, which ends with the block."""
    # Shielded until somebody owns the process: a cancellation before that would leave it running.
    with anyio.CancelScope(shield=True) as starting:
        process = await anyio.open_process(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,  # the server's own belongs to the protocol
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            starting.shield = False
            yield process
        finally:
            await _end_group(process)


async def _end_group(process: abc.Process) -> None:
    """End what is left of the group: politely while its leader lives, then for good."""
    leader_lives = process.returncode is None
    for how in (signal.SIGTERM, signal.SIGKILL) if leader_lives else (signal.SIGKILL,):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        with anyio.move_on_after(KILL_GRACE_S, shield=True):
            await process.wait()


async def list_branches(repository: str) -> list[str]:
    """The branches of a git repository, by name."""
    names = "--format=%(refname:short)"
    listed = await _git(_local(repository), "for-each-ref", names, "refs/heads")
    return listed.split()


async def wait(seconds: Annotated[float, Field(ge=0, le=WAIT_S_MAX)], ctx: Context) -> str:
    """Wait, and say every second how much of it is over. Does nothing else."""
    end = anyio.current_time() + seconds
    while (left := end - anyio.current_time()) > 0:
        await ctx.report_progress(seconds - left, seconds, f"{left:.0f} s left")
        await anyio.sleep(min(1.0, left))  # noqa: TID251 - waiting is what this tool is for
    return f"Waited {seconds:g} s"


def build_server() -> MCPServer:
    """The server with its three tools. Raises ValueError for a state key that is too short."""
    key = os.environ.get(STATE_KEY)
    # Without a key of its own, what this process sealed dies with it.
    security = RequestStateSecurity(keys=[key or secrets.token_bytes()], ttl=STATE_S_MAX)
    server = MCPServer("ci", version="1.0", request_state_security=security, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    acts = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)
    server.add_tool(run_ci_pipeline, title="Run a CI pipeline", annotations=acts)
    server.add_tool(list_branches, title="List branches", annotations=reads)
    server.add_tool(wait, title="Wait", annotations=reads)
    return server


def main() -> None:
    """Serve until the client leaves."""
    parser = argparse.ArgumentParser(description="A CI server that speaks MCP")
    parser.add_argument("--port", type=int, help="serve Streamable HTTP on 127.0.0.1")
    port: int | None = parser.parse_args().port
    server = build_server()
    if port is not None:
        return server.run("streamable-http", host="127.0.0.1", port=port)
    return server.run()


if __name__ == "__main__":
    main()
