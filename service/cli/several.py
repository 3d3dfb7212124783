"""`serve --processes N`: the parent, which serves nothing.

It has the store, the schema, the address and the configuration, once. A process is a fresh
interpreter: what a fork would copy of threads and connections cannot be used after it.
"""

import asyncio
import pickle
import socket
import sys

import typer

from .. import wiring
from ..app import MCP_PATH
from ..config import Config
from ..hosting import SharedPort, heard_signals
from ..settings import Settings
from ..supervising import Supervisor
from .serving import BACKLOG, Plan

CHILD = f"{__package__}.one_of_several"


def serve(chosen: Settings, config: Config, url: str, *, work: bool) -> int:
    """Serve with several processes until SIGTERM or SIGINT; the exit status."""
    return asyncio.run(_serve(chosen, config, url, work=work))


async def _serve(chosen: Settings, config: Config, url: str, *, work: bool) -> int:
    signals = heard_signals()
    await wiring.upgrade(url)
    await wiring.see_to_room(url, chosen.processes)
    port = SharedPort(chosen.host, chosen.port, BACKLOG)
    plan = pickle.dumps(Plan(chosen, config, url, work, port.address))

    def announce() -> None:
        typer.echo(f"outlast: serving {port.address}{MCP_PATH}")

    supervisor = Supervisor(chosen.processes, port, _spawn, plan)
    return await supervisor.run(signals, announce, chosen.drain_s)


async def _spawn(
    number: int, listener: socket.socket, end: socket.socket
) -> asyncio.subprocess.Process:
    places = listener.fileno(), end.fileno()
    return await asyncio.create_subprocess_exec(
        # Safe path: a folder `outlast` where the service is started is not this package.
        *(sys.executable, "-P", "-m", CHILD, str(number), *map(str, places)),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=places,
    )
