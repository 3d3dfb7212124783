"""One process of `serve --processes N`: begun by the parent, and gone when the parent is.

python -m …one_of_several NUMBER LISTENER LINE          the last two are open files
"""

import asyncio
import os
import pickle
import signal
import socket
import sys
from contextlib import ExitStack

from ...domain import errors
from .. import logs, wiring
from ..hosting import run
from ..siblings import Line, Siblings, briefed
from .serving import Plan, serve_on


def main() -> None:
    """One of the processes."""
    # Ctrl-C reaches all that stand in a terminal; this one waits for its parent's word. No more
    # than a function: to ignore it would be inherited by the upstreams that are started here.
    signal.signal(signal.SIGINT, _heed_not)
    number, *places = map(int, sys.argv[1:])
    listener, end = (socket.socket(fileno=place) for place in places)
    for each in (listener, end):
        os.set_inheritable(each.fileno(), False)
    try:
        plan: Plan = pickle.loads(briefed(end))  # noqa: S301 - written by the parent, over a pair
    except ConnectionError:
        return
    logs.configure(plan.settings.log_level, number)
    with ExitStack() as leaving:
        run(_serve_one(plan, listener, end, leaving))


def _heed_not(_number: int, _frame: object) -> None:
    """Nothing."""


async def _serve_one(
    plan: Plan, listener: socket.socket, end: socket.socket, leaving: ExitStack
) -> None:
    stop, line = asyncio.Event(), await Line.over(end)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    siblings = Siblings(line)

    async def until_alone() -> None:
        await siblings.listen()
        # Held before the drain begins, so that who is ready first ends nothing that others use.
        await asyncio.to_thread(leaving.enter_context, wiring.orphaned(plan.settings))
        stop.set()

    hearing = asyncio.create_task(until_alone())
    try:
        await serve_on(plan, listener, stop, siblings.ready, siblings)
    except (errors.ConfigurationError, errors.StoreUnavailable) as error:
        siblings.failed(str(error), away=isinstance(error, errors.StoreUnavailable))
        await line.flushed()
        raise SystemExit(2) from None
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


if __name__ == "__main__":
    main()
