"""What the commands do: build from settings, run until told to stop, leave cleanly."""

import asyncio
import hashlib
import json
import os
import secrets
import shlex
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ...domain import errors
from ...domain.owner import Scope
from .. import config as configuration, logs, settings, wiring
from ..app import MCP_PATH, assemble
from ..config import Config, Upstream
from ..hosting import address_of, listener_on, run, spare_the_collector, stop_on_signals
from ..settings import Settings
from . import several
from .demo import make_demo_repository, run_demo
from .serving import BACKLOG, Plan, http_server, prepared, serve_on, started, work_on
from .store import config_of, settings_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "ci_server.py"


def serve(path: Path | None, upstream: str | None, flags: Mapping[str, Any], *, work: bool) -> None:
    """Run the service until SIGTERM or SIGINT."""
    config, chosen = load(path, upstream, flags)
    with wiring.database(chosen) as url:
        if chosen.processes == 1:
            run(_serve(chosen, config, url, work=work))
        elif status := several.serve(chosen, config, url, work=work):
            raise SystemExit(status)


def worker(path: Path | None, upstream: str | None, flags: Mapping[str, Any]) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    config, chosen = load(path, upstream, flags)
    with wiring.database(chosen, share=True) as url:
        run(_work(chosen, config, url))


def upgrade(path: Path | None, flags: Mapping[str, Any]) -> list[str]:
    """Apply missing migrations; their names."""
    config = config_of(path)
    chosen = settings_for(config, flags)
    with wiring.database(chosen, share=True) as url:
        return asyncio.run(wiring.upgrade(url))


def new_token(subject: str, client: str, scopes: Sequence[Scope]) -> tuple[str, str]:
    """A random token, and its table for the tokens file."""
    secret = secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    lines = (
        f'[[tokens]]\nsha256 = "{digest}"\n'
        f"subject = {json.dumps(subject)}\nclient = {json.dumps(client)}\n"
        f"scopes = {json.dumps(list(dict.fromkeys(scopes)))}\n"
    )
    return secret, lines


def demo(approve: bool | None, keep: Path | None) -> int:
    """Serve the example on a free port with an embedded store, and take the first look at it."""
    console = Console()
    logs.configure("warning")
    with _demo_folder(keep) as folder:
        config = _demo_config()
        chosen = settings.load({"port": 0, "data_folder": folder / "store"}, {})
        console.print(f"Starting PostgreSQL and Outlast in {folder} …")
        with wiring.database(chosen) as url:
            return run(_demo(chosen, config, url, approve, folder, console))


def load(
    path: Path | None, upstream: str | None, flags: Mapping[str, Any]
) -> tuple[Config, Settings]:
    """What a process that serves or works is to do. Raises ConfigurationError."""
    if path is not None and upstream is not None:
        raise errors.ConfigurationError("give --config or --upstream, not both")
    config = config_of(path, os.environ)
    if upstream is not None:
        config = replace(config, upstreams={"main": _one_upstream(upstream)})
    if not config.upstreams:
        raise errors.ConfigurationError(
            'there is no upstream: give --upstream "COMMAND", or [upstreams.NAME] in --config FILE'
        )
    chosen = settings_for(config, flags)
    logs.configure(chosen.log_level)
    return config, chosen


def _one_upstream(given: str) -> Upstream:
    if given.startswith(("http://", "https://")):
        return Upstream(url=given)
    return Upstream(command=shlex.split(given))


async def _serve(chosen: Settings, config: Config, url: str, *, work: bool) -> None:
    stop = stop_on_signals()
    await wiring.upgrade(url)
    await wiring.see_to_room(url, 1)
    with listener_on(chosen.host, chosen.port, BACKLOG) as listener:
        address = address_of(listener)

        def announce() -> None:
            typer.echo(f"outlast: serving {address}{MCP_PATH}")

        await serve_on(Plan(chosen, config, url, work, address), listener, stop, announce)


async def _work(chosen: Settings, config: Config, url: str) -> None:
    stop = stop_on_signals()
    await wiring.upgrade(url)
    await wiring.see_to_room(url, 1)
    # Without an address: jobs elsewhere report to who serves callbacks, and that is no worker.
    built = await wiring.build(chosen, config, url)
    if chosen.worker_port is not None:
        with listener_on(chosen.host, chosen.worker_port, BACKLOG) as listener:
            announce = partial(_announce_worker, f"; figures at {address_of(listener)}/metrics")
            lookout = wiring.lookout(chosen, config, built)
            await work_on(chosen, lookout, listener, stop, announce)
        return
    async with built.running(chosen.drain_s):
        spare_the_collector()
        _announce_worker()
        await stop.wait()


def _announce_worker(more: str = "") -> None:
    typer.echo(f"outlast worker: waiting for tasks{more}")


async def _demo(  # noqa: PLR0913, PLR0917 - the pieces that `demo` has made, once each
    chosen: Settings,
    config: Config,
    url: str,
    approve: bool | None,
    folder: Path,
    console: Console,
) -> int:
    await wiring.upgrade(url)
    with listener_on(chosen.host, chosen.port, BACKLOG) as listener:
        address = address_of(listener)
        built = await wiring.build(chosen, config, url, address=address)
        server = http_server(chosen, assemble(wiring.parts(chosen, config, built)))
        running = asyncio.create_task(server.serve([prepared(listener)]))
        try:
            await started(server, running)
            return await run_demo(
                address + MCP_PATH,
                approve=approve,
                repository=make_demo_repository(folder),
                console=console,
            )
        finally:
            server.should_exit = True
            await running


@contextmanager
def _demo_folder(keep: Path | None) -> Generator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as folder:
        yield Path(folder)


def _demo_config() -> Config:
    command = json.dumps([sys.executable, str(EXAMPLE)])
    # The key lets a restarted upstream open the state of a question that is still waiting.
    text = (
        f"[upstreams.ci]\ncommand = {command}\n"
        f'env = {{ CI_SERVER_STATE_KEY = "{secrets.token_hex(32)}" }}\n'
        '[tools.run_ci_pipeline]\nrun = "task"\npoll_interval = "500ms"\n'
        "[events]\ndevelopment = true\n"
    )
    return configuration.parse(text, "demo")
