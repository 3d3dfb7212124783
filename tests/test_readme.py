"""The README's commands, run as a newcomer would run them: in order, in one folder, as written."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx2
import psycopg
import pytest

from outlast.service import config
from outlast.tests.support import ports

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PORT_IN_TEXT = "8000"
START_S_MAX = 60.0

pytestmark = pytest.mark.promise("readme-commands-run")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def block_with(words: str, language: str = "sh") -> str:
    """The one block that holds these words."""
    (found,) = [block for block in blocks(language) if words in block]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a clone looks like to the commands: the examples, and `outlast` on the PATH."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "OUTLAST_DATABASE_URL": database_url}


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The command's first line of output, while it runs; it must end well on SIGTERM."""
    with started(command, folder, environment) as output:
        yield output.readline()


@contextmanager
def started(command: str, folder: Path, environment: dict[str, str]) -> Iterator[IO[str]]:
    """The command's output, while it runs; it must end well on SIGTERM."""
    words = ["sh", "-c", f"exec {command}"]
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S_MAX) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def on_port(command: str, port: str) -> str:
    return (
        f"{command} --port {port}"
        if "--port" not in command
        else command.replace(PORT_IN_TEXT, port)
    )


def test_the_served_example_answers_the_call_that_the_text_sends(
    folder: Path, environment: dict[str, str]
):
    port = str(ports.free_port())
    serve = on_port(block_with("--upstream").strip(), port)
    call = block_with("curl").replace(f":{PORT_IN_TEXT}/", f":{port}/")
    with running(serve, folder, environment) as line:
        assert line == f"outlast: serving http://127.0.0.1:{port}/mcp\n"
        reply = subprocess.run(
            ["sh", "-c", call], env=environment, capture_output=True, text=True, check=True
        )
    result = json.loads(reply.stdout)["result"]
    assert (result["resultType"], result["status"]) == ("task", "working")


def test_without_a_database_url_a_store_of_its_own_appears_under_the_folder(
    folder: Path, environment: dict[str, str]
):
    del environment["OUTLAST_DATABASE_URL"]
    serve = on_port(block_with("--upstream").strip(), str(ports.free_port()))
    with running(serve, folder, environment) as line:
        assert line.startswith("outlast: serving ")
        assert (folder / ".outlast").is_dir()


def test_the_configuration_of_the_text_is_valid_and_served(
    folder: Path, environment: dict[str, str]
):
    (folder / "outlast.toml").write_text(block_with("[upstreams.ci]", "toml"))
    assert config.read(folder / "outlast.toml").policies.of("run_ci_pipeline").run == "task"
    port = str(ports.free_port())
    serve = on_port(block_with("--host 127.0.0.1").strip(), port)
    with running(serve, folder, environment):
        assert httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=START_S_MAX).status_code == 200


def test_the_receiver_of_the_text_prints_the_end_of_a_call(
    folder: Path, environment: dict[str, str]
):
    (folder / "outlast.toml").write_text(block_with("[upstreams.ci]", "toml"))
    port = str(ports.free_port())
    serve = on_port(block_with("--host 127.0.0.1").strip(), port)
    call = block_with("curl").replace(f":{PORT_IN_TEXT}/", f":{port}/")
    receive = block_with("outlast receive").strip().replace(f":{PORT_IN_TEXT}/", f":{port}/")
    with (
        running(serve, folder, environment),
        started(f"{receive} --port {ports.free_port()!s}", folder, environment) as receiver,
    ):
        until_subscribed(environment["OUTLAST_DATABASE_URL"])
        subprocess.run(["sh", "-c", call], env=environment, capture_output=True, check=True)
        event = json.loads(receiver.readline())["delivery"]
    assert (event["name"], event["data"]["status"]) == ("task.finished", "completed")


def test_the_client_of_the_text_prints_what_the_tool_said(
    folder: Path, environment: dict[str, str]
):
    port = str(ports.free_port())
    serve = on_port(block_with("--upstream").strip(), port)
    with running(serve, folder, environment):
        said = subprocess.run(
            ["sh", "-c", block_with("outlast call")],
            cwd=folder,
            env={**environment, "OUTLAST_SERVER": f"http://127.0.0.1:{port}/mcp"},
            capture_output=True,
            text=True,
            check=True,
        )
        audit = subprocess.run(
            ["sh", "-ec", block_with("outlast audit verify")],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    assert "Waited 3 s" in said.stdout
    assert "dev.outlast.task.completed" in audit.stdout


def until_subscribed(url: str) -> None:
    """Return once the server has stored a subscription."""
    give_up_at = time.monotonic() + START_S_MAX
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM outlast.webhook_subscriptions").fetchone():
            assert time.monotonic() < give_up_at


def test_more_processes_work_on_one_database(folder: Path, environment: dict[str, str]):
    (folder / "outlast.toml").write_text(block_with("[upstreams.ci]", "toml"))
    serve, worker, upgrade = block_with("outlast worker").strip().splitlines()
    subprocess.run(["sh", "-c", upgrade], cwd=folder, env=environment, check=True)
    with running(on_port(serve, str(ports.free_port())), folder, environment) as line:
        assert line.startswith("outlast: serving ")
        with running(worker, folder, environment) as said:
            assert said == "outlast worker: waiting for tasks\n"


def test_the_demo_runs_its_pipeline_to_the_end(environment: dict[str, str]):
    assert "make demo" in block_with("make demo")
    demo = subprocess.run(
        ["outlast", "demo", "--approve"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "deploy │ passed" in demo.stdout


def test_the_token_command_of_the_settings_makes_a_token(environment: dict[str, str]):
    (command,) = re.findall(r"`(outlast token new [^`]+)`", TEXT)
    made = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert "[[tokens]]" in made.stdout


def test_no_command_of_the_text_is_left_untried():
    tried = (
        "make demo",
        "make test",
        "outlast serve",
        "outlast worker",
        "outlast receive",
        "outlast call",
        "outlast audit",
        "outlast db upgrade",
        "curl",
    )
    lines = [
        line
        for block in blocks("sh")
        for line in re.sub(r"\\\n", " ", block).splitlines()
        if line and not line.startswith(" ")
    ]
    assert [line for line in lines if not line.startswith(tried)] == []
