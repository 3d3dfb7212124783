"""The shipped files of a deployment, and nginx with the shipped configuration."""

import os
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.ports import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "ops" / "deploy"
READY_S_MAX = 60.0
STOP_S_MAX = 60.0


def nginx_conf(port: int, replicas: Sequence[int]) -> str:
    """The shipped file with our addresses, and no other change."""
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    places = {"listen 8080;": f"listen 127.0.0.1:{port};"}
    for number, replica in enumerate(replicas, 1):
        places[f"serve-{number}:8000"] = f"127.0.0.1:{replica}"
    for shipped, ours in places.items():
        assert shipped in text, shipped
        text = text.replace(shipped, ours)
    assert "serve-" not in text
    return text


def nginx_command(binary: Path, folder: Path, conf: str) -> list[str]:
    """Run nginx in the foreground with this configuration; `folder` is its prefix."""
    file = folder / "nginx.conf"
    file.write_text(conf, encoding="utf-8")
    # Only its owner may enter a test's folder, and nginx's workers have to.
    here = "daemon off;" if os.geteuid() else "daemon off; user root;"
    return [str(binary), "-e", "stderr", "-p", f"{folder}/", "-c", str(file), "-g", here]


@asynccontextmanager
async def proxied(binary: Path, folder: Path, replicas: Sequence[int]) -> AsyncGenerator[str]:
    """Where nginx listens, in front of what listens on these ports; gone afterwards."""
    port = free_port()
    command, log = nginx_command(binary, folder, nginx_conf(port, replicas)), folder / "nginx.log"
    with log.open("wb") as output:
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:

            async def is_ready() -> bool:
                assert process.returncode is None, log.read_text()
                try:
                    reply = await http.get(f"http://127.0.0.1:{port}/readyz")
                except httpx2.TransportError:
                    return False
                return reply.is_success

            await until(is_ready, READY_S_MAX)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.CancelScope(shield=True), anyio.fail_after(STOP_S_MAX):
            await process.wait()
