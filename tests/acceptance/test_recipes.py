"""docs/recipes.md, run as it is written: each recipe's files, its commands, and what they print."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.internet import Authority
from outlast.tests.support import node
from outlast.tests.support.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.promise("recipes-run")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
PACKAGES = Path(__file__).parent / "recipes"
SECURED = Path(__file__).with_name("secured_server.py")
READY_S_MAX = 60.0
CALL_S_MAX = 120.0

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:#|//) ([\w.]+)\n")
_TOLD = re.compile(r"(?:It prints|They print)\s(.*?`)\.", re.DOTALL)


@dataclass(frozen=True)
class Recipe:
    """One section of the page."""

    text: str

    def blocks(self, language: str) -> list[str]:
        return [body for kind, body in _FENCED.findall(self.text) if kind == language]

    @property
    def files(self) -> dict[str, str]:
        """The files that it shows, by their names."""
        named = [(_NAMED.match(body), body) for _, body in _FENCED.findall(self.text)]
        return {name[1]: body for name, body in named if name is not None}

    @property
    def serving(self) -> str:
        """The block whose last command keeps running."""
        [found] = [block for block in self.blocks("sh") if "outlast serve" in block]
        return found

    @property
    def calls(self) -> list[str]:
        return [block for block in self.blocks("sh") if "outlast call" in block]

    @property
    def printed(self) -> list[str]:
        """What its calls print, as the text says."""
        [told] = _TOLD.findall(self.text)
        return re.findall(r"`([^`]+)`", told)


RECIPES = {
    section.partition("\n")[0]: Recipe(section)
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)
}


@dataclass
class Kitchen:
    """A folder with what a recipe presupposes, and the environment of its commands."""

    folder: Path
    environment: dict[str, str]

    def prepare(self, recipe: Recipe) -> None:
        for name, body in recipe.files.items():
            (self.folder / name).write_text(body)

    def run(self, block: str) -> str:
        """What a block prints; it must succeed."""
        ran = subprocess.run(
            ["sh", "-ec", block],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_S_MAX,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    @contextmanager
    def running(self, block: str) -> Iterator[None]:
        """The last command of a block, while it serves; it must end well on SIGTERM."""
        *before, last = block.strip().splitlines()
        words = ["sh", "-ec", "\n".join([*before, f"exec {last}"])]
        with (self.folder / "serve.log").open("w+") as log:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("outlast: serving"), (
                    self.folder / "serve.log"
                ).read_text()
                yield
                process.send_signal(signal.SIGTERM)
                assert process.wait(READY_S_MAX) == 0
            finally:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def follow(self, recipe: Recipe) -> None:
        """Do all that a recipe says, and see it print what it says."""
        self.prepare(recipe)
        with self.running(recipe.serving):
            printed = "".join(self.run(block) for block in recipe.calls)
        assert recipe.printed
        for words in recipe.printed:
            assert words in printed


@pytest.fixture
def kitchen(tmp_path: Path, database_url: str) -> Kitchen:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    port = str(free_port())
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {
        "PATH": path,
        "OUTLAST_DATABASE_URL": database_url,
        "OUTLAST_PORT": port,
        "OUTLAST_SERVER": f"http://127.0.0.1:{port}/mcp",
        "OUTLAST_JOURNAL": str(tmp_path / "journal"),
    }
    return Kitchen(tmp_path, {**os.environ, **own})


def test_a_fastmcp_server(kitchen: Kitchen):
    kitchen.follow(RECIPES["A FastMCP server"])


def test_a_typescript_server_from_npm(kitchen: Kitchen):
    recipe = RECIPES["A TypeScript server from npm"]
    [install] = [block for block in recipe.blocks("sh") if "npm install" in block]
    wanted = set(install.split()[2:])
    assert wanted == set(json.loads((PACKAGES / "package.json").read_text())["dependencies"])
    try:
        workspace = node.install(PACKAGES)  # the same packages, at versions that are pinned
        program = node.executable(workspace)
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
    (kitchen.folder / "node_modules").symlink_to(workspace / "node_modules")
    path = os.pathsep.join([str(Path(program).parent), kitchen.environment["PATH"]])
    kitchen.environment["PATH"] = path
    kitchen.follow(recipe)


def test_a_remote_server_with_a_token(kitchen: Kitchen):
    recipe = RECIPES["A remote server with a token"]
    port, token = free_port(), secrets.token_urlsafe(16)
    (kitchen.folder / "token").write_text(f"{token}\n")
    authority = Authority(kitchen.folder)
    authority.context("localhost")
    authority.bundle.rename(kitchen.folder / "company-ca.pem")
    certificate = str(kitchen.folder / "localhost.pem")
    server = subprocess.Popen([sys.executable, str(SECURED), str(port), certificate, token])
    try:
        anyio.run(until_listening, f"https://localhost:{port}/")
        here = recipe.text.replace("https://mcp.example.com/", f"https://localhost:{port}/")
        assert here != recipe.text
        kitchen.follow(Recipe(here))
    finally:
        server.kill()
        server.wait()
    assert token not in (kitchen.folder / "serve.log").read_text()


def test_a_stdio_server(kitchen: Kitchen):
    kitchen.follow(RECIPES["A stdio server"])


def test_two_at_once(kitchen: Kitchen):
    kitchen.prepare(RECIPES["A FastMCP server"])
    kitchen.follow(RECIPES["Two at once"])


async def test_a_desktop_client(kitchen: Kitchen):
    recipe = RECIPES["A desktop client"]
    kitchen.prepare(RECIPES["A stdio server"])
    [text] = recipe.blocks("json")
    [server] = json.loads(text.replace("/home/me", str(kitchen.folder)))["mcpServers"].values()
    assert "--data-folder" in server["args"]
    own = {name: kitchen.environment[name] for name in ("PATH", "OUTLAST_DATABASE_URL")}
    # The file names its command by where it stands, as in the recipe that it is from.
    parameters = StdioServerParameters(
        command=server["command"],
        args=server["args"],
        env={**own, **server["env"]},
        cwd=kitchen.folder,
    )
    with (kitchen.folder / "client.log").open("w") as log:
        async with Client(stdio_client(parameters, log)) as client:
            result = await client.call_tool("wait", {"seconds": 0})
    assert [getattr(part, "text", None) for part in result.content] == ["Waited 0 s"]


def test_every_recipe_has_its_test():
    tested = {
        "A FastMCP server",
        "A TypeScript server from npm",
        "A remote server with a token",
        "A stdio server",
        "Two at once",
        "A desktop client",
    }
    assert set(RECIPES) - {"# Recipes"} == tested


async def until_listening(url: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:

        async def answers() -> bool:
            try:
                await client.get(url)
            except httpx2.TransportError:
                return False
            return True

        await until(answers, READY_S_MAX)
