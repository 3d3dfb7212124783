"""`outlast purge`: remove all that is stored of a person, on request."""

import asyncio
import json
from typing import Annotated

import typer

from ...domain import errors
from ...domain.owner import Owner
from .. import logs, wiring
from ..config import Config
from ..purging import Purged
from ..settings import Settings
from .store import ConfigOption, DatabaseOption, store_of

NOTHING = 1  # exit code


def purge(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    owner: Annotated[
        str | None, typer.Option(help='The owner: ["ISSUER","SUBJECT","CLIENT"], as JSON.')
    ] = None,
    issuer: Annotated[str | None, typer.Option(help="Instead of --owner: the issuer.")] = None,
    subject: Annotated[str | None, typer.Option(help="The person, as the issuer names it.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Only what came by this client; default: by all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove all that is stored of an owner: tasks, results, webhooks. It cannot be undone.

    The service may run meanwhile. What the owner's tasks do now is ended, clients are told of none
    of them any more, and what they held is erased: data keys destroyed, payloads emptied. That they
    happened, when, and under a hash of the owner, stays for the audit and still verifies. Take the
    owner's tokens away first: what is opened meanwhile is removed too, until nothing is left.

    What this cannot reach: backups, and the write-ahead log until PostgreSQL has recycled it.
    Erased bytes lie unused in the files of the database until they are written over; a vacuum,
    which follows, lets that happen, and a VACUUM FULL or a dump and restore is what makes sure.
    """
    wanted = _wanted(owner, issuer, subject, client)
    given, chosen = store_of(config, database_url)
    logs.configure(chosen.log_level)
    with wiring.database(chosen, share=True) as url:
        asyncio.run(_purge(wanted, chosen, given, url, is_sure=yes))


def _wanted(
    owner: str | None, issuer: str | None, subject: str | None, client: str | None
) -> str | tuple[str, str]:
    """The key of an owner, or issuer and subject of several."""
    if owner is not None and issuer is None and subject is None and client is None:
        return _key_of(owner)
    if owner is None and issuer is not None and subject is not None:
        return (issuer, subject) if client is None else Owner(issuer, subject, client).key
    raise errors.ConfigurationError("give --owner, or --issuer and --subject (and --client)")


def _key_of(text: str) -> str:
    """The key as it is stored, however its JSON was spaced."""
    try:
        issuer, subject, client = json.loads(text)
        return Owner(issuer, subject, client).key
    except (ValueError, TypeError):
        raise errors.ConfigurationError(
            '--owner is a JSON list of issuer, subject and client: ["","ann","cli"]'
        ) from None


async def _purge(
    wanted: str | tuple[str, str], chosen: Settings, given: Config, url: str, *, is_sure: bool
) -> None:
    await wiring.upgrade(url)
    async with wiring.purging(chosen, given, url) as purging:
        if isinstance(wanted, str):
            owners = [wanted] if await purging.is_known(wanted) else []
        else:
            owners = await purging.owners(*wanted, None)
        if not owners:
            typer.echo("outlast: nothing is stored of such an owner, nor ever was known", err=True)
            raise typer.Exit(NOTHING)
        for owner in owners:
            typer.echo(f"owner {owner}")
        if not is_sure:
            typer.confirm("Remove all that is stored of them, for good?", abort=True)
        for owner in owners:
            done = await purging.remove(owner, _say_late)
            typer.echo(f"removed of {owner}: {_told(done)}")
    kept = await wiring.scrub(url)
    if kept:
        typer.echo(f"not vacuumed, for want of the right to: {', '.join(kept)}", err=True)


def _say_late() -> None:
    typer.echo("more was stored meanwhile; going on until nothing is left", err=True)


def _told(done: Purged) -> str:
    return (
        f"{done.tasks} tasks ({done.ended} were under way), {done.past} past tasks,"
        f" {done.webhooks} webhook subscriptions"
    )
