"""`outlast webhooks`: a thin client of /admin, of a running service or of one inside this process.

There is one way through: `--server` sends the requests to a service, and without it they go to the
same routes over the store itself, in this process, which claims and sends nothing.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from starlette.applications import Starlette

from ...domain import errors
from .. import wiring
from ..admin import PATH, Admin
from ..app import MCP_PATH
from ..config import Config
from ..settings import Settings
from .store import ConfigOption, store_of

TOKEN = "OUTLAST_ADMIN_TOKEN"  # noqa: S105 - the name of a variable, not a token
ANSWER_S_MAX = 60.0  # a test waits for somebody's endpoint, which may take 20 s

REFUSED, WRONG_USAGE = 1, 2  # exit codes
BAD_REQUEST, NOT_FOUND = 400, 404
JSON_TYPE = "application/json"

_ID = re.compile(r"[A-Za-z0-9_-]+")

Json = dict[str, Any]

Id = Annotated[str, typer.Argument(metavar="ID", help="The subscription: sub_…")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", help=f"A running service, http://…; its admin token comes from {TOKEN}."
    ),
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database-url", help="The store itself, instead of a service.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Lines of JSON instead of tables.")]

app = typer.Typer(help="Look after webhook subscriptions.", no_args_is_help=True)


@dataclass(frozen=True)
class Where:
    """Whom to ask."""

    server: str | None
    database_url: str | None
    config: Path | None


@app.command("list", epilog="Example: outlast webhooks list --only suspended")
def list_all(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    owner: Annotated[
        str | None, typer.Option(help="Of this owner, written as --json shows it.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="suspended: nothing is sent. failing: the last attempt was.")
    ] = None,
    limit: Annotated[int, typer.Option(help="So many at most.")] = 100,
    after: Annotated[str | None, typer.Option(help="Those after this id.")] = None,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List subscriptions, in the order of their ids."""
    wanted = {"owner": owner, "only": only, "limit": limit, "after": after}
    answer = _get(Where(server, database_url, config), "", wanted)
    rows = answer["webhooks"]
    if as_json:
        _print_lines(rows)
    else:
        columns = ("id", "owner", "event", "url", "state", "waiting", "last error")
        _print_table(columns, [_row(each) for each in rows])
    if answer["next"] is not None:
        typer.echo(f"there are more: --after {answer['next']}", err=True)


