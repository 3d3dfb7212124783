"""`outlast call | watch | resume | answer | cancel | tasks`: a client of any server that has tasks.

Each command has its file; `register` hangs them on the `outlast` command.
"""

import typer

from . import answering, calling, cancelling, listing, watching

# One task id in 64 begins with a hyphen, and is no option.
_TAKES_IDS = {"ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the client's commands."""
    app.command(epilog=calling.EXAMPLES)(calling.call)
    app.command(epilog=watching.WATCH_EXAMPLES, context_settings=_TAKES_IDS)(watching.watch)
    app.command(epilog=watching.RESUME_EXAMPLES)(watching.resume)
    app.command(epilog=answering.EXAMPLES, context_settings=_TAKES_IDS)(answering.answer)
    app.command(epilog=cancelling.EXAMPLES, context_settings=_TAKES_IDS)(cancelling.cancel)
    app.command(epilog=listing.EXAMPLES)(listing.tasks)
