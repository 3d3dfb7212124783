"""What a person or a script sees of a task: live on a terminal, lines when piped, JSON if asked.

Results go to standard output, everything about the way there to standard error: so a result can be
piped on while its progress is watched. With `--json` all of it is lines on standard output.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from . import outcomes
from .outcomes import Outcome, Seen
from .text import line

Json = Mapping[str, Any]

_STYLES = {"result": "green", "cancelled": "yellow", "left_running": "yellow", "waiting": "magenta"}


class ReaderGone(Exception):
    """Nobody reads any more what is told here, as after `| head -1`."""


class Screen(Protocol):
    """Where a command tells what it sees. Nothing here waits."""

    def began(self, task_id: str, tool: str | None) -> None:
        """There is a task."""
        ...

    def detached(self, task_id: str) -> None:
        """There is a task, and it is left to itself."""
        ...

    def state(self, seen: Seen) -> None:
        """The task has moved, or is told once more."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """Nothing more is coming of this task."""
        ...

    def note(self, words: str) -> None:
        """Something that a person should know."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...

    @contextmanager
    def held(self) -> Generator[None]:
        """Nothing moves meanwhile: somebody is typing."""
        ...


def screen(*, as_json: bool, many: bool = False) -> Screen:
    """The one that fits what is connected."""
    if as_json:
        return JsonScreen()
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, many=many)
    return PlainScreen(many=many)


