"""The `outlast` command: what serves, what calls, what looks after them."""

from pathlib import Path
from typing import Annotated

import typer

from ... import __version__
from ...domain import draft, errors
from ...domain.owner import Scope
from .. import hosting, wiring
from ..receiving import Wanted
from . import (
    audit,
    audit_reading,
    client,
    doctor,
    keys,
    processes as running,
    purge,
    rebuild,
    receive as receiving,
    stdio,
    webhooks,
)

Config = Annotated[
    Path | None,
    typer.Option(help="TOML file with upstreams, policies and settings.", dir_okay=False),
]
Upstream = Annotated[
    str | None,
    typer.Option(help="One upstream without a file: a command to run, or an http(s) URL."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="PostgreSQL 14 or newer. Without it an embedded server runs in .outlast/."),
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Processes that share the port; default 1. Each opens up to"
        f" {wiring.CONNECTIONS_MAX} connections to PostgreSQL, and starts its own process of each"
        " upstream that is a command."
    ),
]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]

app = typer.Typer(
    help="A durable task service in front of any MCP server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="Look after the task store.", no_args_is_help=True)
token = typer.Typer(help="Make static bearer tokens.", no_args_is_help=True)
app.add_typer(database, name="db")
app.add_typer(token, name="token")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(keys.app, name="keys")
app.add_typer(audit.app, name="audit")
audit_reading.register(audit.app)
database.command()(rebuild.rebuild)


@app.command()
def serve(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    config: Config = None,
    upstream: Upstream = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; default 8000, 0 for any.")] = None,
    database_url: DatabaseUrl = None,
    processes: Processes = None,
    slots: Annotated[
        int | None, typer.Option(help="Calls that each process runs at once; default 16.")
    ] = None,
    work: Annotated[bool, typer.Option(help="Run tasks in this process too.")] = True,
    log_level: LogLevel = None,
) -> None:
    """Serve POST /mcp, and run tasks too."""
    flags = {
        "host": host,
        "port": port,
        "database_url": database_url,
        "processes": processes,
        "slots": slots,
        "log_level": log_level,
    }
    running.serve(config, upstream, flags, work=work)


@app.command()
def worker(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    config: Config = None,
    upstream: Upstream = None,
    database_url: DatabaseUrl = None,
    slots: Annotated[int | None, typer.Option(help="Calls to run at once; default 16.")] = None,
    port: Annotated[
        int | None,
        typer.Option(help="TCP port for /healthz, /readyz and /metrics; default none, 0 for any."),
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Run tasks of the same database in one more process."""
    flags = {
        "database_url": database_url,
        "slots": slots,
        "worker_port": port,
        "log_level": log_level,
    }
    running.worker(config, upstream, flags)


@database.command("upgrade")
def upgrade(config: Config = None, database_url: DatabaseUrl = None) -> None:
    """Apply the migrations that are missing."""
    applied = running.upgrade(config, {"database_url": database_url})
    for name in applied:
        typer.echo(f"applied {name}")
    if not applied:
        typer.echo("the schema is up to date")


@token.command("new")
def new_token(
    subject: Annotated[str, typer.Option(help="Who it is for.")],
    client: Annotated[str, typer.Option(help="Through which client.")] = "default",
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="What it may do, once for each; default call and watch."),
    ] = None,
) -> None:
    """Print a new token, and the lines for the tokens file that admit it."""
    secret, lines = running.new_token(subject, client, scope or [Scope.CALL, Scope.WATCH])
    typer.echo(f"token (shown once): {secret}\n\nadd to the tokens file:\n\n{lines}")


@app.command()
def receive(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    server: Annotated[str, typer.Option(help="The server's MCP endpoint, http://…/mcp.")],
    url: Annotated[
        str | None,
        typer.Option(help="Where the server reaches this endpoint; default its own address."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="OUTLAST_TOKEN", help="Bearer token for the server.")
    ] = None,
    name: Annotated[str, typer.Option(help="The event type.")] = draft.TASK_FINISHED,
    arguments: Annotated[str, typer.Option(help="Its arguments, a JSON object.")] = "{}",
    ttl: Annotated[
        str, typer.Option(help='How long it may outlive this process: "1h", or "unlimited".')
    ] = "1h",
    inbox: Annotated[
        Path, typer.Option(help="File of what was received.", dir_okay=False)
    ] = receiving.INBOX,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 for any.")] = 9000,
    unsubscribe: Annotated[
        bool, typer.Option("--unsubscribe", help="Let go of the subscription on the way out.")
    ] = False,
) -> None:
    """Subscribe to events by webhook, and print each delivery as a line of JSON."""
    given, ttl_ms = receiving.arguments_of(arguments), receiving.ttl_ms_of(ttl)
    with hosting.listener_on(host, port, backlog=128) as listener:
        own = hosting.url_of(host, listener.getsockname()[1]) + "/"
        wanted = Wanted(server, token, url or own, name, given, ttl_ms, inbox)
        raise typer.Exit(receiving.receive(wanted, listener, unsubscribe=unsubscribe))


app.command()(purge.purge)
app.command()(doctor.doctor)


@app.command("demo")
def show_demo(
    approve: Annotated[
        bool | None,
        typer.Option("--approve/--decline", help="Answer the deploy question by itself."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder to keep the store in; default a temporary one.")
    ] = None,
) -> None:
    """Run a small CI pipeline as a durable task, and watch it live."""
    raise typer.Exit(running.demo(approve, keep))


client.register(app)
stdio.register(app)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"outlast {__version__}")
        raise typer.Exit


def main() -> None:
    """The console script. What a person can mend is one line, not a traceback."""
    try:
        app()
    except (
        errors.AuditError,
        errors.ConfigurationError,
        errors.StoreUnavailable,
        errors.RemoteError,
        receiving.OutputClosed,
    ) as error:
        typer.echo(f"outlast: {error}", err=True)
        raise SystemExit(2) from None
