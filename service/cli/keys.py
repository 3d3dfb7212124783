"""`outlast keys`: the keys around the data keys that seal what tasks hold in the store."""

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Annotated

import typer

from .. import wiring
from ..settings import Settings
from .store import ConfigOption, DatabaseOption, store_of

REFUSED = 1

app = typer.Typer(help="Keys that seal what tasks hold in the store.", no_args_is_help=True)


@app.command("new")
def new(
    name: Annotated[
        str | None, typer.Option(help="What to call it; default today's date and chance.")
    ] = None,
) -> None:
    """Print a new key for the setting data_keys. Keep it elsewhere than the store."""
    given = name or f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
    typer.echo(wiring.new_key_line(given))


@app.command("rotate")
def rotate(config: ConfigOption = None, database_url: DatabaseOption = None) -> None:
    """Wrap every data key under the first of data_keys. No event changes; services may run."""
    _, chosen = store_of(config, database_url)
    with wiring.database(chosen, share=True) as url:
        rotated = asyncio.run(wiring.rotate_keys(chosen, url))
    typer.echo(f"{rotated.wrapped} data keys are now under {_current(chosen)}")
    if rotated.refused:
        typer.echo(
            f"outlast: {rotated.refused} data keys do not open with the data_keys that are set;"
            " they are as they were, and `outlast keys status` says what they are under",
            err=True,
        )
        raise typer.Exit(REFUSED)


@app.command("status")
def status(config: ConfigOption = None, database_url: DatabaseOption = None) -> None:
    """Print how many data keys are under which key, and whether that key is set."""
    _, chosen = store_of(config, database_url)
    with wiring.database(chosen, share=True) as url:
        counts = asyncio.run(wiring.key_counts(url))
    names = [line.partition(":")[0] for line in chosen.data_keys]
    for name in dict.fromkeys([*names, *counts]):
        place = "missing" if name not in names else "current" if name == names[0] else "former"
        typer.echo(f"{name}\t{place}\t{counts.get(name, 0)}")


def _current(chosen: Settings) -> str:
    return chosen.data_keys[0].partition(":")[0]