def show_all_characters() -> None:
    """Escape what the output cannot show: a character must not cost the result that it is in."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what stands there in tests may be none
            stream.reconfigure(errors="backslashreplace")


class JsonScreen:
    """One JSON object a line: `task` and `state` on the way, at last the outcome."""

    def began(self, task_id: str, tool: str | None) -> None:
        """See `Screen`."""
        self._print({"kind": "task", "taskId": task_id, "tool": tool})

    def detached(self, task_id: str) -> None:
        """See `Screen`."""
        self._print({"kind": "task", "taskId": task_id})

    def state(self, seen: Seen) -> None:
        """See `Screen`."""
        told = {"version": seen.version, "tool": seen.tool, "task": seen.task}
        self._print({"kind": "state", **told})

    def ended(self, outcome: Outcome) -> None:
        """See `Screen`."""
        with suppress(ReaderGone):  # the outcome is known: its code is what is left to tell
            self._print(outcome.told())

    def note(self, words: str) -> None:
        """See `Screen`."""
        _say(words, sys.stderr)

    def close(self) -> None:
        """See `Screen`."""

    @contextmanager
    def held(self) -> Generator[None]:
        """See `Screen`."""
        yield

    def _print(self, fact: Json) -> None:
        # ASCII alone: no text of a server can reach a terminal unescaped.
        _say(json.dumps(fact), sys.stdout)


class PlainScreen:
    """A line for each change, nothing moved or coloured."""

    def __init__(self, *, many: bool) -> None:
        self._many = many
        self._last: dict[str, str] = {}

    def began(self, task_id: str, tool: str | None) -> None:
        """See `Screen`."""
        self.note(f"task {line(task_id)} ({line(tool or 'a tool')})")

    def detached(self, task_id: str) -> None:
        """See `Screen`."""
        _print_detached(task_id)

    def state(self, seen: Seen) -> None:
        """See `Screen`."""
        task_id, words = seen.task_id, _words(seen.task)
        if self._last.get(task_id) != words:
            self._last[task_id] = words
            self.note(f"{line(task_id)} {words}" if self._many else words)

    def ended(self, outcome: Outcome) -> None:
        """See `Screen`."""
        with suppress(ReaderGone):  # of standard error: the result goes elsewhere
            self.note(_headline(outcome, many=self._many))
        _print_result(outcome)

    def note(self, words: str) -> None:
        """See `Screen`."""
        _say(words, sys.stderr)

    def close(self) -> None:
        """See `Screen`."""

    @contextmanager
    def held(self) -> Generator[None]:
        """See `Screen`."""
        yield


class LiveScreen:
    """A row a task, with a bar where the server tells how much there is."""

    def __init__(self, console: Console, *, many: bool) -> None:
        self.console, self._many = console, many
        self._rows: dict[str, TaskID] = {}
        self._is_held = False
        self._later: list[Callable[[], None]] = []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[tool]}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def began(self, task_id: str, tool: str | None) -> None:
        """See `Screen`."""
        if self._is_held:
            self._later.append(partial(self.began, task_id, tool))
        elif task_id not in self._rows:
            self.console.print(Text(f"task {line(task_id)}", style="cyan"), soft_wrap=True)
            name = line(tool or "task", 40)
            self._rows[task_id] = self._progress.add_task("", total=None, tool=name, words="")
            self._progress.start()

    def detached(self, task_id: str) -> None:
        """See `Screen`."""
        _print_detached(task_id)

    def state(self, seen: Seen) -> None:
        """See `Screen`."""
        self.began(seen.task_id, seen.tool)
        row = self._rows.get(seen.task_id)
        if row is not None:
            done, whole = outcomes.amount(str(seen.task.get("statusMessage") or "")) or (0, None)
            words = line(_words(seen.task), 100)
            self._progress.update(row, completed=done, total=whole, words=words)

    def ended(self, outcome: Outcome) -> None:
        """See `Screen`."""
        if self._is_held:
            self._later.append(partial(self.ended, outcome))
            return
        row = self._rows.pop(outcome.task_id or "", None)
        if row is not None:
            self._progress.remove_task(row)
        if not self._rows:
            self._progress.stop()
        words = _headline(outcome, many=self._many)
        style = "red" if outcome.detail.get("result", {}).get("isError") else None
        self.note(words, style or _STYLES.get(outcome.kind, "red"))
        _print_result(outcome)

    def note(self, words: str, style: str = "yellow") -> None:
        """See `Screen`."""
        if self._is_held:
            self._later.append(partial(self.note, words, style))
        else:
            self.console.print(Text(words, style=style), soft_wrap=True)

    def close(self) -> None:
        """See `Screen`."""
        self._progress.stop()

    @contextmanager
    def held(self) -> Generator[None]:
        """See `Screen`."""
        self._progress.stop()
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._rows:
                self._progress.start()
            later, self._later = self._later, []
            for tell in later:
                tell()


def _words(task: Json) -> str:
    """Status and message, as one line."""
    status = line(task.get("status", "")).replace("_", " ")
    message = line(task.get("statusMessage") or "")
    return f"{status}: {message}" if message else status


def _headline(outcome: Outcome, *, many: bool) -> str:
    """What became of it."""
    name = f"task {line(outcome.task_id)}" if many and outcome.task_id else "task"
    if outcome.task_id is None:
        name = line(outcome.tool or "call")
    if outcome.kind == "result":
        failed = outcome.code != 0
        return f"{name}: the tool reports an error" if failed else f"{name}: completed"
    if outcome.kind == "failed":
        return f"{name}: failed: {outcomes.reason(outcome.detail['error'])}"
    if outcome.kind == "left_running":
        return f"{name}: left running{_pick_up(outcome)}"
    if outcome.kind == "waiting":
        requests = outcomes.mapping(outcome.detail["inputRequests"])
        asked = outcomes.asked(requests, outcome.task_id)
        return "\n".join([f"{name}: waits for an answer that nobody here can give", *asked])
    if outcome.kind == "unknown":
        return f"{name}: {outcomes.reason(outcome.detail['error'])}"
    keys = " ".join(line(key) for key in outcome.detail.get("keys", []))
    return f"{name}: {outcome.kind.replace('_', ' ')} {keys}".rstrip()


def _print_detached(task_id: str) -> None:
    _say(line(task_id), sys.stdout)


def _pick_up(outcome: Outcome) -> str:
    return f"; go on with: outlast watch {line(outcome.task_id)}" if outcome.task_id else ""


def _print_result(outcome: Outcome) -> None:
    if outcome.kind == "result" and (text := outcomes.shown(outcome.detail["result"])):
        with suppress(ReaderGone):
            _say(text, sys.stdout)


def _say(words: str, stream: TextIO) -> None:
    """Raises ReaderGone, once: what comes after is told to nobody."""
    try:
        # One write: `print` puts the line's end after it, and a reader may leave between the two.
        stream.write(f"{words}\n")
        stream.flush()
    except BrokenPipeError:
        # What is left in the buffer would be tried again, and complained about, on the way out.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        raise ReaderGone from None
