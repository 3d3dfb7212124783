"""`outlast db rebuild`: the views made anew from the log."""

import asyncio
from typing import Annotated

import typer

from ...domain.views import Rebuilt
from .. import wiring
from ..settings import Settings
from .store import ConfigOption, DatabaseOption, store_of

REFUSED = 1  # exit code


def rebuild(
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Tell of each thing that differed.")
    ] = False,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Make every view, queue row and counter what the log says. The service may run meanwhile.

    What is right already is not touched. Exit code 1 if events of a task could not be read: its
    rows stay as they are.
    """
    _, chosen = store_of(config, database_url)
    with wiring.database(chosen, share=True) as url:
        done = asyncio.run(_rebuilt(chosen, url, verbose=verbose))
    typer.echo(_told(done))
    raise typer.Exit(REFUSED if done.refused else 0)


async def _rebuilt(chosen: Settings, url: str, *, verbose: bool) -> Rebuilt:
    await wiring.upgrade(url)
    async with wiring.rebuilding(chosen, url) as rebuilding:
        async for difference in rebuilding.run():
            if verbose:
                typer.echo(str(difference))
        return rebuilding.done


def _told(done: Rebuilt) -> str:
    lines = [
        f"read {done.events} events of {done.tasks} tasks: {done.differing} tasks differed"
        " and were made anew",
    ]
    if done.removed:
        lines.append(f"removed the rows of {done.removed} tasks that have no events")
    if done.owners:
        lines.append(f"counted anew what {done.owners} owners use")
    if done.refused:
        lines.append(f"could not read {done.refused} tasks; outlast audit verify says why")
    return "\n".join(lines)
