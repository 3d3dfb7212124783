"""`outlast doctor`: look at a configuration and a deployment, and say what to change."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...domain import errors
from .. import logs, wiring
from ..config import Config
from ..doctor.finding import Finding, Level, problem, worst
from ..doctor.visit import Wanted, visit
from ..settings import Settings
from .store import DatabaseOption, config_of, settings_for

BAD = 1  # exit code: something is a problem
WIDTH = 18

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The service's TOML file.", dir_okay=False)
]


def doctor(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    config: ConfigOption = None,
    database_url: DatabaseOption = None,
    url: Annotated[
        str | None, typer.Option(help="A running service to ask too, https://tasks.example.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="OUTLAST_TOKEN", help="Bearer token for that service.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="A URL to send one challenge to, as a webhook would be.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a finding.")] = False,
) -> None:
    """Check the configuration, the database, the upstreams and a running service.

    Exit code 1 if anything is a problem. Upstreams that are commands are started for this.
    """
    logs.configure("critical")
    found: list[Finding] = []
    try:
        given = config_of(config, os.environ)
        chosen = settings_for(given, {"database_url": database_url})
        _must_exist(chosen)
        found += asyncio.run(_found(chosen, given, Wanted(config, url, token, webhook), as_json))
    except errors.ConfigurationError as error:
        told = str(error).rstrip(".") + "."
        found.append(problem("configuration", told, "Correct this, and look again."))
        _show(found[-1], as_json=as_json)
    if not as_json:
        typer.echo(_summary(found))
    raise typer.Exit(BAD if worst(found) is Level.PROBLEM else 0)


async def _found(
    chosen: Settings, given: Config, wanted: Wanted, as_json: bool
) -> Sequence[Finding]:
    found: list[Finding] = []
    async for finding in visit(chosen, given, wanted, wiring.doctor(chosen, given)):
        _show(finding, as_json=as_json)
        found.append(finding)
    return found


def _must_exist(chosen: Settings) -> None:
    if chosen.database_url is None and not chosen.data_folder.is_dir():
        raise errors.ConfigurationError(
            f"there is no store in {chosen.data_folder}: set database_url, or serve once"
        )


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(finding.as_json))
        return
    typer.echo(f"{finding.level.upper():8} {finding.check:{WIDTH}} {finding.says}")
    if finding.change:
        typer.echo(f"{'':8} {'':{WIDTH}} -> {finding.change}")


def _summary(found: Sequence[Finding]) -> str:
    bad = sum(one.level is Level.PROBLEM for one in found)
    so_so = sum(one.level is Level.WARNING for one in found)
    return f"{len(found)} findings; problems: {bad}, warnings: {so_so}"
