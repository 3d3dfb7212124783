"""The demo's client half against a scripted server: what it sends, shows and returns."""

import io
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from fastapi import FastAPI, Request
from rich.console import Console

from outlast.service.cli.demo import make_demo_repository, run_demo
from outlast.service.hosting import HttpServer

pytestmark = pytest.mark.anyio

TASK = {"taskId": "t-1", "pollIntervalMs": 1, "resultType": "complete"}
QUESTION = {"method": "elicitation/create", "params": {"message": "Deploy main?"}}
ASKING = {**TASK, "status": "input_required", "inputRequests": {"in-1": QUESTION}}
WORKING = {**TASK, "status": "working", "statusMessage": "test: running"}
STAGE = {"name": "test", "status": "passed", "seconds": 1.5}
REPORT = {"commit": "c" * 40, "stages": [STAGE]}
PASSED = {"content": [], "structuredContent": REPORT, "isError": False}
FAILED = {"content": [{"type": "text", "text": "Stage test failed"}], "isError": True}


class Script:
    """Gives one answer after another, and keeps what was sent."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if body["method"] == "tasks/update":
            return {"jsonrpc": "2.0", "id": body["id"], "result": {"resultType": "complete"}}
        answer = self._answers.pop(0)
        kind = "error" if "code" in answer else "result"
        return {"jsonrpc": "2.0", "id": body["id"], kind: answer}

    @property
    def methods(self) -> list[str]:
        return [body["method"] for body in self.bodies]


@asynccontextmanager
async def served(script: Script) -> AsyncGenerator[str]:
    app = FastAPI()
    app.add_api_route("/mcp", script.__call__, methods=["POST"])
    server = HttpServer(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


async def play(script: Script, approve: bool | None = True) -> tuple[int, str]:
    out = io.StringIO()
    console = Console(file=out, width=100)
    with anyio.fail_after(60):
        async with served(script) as url:
            code = await run_demo(
                url, approve=approve, repository=Path("/project"), console=console, ways=()
            )
    return code, out.getvalue()


def task(**more: Any) -> dict[str, Any]:
    return {**TASK, **more}


async def test_a_task_is_followed_answered_once_and_shown_to_its_end():
    created = {**WORKING, "resultType": "task"}
    script = Script(created, ASKING, ASKING, WORKING, task(status="completed", result=PASSED))
    code, shown = await play(script)
    assert code == 0
    assert script.methods == ["tools/call", "tasks/get", "tasks/update", *["tasks/get"] * 3]
    answer = {"action": "accept", "content": {"approve": True}}
    assert script.bodies[2]["params"]["inputResponses"] == {"in-1": answer}
    for text in ("t-1", "test: running", "Deploy main?", "Answered for you: yes", "passed", "1.50"):
        assert text in shown


async def test_every_request_names_its_version_its_method_and_its_target():
    script = Script({**ASKING, "resultType": "task"}, task(status="completed", result=PASSED))
    await play(script)
    named = [(h["mcp-method"], h["mcp-name"], h["mcp-protocol-version"]) for h in script.headers]
    version = "2026-07-28"
    assert named == [
        ("tools/call", "run_ci_pipeline", version),
        ("tasks/update", "t-1", version),
        ("tasks/get", "t-1", version),
    ]
    for body in script.bodies:
        meta = body["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == version
        capabilities = meta["io.modelcontextprotocol/clientCapabilities"]
        assert "io.modelcontextprotocol/tasks" in capabilities["extensions"]


async def test_a_declined_question_is_declined_on_the_wire():
    script = Script({**ASKING, "resultType": "task"}, task(status="completed", result=PASSED))
    await play(script, approve=False)
    assert script.bodies[1]["params"]["inputResponses"] == {"in-1": {"action": "decline"}}


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        (
            [{**WORKING, "resultType": "task"}, task(status="completed", result=FAILED)],
            "Stage test",
        ),
        ([{**WORKING, "resultType": "task"}, task(status="cancelled")], "cancelled"),
        (
            [{**WORKING, "resultType": "task"}, task(status="failed", error={"message": "lost"})],
            "lost",
        ),
        ([{"code": -32602, "message": "no such tool"}], "no such tool"),
    ],
    ids=["isError", "cancelled", "failed", "refused"],
)
async def test_whatever_is_not_a_passed_pipeline_returns_one_and_says_why(
    answers: list[dict[str, Any]], word: str
):
    code, shown = await play(Script(*answers))
    assert code == 1
    assert word in shown


async def test_a_result_that_came_at_once_is_shown_without_a_task():
    script = Script({**PASSED, "resultType": "complete"})
    code, shown = await play(script)
    assert (code, script.methods) == (0, ["tools/call"])
    assert "task now" not in shown


def test_the_demo_repository_is_made_once_and_neither_reads_nor_writes_git_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    ignore = home / ".config/git/ignore"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("tools\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    first = make_demo_repository(tmp_path / "project")
    head = (first / ".git/refs/heads/main").read_text()
    assert make_demo_repository(tmp_path / "project") == first
    assert (first / ".git/refs/heads/main").read_text() == head
    assert [path.name for path in home.rglob("*")] == [".config", "git", "ignore"]
    monkeypatch.delenv("GIT_DIR")
    listed = subprocess.run(
        ["git", "ls-files", "tools"], cwd=first, check=True, capture_output=True, text=True
    )
    assert listed.stdout.split() == ["tools/build.py", "tools/deploy.py"]
    assert "demo@localhost" not in (first / ".git/config").read_text()
