"""The options that the commands of a client share."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from ....domain import errors
from ... import logs, policy
from ...client import Webhook
from . import codes, completion
from .reach import Via
from .screen import ReaderGone, show_all_characters
from .text import line

PORT_MAX = 65_535
LISTEN = "127.0.0.1:0"
MESSAGE_CHARS_MAX = 4000

ServerOption = Annotated[
    str,
    typer.Option("--server", envvar="OUTLAST_SERVER", help="The server's MCP endpoint."),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="OUTLAST_TOKEN", help="Bearer token. The variable is safer."),
]
ViaOption = Annotated[Via, typer.Option("--via", help="How to learn of changes.")]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        envvar="OUTLAST_JOURNAL",
        help="Where tasks are remembered; default .outlast/client.db.",
        dir_okay=False,
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", help='Stay for so long at most: "90s", "5m". The task goes on.'),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Lines of JSON: each state, then the outcome.")
]
WebhookUrlOption = Annotated[
    str | None,
    typer.Option(
        "--webhook-url",
        envvar="OUTLAST_WEBHOOK_URL",
        help="With --via webhook: where the server reaches us, if not on this machine.",
    ),
]
WebhookListenOption = Annotated[
    str,
    typer.Option(
        "--webhook-listen",
        envvar="OUTLAST_WEBHOOK_LISTEN",
        metavar="HOST:PORT",
        help="With --via webhook: where we listen; port 0 is any.",
    ),
]
TaskId = Annotated[
    str,
    typer.Argument(metavar="TASK_ID", help="The task.", autocompletion=completion.task_ids),
]


def seconds(timeout: str | None) -> float | None:
    """The duration of --timeout; a bare number is seconds. Raises ConfigurationError."""
    if timeout is None:
        return None
    try:
        return policy.milliseconds(f"{timeout}s" if timeout[-1:].isdigit() else timeout) / 1000
    except ValueError as error:
        raise errors.ConfigurationError(f"--timeout: {error}") from None


def webhook(url: str | None, listen: str) -> Webhook:
    """Where a server may post to us. Raises ConfigurationError."""
    host, _, port = listen.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= PORT_MAX):
        raise errors.ConfigurationError(f"--webhook-listen is HOST:PORT, not {listen!r}")
    return Webhook(host.strip("[]"), int(port), url)


def examples(*lines: str) -> str:
    """What stands below a command's help."""
    return "\n\n".join(["Examples:", *lines, codes.EPILOG])


def run(command: Coroutine[Any, Any, int]) -> typer.Exit:
    """The exit code that the command comes to; a server that cannot be asked has one too.

    Raises ConfigurationError, harmless to show: names of tools and fields are the server's.
    """
    logs.configure("error")
    show_all_characters()
    try:
        return typer.Exit(_left_if_nobody_reads(command))
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(line(error, MESSAGE_CHARS_MAX)) from None
    except errors.RemoteError as error:
        typer.echo(f"outlast: {line(error)}", err=True)
        return typer.Exit(codes.NO_ANSWER)


def _left_if_nobody_reads(command: Coroutine[Any, Any, int]) -> int:
    try:
        return asyncio.run(command)
    except ReaderGone:
        return codes.LEFT_RUNNING
    except ExceptionGroup as group:  # out of the tasks that watch beside one another
        if group.split(ReaderGone)[1] is not None:
            raise
        return codes.LEFT_RUNNING
