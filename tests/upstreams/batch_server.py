"""An MCP server of the old kind: one tool starts a job, others tell of it. No tasks, no callbacks.

    submit_job(folder, name, looks)    starts a job and returns {"job_id"}; with `looks` it is done
                                       once its state has been asked for so often, else never
    say_job(folder, name, looks)       the same, but says it in a sentence
    run_now(folder, name)              an answer without a job
    stall(folder, name)                notes the call and never answers
    job_status(folder, job_id)         {"state", "percent", "message"}; an error for no job of ours
    job_result(folder, job_id)         {"built": name}; an error unless it is done
    cancel_job(folder, job_id)         the job is then "cancelled", unless it is stubborn

A job is the file `folder`/job-NAME.json, which a test may write too: while its "hangs" has the name
of a tool, that one does not answer. `folder`/calls has a line for each call: what was asked and the
job's name or id. `serving.py` has the flags.
"""

import json
import os
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from serving import STATE_SECURITY, run

server = MCPServer("batch", log_level="WARNING", request_state_security=STATE_SECURITY)


def note(folder: str, line: str) -> None:
    with Path(folder, "calls").open("a") as calls:
        calls.write(f"{line}\n")


def write(folder: str, job_id: str, job: dict[str, Any]) -> None:
    draft = Path(folder, f"{job_id}.{os.getpid()}")
    draft.write_text(json.dumps(job))
    draft.rename(Path(folder, f"{job_id}.json"))


def read(folder: str, job_id: str) -> dict[str, Any]:
    try:
        return json.loads(Path(folder, f"{job_id}.json").read_text())
    except FileNotFoundError:
        raise ToolError(f"there is no job {job_id}") from None


async def found(folder: str, job_id: str, tool: str) -> dict[str, Any]:
    """The job, once this tool may answer."""
    while (job := read(folder, job_id)).get("hangs") == tool:  # noqa: ASYNC110 - a file tells
        await anyio.sleep(0.02)
    return job


def submit(folder: str, name: str, looks: int) -> str:
    note(folder, f"submit {name}")
    job_id = f"job-{name}"
    write(folder, job_id, {"state": "queued", "percent": 0, "name": name, "looks": looks})
    return job_id


@server.tool(structured_output=True)
async def submit_job(folder: str, name: str, looks: int = 0) -> dict[str, Any]:
    """Start a job."""
    return {"job_id": submit(folder, name, looks)}


@server.tool(structured_output=False)
async def say_job(folder: str, name: str, looks: int = 0) -> str:
    """Start a job."""
    return f"Your job {submit(folder, name, looks)} was submitted. Have a nice day."


@server.tool(structured_output=True)
async def run_now(folder: str, name: str) -> dict[str, Any]:
    """Need no job."""
    note(folder, f"run {name}")
    return {"built": name}


@server.tool(structured_output=True)
async def stall(folder: str, name: str) -> dict[str, Any]:
    """Start a job, and do not say so."""
    submit(folder, name, 1)
    await anyio.sleep_forever()
    return {}


@server.tool(structured_output=True)
async def job_status(folder: str, job_id: str) -> dict[str, Any]:
    """Tell the state of a job."""
    note(folder, f"status {job_id}")
    job = await found(folder, job_id, "job_status")
    if job["looks"] and job["state"] in {"queued", "running"}:
        job["looks"] -= 1
        job["state"] = "running" if job["looks"] else "done"
        job["percent"] = 50 if job["looks"] else 100
        write(folder, job_id, job)
    return {key: job[key] for key in ("state", "percent", "message") if key in job}


@server.tool(structured_output=True)
async def job_result(folder: str, job_id: str) -> dict[str, Any]:
    """Tell what a job has made."""
    note(folder, f"result {job_id}")
    job = await found(folder, job_id, "job_result")
    if job["state"] != "done":
        raise ToolError(f"{job_id} is not done")
    return {"built": job["name"]}


@server.tool(structured_output=True)
async def cancel_job(folder: str, job_id: str) -> dict[str, Any]:
    """Stop a job."""
    note(folder, f"cancel {job_id}")
    job = await found(folder, job_id, "cancel_job")
    if not job.get("stubborn"):
        write(folder, job_id, {**job, "state": "cancelled"})
    return {"ok": True}


if __name__ == "__main__":
    run(server)
