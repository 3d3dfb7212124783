"""A newcomer's first look: one pipeline as a task, watched and answered over plain HTTP.

What is sent here is all that a client has to know: call a tool, get a task id, ask how it is going,
answer what it asks, read the result. Beside it the same task is watched by every way that Outlast
has, which is `ways`. Starting the server and making a database are not in this file.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import orjson
from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm
from rich.table import Table

from .client.reach import Via
from .client.ways import WAYS, watched

TOOL = "run_ci_pipeline"
PROTOCOL = "2026-07-28"
ANSWER_S_MAX = 60.0  # one HTTP exchange; none of them waits for the pipeline
POLL_MS_DEFAULT = 1_000

# Who we are and what we can do travels with every request: no session, no handshake.
META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL,
    "io.modelcontextprotocol/clientInfo": {"name": "outlast-demo", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    },
}

Json = dict[str, Any]


class CallRefused(Exception):
    """The server answered with a JSON-RPC error."""


class Wire:
    """One JSON-RPC request a POST."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http, self._url, self._ids = http, url, itertools.count(1)

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """Begin the call; what comes back is a task, or the result of a tool that was quick."""
        return await self._send("tools/call", name, {"name": name, "arguments": arguments})

    async def get_task(self, task_id: str) -> Json:
        """How the task is going."""
        return await self._send("tasks/get", task_id, {"taskId": task_id})

    async def answer(self, task_id: str, answers: Json) -> None:
        """Answer questions of the task, by their keys."""
        params = {"taskId": task_id, "inputResponses": answers}
        await self._send("tasks/update", task_id, params)

    async def _send(self, method: str, name: str, params: Json) -> Json:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            "Mcp-Name": name,
        }
        body = {
            "jsonrpc": "2.0",
            "id": next(self._ids),
            "method": method,
            "params": {**params, "_meta": META},
        }
        reply = await self._http.post(self._url, json=body, headers=headers)
        answer = _last_message(reply)
        if "error" in answer:
            raise CallRefused(f"{answer['error']['message']} ({answer['error']['code']})")
        return answer["result"]


def _last_message(reply: httpx2.Response) -> Json:
    """The response message; a server may send it as the last event of a stream."""
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        events = [line[5:] for line in reply.text.splitlines() if line.startswith("data:")]
        return orjson.loads(events[-1])
    if not reply.content:
        reply.raise_for_status()
    return orjson.loads(reply.content)


async def run_demo(
    base_url: str,
    *,
    approve: bool | None,
    repository: Path,
    console: Console,
    ways: Sequence[Via] = WAYS,
) -> int:
    """Run the pipeline of `repository` as a task of the server at `base_url`; 0 when it passed.

    `approve` answers the question before the deployment; None asks whoever sits at the terminal.
    """
    arguments = {"repository": str(repository), "branch": "main"}
    console.print(f"Calling [bold]{TOOL}[/] on {escape(str(repository))}")
    try:
        async with httpx2.AsyncClient(timeout=ANSWER_S_MAX) as http:
            wire = Wire(http, base_url)
            answer = await wire.call_tool(TOOL, arguments)
            if answer.get("resultType") != "task":
                return _show_result(answer, console)
            console.print(f"It is a task now: [bold cyan]{answer['taskId']}[/]")
            console.print("[dim]This id is all that a client has to keep in the meantime.[/]")
            async with watched(base_url, answer["taskId"], ways) as heard:
                task = await _follow(wire, answer, approve, console)
            code = _show_end(task, console)
            if ways:
                console.print(heard.table())
            return code
    except (CallRefused, httpx2.HTTPError, orjson.JSONDecodeError) as error:
        console.print(f"[red]{type(error).__name__}:[/] {escape(str(error))}")
        return 1


async def _follow(wire: Wire, task: Json, approve: bool | None, console: Console) -> Json:
    """Poll until the task has ended, at the pace that the server asks for."""
    answered: set[str] = set()
    shown: tuple[str, str] | None = None
    with console.status("working") as spinner:
        while task["status"] in ("working", "input_required"):
            news = task["status"], task.get("statusMessage") or ""
            if news != shown:
                shown = news
                console.print(f"  [yellow]{news[0]:<15}[/]{escape(news[1])}")
                spinner.update(escape(news[1] or news[0]))
            # A poll may show a question once more before the answer has taken effect.
            asked = {k: q for k, q in task.get("inputRequests", {}).items() if k not in answered}
            if asked:
                spinner.stop()
                answers = {k: await _ask(q, approve, console) for k, q in asked.items()}
                await wire.answer(task["taskId"], answers)
                answered |= asked.keys()
                spinner.start()
            await anyio.sleep(_pause_s(task))  # noqa: TID251 - the pace is the server's wish
            task = await wire.get_task(task["taskId"])
    return task


