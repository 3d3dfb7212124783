"""A server of the old kind behind Outlast: its jobs as files, and what was asked of its tools."""

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import RawClient

BATCH = Path(__file__).parents[1] / "upstreams" / "batch_server.py"
PATIENCE_S = 60.0

BRIDGE = """
job_id = "structuredContent.job_id"
repeat = ["folder"]
status_tool = "job_status"
status = "structuredContent.state"
working = ["queued", "running"]
completed = ["done"]
failed = ["error"]
cancelled = ["cancelled"]
message = "structuredContent.message"
progress = "structuredContent.percent"
total = 100
result_tool = "job_result"
cancel_tool = "cancel_job"
poll_min = "100ms"
poll_max = "300ms"
lost_after = "500ms"
"""


def bridge(**changes: str | None) -> str:
    """The bridge with these lines instead, values as TOML; None takes one out."""
    parts = [line.partition(" = ") for line in BRIDGE.strip().splitlines()]
    lines = {key: value for key, _, value in parts}
    for key, value in changes.items():
        lines.pop(key, None)
        if value is not None:
            lines[key] = value
    return "\n".join(f"{key} = {value}" for key, value in lines.items())


def config(upstream: str, **bridges: str) -> str:
    """The file: the batch server, reached like this, and these tools with their bridges."""
    lines = ["[upstreams.batch]", upstream, "[defaults]", 'poll_interval = "50ms"']
    for tool, lines_of in bridges.items():
        lines += [f"[tools.{tool}]", 'timeout = "10m"', f"[tools.{tool}.bridge]", lines_of]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Batch:
    """The folder of the batch server's jobs."""

    folder: Path

    def arguments(self, name: str, **more: Any) -> dict[str, Any]:
        return {"folder": str(self.folder), "name": name, **more}

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def count(self, call: str) -> int:
        return Counter(self.calls)[call]

    def put(self, name: str, **changes: Any) -> None:
        """Change the job of this name, at once."""
        file = self.folder / f"job-{name}.json"
        known = json.loads(file.read_text()) if file.exists() else {"name": name, "looks": 0}
        draft = self.folder / f"job-{name}.draft-{os.getpid()}"
        draft.write_text(json.dumps({**known, **changes}))
        draft.rename(file)

    def forget(self, name: str) -> None:
        (self.folder / f"job-{name}.json").unlink()

    async def until_called(self, call: str, times: int = 1) -> None:
        async def is_so() -> bool:
            return self.count(call) >= times

        try:
            await until(is_so, PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"no {call!r} x {times} in {self.calls}") from None


async def until_told(client: RawClient, task_id: str, pattern: str) -> dict[str, Any]:
    """The task, once its status message is like this."""
    seen: dict[str, Any] = {}

    async def is_so() -> bool:
        seen.update(task=await client.task(task_id))
        return re.search(pattern, seen["task"].get("statusMessage", "")) is not None

    try:
        await until(is_so, PATIENCE_S)
    except TimeoutError:
        raise AssertionError(f"never {pattern!r}: {seen}") from None
    return seen["task"]


async def ended(client: RawClient, task_id: str) -> dict[str, Any]:
    """The task, once it has ended."""
    return await client.until_status(task_id, seconds=PATIENCE_S)