@app.command(epilog="Example: outlast webhooks show sub_0123456789abcdef0123456789abcdef")
def show(
    subscription_id: Id,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one subscription: how its endpoint does, and what waits. Never its secret."""
    answer = _get(Where(server, database_url, config), _path(subscription_id), {})
    _print_one(answer, as_json=as_json)


@app.command(epilog="Example: outlast webhooks attempts sub_0123456789abcdef0123456789abcdef")
def attempts(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    subscription_id: Id,
    event: Annotated[str | None, typer.Option(help="Of this webhook id alone.")] = None,
    limit: Annotated[int, typer.Option(help="So many at most.")] = 100,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the attempts to deliver, newest first."""
    wanted = {"event": event, "limit": limit}
    where = Where(server, database_url, config)
    rows = _get(where, _path(subscription_id, "attempts"), wanted)["attempts"]
    if as_json:
        _print_lines(rows)
    else:
        columns = ("at", "event", "task", "version", "number", "outcome", "status", "reason", "ms")
        names = (*columns[:-1], "latencyMs")
        _print_table(columns, [[each[name] for name in names] for each in rows])


@app.command(
    epilog="Example: outlast webhooks resend sub_0123456789abcdef0123456789abcdef --since 2h"
)
def resend(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    subscription_id: Id,
    event: Annotated[
        str | None, typer.Option(help="One event by its webhook id: evt_…, as attempts shows it.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="One event by its task and --version.")] = None,
    version: Annotated[int | None, typer.Option(help="The version of --task.")] = None,
    since: Annotated[
        str | None, typer.Option(help="All since an instant with its zone, or of the last 2h.")
    ] = None,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue events once more, under their own ids. What waits already is not doubled."""
    given = {"event": event, "task": task, "version": version, "since": since}
    body = {name: value for name, value in given.items() if value is not None}
    answer = _post(Where(server, database_url, config), _path(subscription_id, "resend"), body)
    if as_json:
        _print_lines([answer])
    else:
        typer.echo(f"queued {answer['queued']}")


@app.command(epilog="Example: outlast webhooks resume sub_0123456789abcdef0123456789abcdef")
def resume(
    subscription_id: Id,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver to a suspended subscription again, from where it stood."""
    where = Where(server, database_url, config)
    _print_one(_post(where, _path(subscription_id, "resume"), {}), as_json=as_json)


@app.command("test", epilog="Example: outlast webhooks test sub_0123456789abcdef0123456789abcdef")
def try_endpoint(
    subscription_id: Id,
    server: ServerOption = None,
    database_url: DatabaseOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Challenge the endpoint once, signed with the subscription's secret. Changes nothing."""
    where = Where(server, database_url, config)
    answer = _post(where, _path(subscription_id, "test"), {})
    if as_json:
        _print_lines([answer])
    else:
        typer.echo("ok" if answer["ok"] else f"failed: {answer['reason']}")
    if not answer["ok"]:
        raise typer.Exit(REFUSED)


def _path(subscription_id: str, deed: str = "") -> str:
    if not _ID.fullmatch(subscription_id):
        raise errors.ConfigurationError(f"{subscription_id!r} is no id of a subscription: sub_…")
    return f"/{subscription_id}/{deed}" if deed else f"/{subscription_id}"


def _get(where: Where, path: str, query: Mapping[str, Any]) -> Json:
    params = {name: value for name, value in query.items() if value is not None}
    return _asked(where, "GET", path, params=params)


def _post(where: Where, path: str, body: Json) -> Json:
    return _asked(where, "POST", path, json=body)


def _asked(where: Where, method: str, path: str, **content: Any) -> Json:
    """The answer. Exits with the reason when there is none."""
    try:
        request = httpx2.Request(method, _base_url(where) + path, **content)
        if where.server is not None:
            reply = _at_service(request, where)
        else:
            reply = _at_store(request, where)
    except httpx2.InvalidURL as error:
        raise errors.ConfigurationError(f"--server: {error}") from error
    except httpx2.HTTPError as error:
        raise _refused(f"{where.server} gives no answer: {error}", REFUSED) from error
    except errors.StoreUnavailable as error:
        raise _refused(str(error), REFUSED) from error
    if reply.is_success and reply.headers.get("content-type") == JSON_TYPE:
        return reply.json()
    code = WRONG_USAGE if reply.status_code == BAD_REQUEST else REFUSED
    raise _refused(_reason(reply), code)


def _base_url(where: Where) -> str:
    if where.server is None:
        return f"http://localhost{PATH}"
    if not where.server.startswith(("http://", "https://")):
        raise errors.ConfigurationError("--server must be an http(s) URL")
    return where.server.rstrip("/").removesuffix(MCP_PATH) + PATH


def _reason(reply: httpx2.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        pass
    if reply.status_code == NOT_FOUND:
        return "what answers there has no /admin: it is no Outlast, or an old one"
    return f"what answers there is no Outlast, or not by itself: HTTP status {reply.status_code}"


def _refused(message: str, code: int) -> typer.Exit:
    typer.echo(f"outlast: {message}", err=True)
    return typer.Exit(code)


def _at_service(request: httpx2.Request, where: Where) -> httpx2.Response:
    if where.database_url is not None or where.config is not None:
        raise errors.ConfigurationError("give --server, or --database-url and --config, not both")
    token = os.environ.get(TOKEN, "").strip()
    # Looked at here: the HTTP library would show in its error what it cannot send.
    if not (token and token.isascii() and token.isprintable()):
        raise errors.ConfigurationError(
            f"--server needs a token with the scope operate in {TOKEN}: the setting admin_token"
        )
    request.headers["Authorization"] = f"Bearer {token}"
    return asyncio.run(_sent(request, None))


def _at_store(request: httpx2.Request, where: Where) -> httpx2.Response:
    ways = "--server, --database-url or --config"
    config, chosen = store_of(where.config, where.database_url, ways)
    with wiring.database(chosen, share=True) as url:
        return asyncio.run(_in_process(request, chosen, config, url))


async def _in_process(
    request: httpx2.Request, chosen: Settings, config: Config, url: str
) -> httpx2.Response:
    await wiring.upgrade(url)
    async with wiring.operating(chosen, config, url) as operators:
        routes = Admin(operators, wiring.own_access()).routes()
        return await _sent(request, httpx2.ASGITransport(Starlette(routes=routes)))


async def _sent(
    request: httpx2.Request, transport: httpx2.AsyncBaseTransport | None
) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=transport, timeout=ANSWER_S_MAX) as client:
        return await client.send(request)


def _row(told: Json) -> list[Any]:
    state = "suspended" if not told["active"] else "failing" if told["failingSince"] else "active"
    owner = "/".join(told["owner"])
    facts = (told["id"], owner, told["name"], told["url"], state, told["waiting"])
    return [*facts, told["lastError"]]


def _print_lines(rows: Sequence[Json]) -> None:
    for row in rows:
        typer.echo(json.dumps(row))


def _print_one(told: Json, *, as_json: bool) -> None:
    if as_json:
        _print_lines([told])
        return
    breaker = {f"breaker {name}": value for name, value in told["breaker"].items()}
    facts = {name: value for name, value in told.items() if name != "breaker"}
    _print_table(("", ""), list({**facts, **breaker}.items()))


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row))
    Console().print(table)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