def _pause_s(task: Json) -> float:
    return task.get("pollIntervalMs", POLL_MS_DEFAULT) / 1000


async def _ask(request: Json, approve: bool | None, console: Console) -> Json:
    """The answer to one elicitation: accepted with the filled-in form, or declined."""
    console.print(f"  [bold magenta]question[/]       {escape(request['params']['message'])}")
    if approve is None and sys.stdin.isatty():
        approve = await anyio.to_thread.run_sync(
            lambda: Confirm.ask("  Approve?", console=console, default=True)
        )
    elif approve is None:
        approve = False
        console.print("  [dim]There is no terminal to ask at, so the answer is no.[/]")
    else:
        console.print(f"  [dim]Answered for you: {'yes' if approve else 'no'}.[/]")
    return {"action": "accept", "content": {"approve": True}} if approve else {"action": "decline"}


def _show_end(task: Json, console: Console) -> int:
    colour = {"completed": "green"}.get(task["status"], "red")
    message = task.get("statusMessage") or task.get("error", {}).get("message", "")
    console.print(f"  [{colour}]{task['status']:<15}[/]{escape(message)}")
    return _show_result(task["result"], console) if task["status"] == "completed" else 1


def _show_result(result: Json, console: Console) -> int:
    """The pipeline's report as a table, or the text of whatever came back."""
    report = result.get("structuredContent")
    if report and "stages" in report:
        table = Table("stage", "status", "seconds", title=f"main at {report['commit'][:10]}")
        for stage in report["stages"]:
            table.add_row(stage["name"], stage["status"], f"{stage['seconds']:.2f}")
        console.print(table)
    texts = [block["text"] for block in result.get("content", []) if block["type"] == "text"]
    if result.get("isError") or not report:
        console.print(escape("\n".join(texts)))
    return 1 if result.get("isError") else 0


def make_demo_repository(folder: Path) -> Path:
    """A small Python project under git in `folder`, made once; returns `folder`.

    It needs no git configuration and changes none.
    """
    if (folder / ".git" / "refs" / "heads" / "main").exists():
        return folder
    for name, text in _PROJECT.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    _git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--no-verify", "--message=A small project with a pipeline")
    return folder


def _git(folder: Path, *arguments: str) -> None:
    settings = {
        "user.name": "Outlast demo",
        "user.email": "demo@localhost",
        "commit.gpgsign": "false",
        "core.excludesFile": os.devnull,
    }
    options = [word for item in settings.items() for word in ("-c", "=".join(item))]
    # Inside a git hook these name the repository of the hook.
    strange = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in strange}
    subprocess.run(["git", *options, *arguments], cwd=folder, env=environment, check=True)


# What a stage leaves for a later one it puts beside the repository, as into a package store: a
# checkout does not outlive its leg of the call.
_PROJECT: Mapping[str, str] = {
    ".gitignore": "/dist/\n/deployed/\n__pycache__/\n",
    "ci.toml": """\
[[stages]]
name = "test"
run = "python3 -m unittest -v"

[[stages]]
name = "lint"
run = "python3 -W error -m compileall -q primes.py test_primes.py tools"

[[stages]]
name = "build"
run = "python3 tools/build.py"

[[stages]]
name = "deploy"
run = "python3 tools/deploy.py"
""",
    "primes.py": '''\
"""Primes, slowly."""


def is_prime(number: int) -> bool:
    """True for a prime, by trying every smaller divisor."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
''',
    "test_primes.py": """\
import unittest

from primes import is_prime


class PrimesTest(unittest.TestCase):
    def test_the_first_primes(self):
        self.assertEqual([n for n in range(20) if is_prime(n)], [2, 3, 5, 7, 11, 13, 17, 19])

    def test_there_are_17984_primes_below_two_hundred_thousand(self):
        self.assertEqual(sum(map(is_prime, range(200_000))), 17_984)
""",
    "tools/build.py": '''\
"""Pack the sources of this commit into dist/ beside the repository."""

import os
import pathlib
import zipfile

dist = pathlib.Path(os.environ["CI_REPOSITORY"], "dist")
dist.mkdir(exist_ok=True)
package = dist / f"primes-{os.environ['CI_COMMIT'][:10]}.zip"
with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write("primes.py")
print("built", package.name)
''',
    "tools/deploy.py": '''\
"""Copy the package of this commit into deployed/ beside the repository."""

import os
import pathlib
import shutil

repository = pathlib.Path(os.environ["CI_REPOSITORY"])
package = repository / "dist" / f"primes-{os.environ['CI_COMMIT'][:10]}.zip"
deployed = repository / "deployed"
deployed.mkdir(exist_ok=True)
shutil.copy(package, deployed)
print("deployed", package.name)
''',
}
