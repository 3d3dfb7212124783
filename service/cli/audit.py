"""`outlast audit`: what happened, and the proof that nobody has changed the record of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from ...domain import errors
from .. import wiring
from ..auditing import proving
from ..auditing.report import Report
from ..auditing.views import view_check
from ..settings import Settings
from .store import ConfigOption, DatabaseOption, store_of

BAD = 1  # exit code

T = TypeVar("T")

Keys = Annotated[
    list[str] | None,
    typer.Option("--key", help="A verifier key to believe, instead of the settings' own."),
]

app = typer.Typer(help="Read the log as an auditor, and prove it.", no_args_is_help=True)


@app.command(epilog="Example: outlast audit verify --checkpoint kept.txt --key outlast+…")
def verify(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A checkpoint that you kept: the log must extend it.", dir_okay=False),
    ] = None,
    key: Keys = None,
    views: Annotated[bool, typer.Option(help="Hold every view against its events too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Verify the whole log: events, tree, checkpoints, views. Exit code 1 if anything is wrong."""
    (_, chosen), kept = store_of(config, database_url), None
    if checkpoint is not None:
        kept = _text_of(checkpoint)
    with wiring.database(chosen, share=True) as url:
        report = asyncio.run(_verified(chosen, url, kept, key or (), views=views))
    if as_json:
        typer.echo(json.dumps(report.as_json, indent=2))
    else:
        typer.echo("\n".join(report.lines))
    raise typer.Exit(0 if report.is_good else BAD)


@app.command()
def checkpoint(config: ConfigOption = None, database_url: DatabaseOption = None) -> None:
    """Print the newest signed checkpoint. Keep it elsewhere: `verify --checkpoint` takes it."""

    async def newest(found: wiring.Auditing) -> str:
        signed = await found.prover.newest()
        return signed.note + signed.cosignatures

    typer.echo(_with(config, database_url, newest), nl=False)


@app.command(epilog="Example: outlast audit prove --task TASK_ID > proof.json")
def prove(
    position: Annotated[int | None, typer.Argument(help="Of the event in the log.", min=1)] = None,
    task: Annotated[str | None, typer.Option(help="Instead: all events of this task.")] = None,
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print the proof that events are in the log of the newest checkpoint."""
    if (position is None) == (task is None):
        raise errors.ConfigurationError("give a position, or --task")

    async def proof(found: wiring.Auditing) -> Any:
        if task is None:
            return await found.prover.inclusion(position or 0)
        proofs, too_new = await found.prover.of_task(task)
        if too_new:
            typer.echo(f"outlast: no checkpoint covers {too_new} newer events yet", err=True)
        return proofs

    typer.echo(json.dumps(_with(config, database_url, proof), indent=2))


@app.command()
def consistency(
    old_size: Annotated[int, typer.Argument(help="How many events an older checkpoint covers.")],
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print the proof that the newest checkpoint's log extends an older one."""

    async def proof(found: wiring.Auditing) -> Any:
        return await found.prover.consistency(old_size)

    typer.echo(json.dumps(_with(config, database_url, proof), indent=2))


@app.command("check-proof", epilog="Example: outlast audit check-proof proof.json --key outlast+…")
def check_proof(
    file: Annotated[Path, typer.Argument(help="What prove or consistency has printed.")],
    key: Annotated[str, typer.Option(help="The log's verifier key: what key has printed.")],
) -> None:
    """Check a proof. Neither the database nor a service is needed."""
    notary = wiring.offline_notary(key)
    try:
        given: Any = json.loads(_text_of(file))
    except ValueError:
        raise errors.ConfigurationError(f"{file} is not JSON") from None
    try:
        proofs = cast(list[Any], given) if isinstance(given, list) else [given]
        for each in proofs:
            typer.echo(proving.checked(each, notary))
    except errors.AuditError as error:
        typer.echo(f"NOT PROVEN: {error}")
        raise typer.Exit(BAD) from None


@app.command()
def key(config: ConfigOption = None, database_url: DatabaseOption = None) -> None:
    """Print the verifier key of the checkpoints. Hand it to auditors."""

    async def own(found: wiring.Auditing) -> str:
        return found.verifier

    typer.echo(_with(config, database_url, own))


def _with(
    config: Path | None,
    database_url: str | None,
    ask: Callable[[wiring.Auditing], Awaitable[T]],
) -> T:
    """What is found out over the store."""
    chosen = store_of(config, database_url)[1]

    async def asked(url: str) -> T:
        await wiring.upgrade(url)
        async with wiring.auditing(chosen, url) as found:
            return await ask(found)

    with wiring.database(chosen, share=True) as url:
        return asyncio.run(asked(url))


async def _verified(
    chosen: Settings, url: str, kept: str | None, keys: Sequence[str], *, views: bool
) -> Report:
    await wiring.upgrade(url)
    report = Report()
    async with wiring.auditing(chosen, url, keys) as found:
        await found.check(kept)(report)
    if views:
        async with wiring.view_audit(chosen, url) as audit:
            await view_check(audit)(report)
    return report


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigurationError(f"{file} cannot be read: {error}") from None
