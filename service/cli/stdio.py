"""`outlast stdio`: MCP over standard input and output, for a client that starts its servers."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ...domain import errors
from .. import wiring
from ..config import Config, Console
from ..endpoint import BODY_BYTES_MAX
from ..hosting import heard_signals, run
from ..settings import Settings
from ..stdio import Stdio, Whole
from ..streams import Streams
from .processes import load

EXAMPLES = """
Speak MCP over standard input and output, so that a client can start it like any server.

Tasks outlive it: they are in ./.outlast/ or in --database-url, and the next process that is started
there goes on with them. Several may run there at once. Logs go to standard error.

\b
  outlast stdio --upstream "python ci_server.py"
  outlast stdio --upstream https://mcp.example.com/mcp
  outlast stdio --config /home/me/outlast.toml --data-folder /home/me/.outlast
"""


def stdio(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with upstreams, policies and settings.", dir_okay=False),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(help="One upstream without a file: a command to run, or an http(s) URL."),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL 14 or newer. Without it an embedded server is shared."),
    ] = None,
    data_folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the embedded server; default .outlast.", file_okay=False),
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Calls to run at once; default 16.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Speak MCP over standard input and output; see `EXAMPLES`."""
    flags: Mapping[str, Any] = {
        "database_url": database_url,
        "data_folder": data_folder,
        "slots": slots,
        "log_level": log_level,
    }
    file, chosen = load(config, upstream, flags)
    run(_serve(chosen, file))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stdio", help=EXAMPLES)(stdio)


@dataclass
class _Serving:
    """The service of one client: `ready` once there is a store, `leaving` once the client is."""

    settings: Settings
    config: Config
    early: wiring.Early
    stdio: Stdio
    ready: "asyncio.Future[Whole]"
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self) -> None:
        """Have a store and work on it until the client leaves, and a while for what runs then."""
        try:
            async with wiring.shared_database(self.settings) as url:
                await self._work(url)
        except Exception:
            if not self.ready.done():
                self.ready.set_exception(errors.StoreUnavailable())
                self.ready.exception()  # heard, if nobody else waits for it
            raise

    async def end(self, holding: "asyncio.Task[None]") -> None:
        """Let what was asked be answered, and the store go."""
        await self.stdio.answered()
        if not self.ready.done():
            holding.cancel()  # nobody waits any more for the store to be there
        await asyncio.wait({holding})

    async def _work(self, url: str) -> None:
        chosen, config = self.settings, self.config
        await wiring.upgrade(url)
        await wiring.see_to_room(url, 1)
        built = await wiring.build(chosen, config, url, upstreams=self.early.upstreams)
        without_pages = replace(config, console=Console(enabled=False))
        parts = wiring.parts(chosen, without_pages, built)
        async with built.running(0.0):
            self.ready.set_result(wiring.whole(parts))
            await self.leaving.wait()
            parts.lookout.wind_down()
            await asyncio.gather(built.worker.drain(chosen.drain_s), self.stdio.answered())


async def _serve(chosen: Settings, config: Config) -> None:
    """Serve until the client closes an end, or a signal comes. What runs then gets its time to end;
    a signal after that cuts it short.
    """
    signals, streams = heard_signals(), Streams.standard(BODY_BYTES_MAX)
    ready: asyncio.Future[Whole] = asyncio.get_running_loop().create_future()
    early = wiring.early(config)
    stdio = Stdio(streams, early.connect, early.gate, early.endpoint, ready)
    serving = _Serving(chosen, config, early, stdio, ready)
    holding = asyncio.create_task(serving.hold())
    reading = asyncio.create_task(stdio.serve())
    gone = asyncio.create_task(streams.broken.wait())
    sign = asyncio.create_task(signals.get())
    try:
        await _first_of(reading, gone, holding, sign)
        if sign.done() and not reading.done():
            sign = asyncio.create_task(signals.get())
        reading.cancel()
        serving.leaving.set()
        ending = asyncio.create_task(serving.end(holding))
        await _first_of(ending, sign, seconds=chosen.drain_s)
        ending.cancel()
    finally:
        await stdio.close()
        for task in (reading, gone, holding, sign):
            task.cancel()
        outcomes = await asyncio.gather(reading, holding, return_exceptions=True)
        await early.upstreams.close()
    for outcome in outcomes:
        if isinstance(outcome, Exception) and not isinstance(outcome, errors.ConnectionLost):
            raise outcome


async def _first_of(*futures: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
