"""Questions put to whoever sits at the terminal: a form field by field, a URL, a choice of deeds.

Lines are read as the terminal hands them over, without a thread that would wait on after an
interrupt.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from rich.console import Console
from rich.text import Text

from ... import forms
from ...forms import Field, Kind, Unfit
from .outcomes import mapping
from .text import line, plain

Json = Mapping[str, Any]

LINE_BYTES = 4096  # what a terminal hands over at once, at most
DECLINE, DISMISS = "/decline", "/dismiss"
NOTHING = "-"  # typed for "leave it out" where there is a proposal


class Declined(Exception):
    """Whoever was asked says no."""


class Dismissed(Exception):
    """Whoever was asked does not want to say."""


class Terminal:
    """A console to write on, and lines typed at it."""

    def __init__(self, console: Console, descriptor: int = 0) -> None:
        self.console = console
        self._descriptor = descriptor

    async def ask(self, prompt: str) -> str:
        """One line, without its end. Raises Dismissed when the input ends (Ctrl-D)."""
        self.console.print(Text(prompt), end=" ", soft_wrap=True)
        typed = b""
        while not typed.endswith(b"\n"):
            await anyio.wait_readable(self._descriptor)
            more = os.read(self._descriptor, LINE_BYTES)
            if not more:
                self.console.print()
                raise Dismissed
            typed += more
        return typed.decode(errors="replace").rstrip("\r\n")

    def say(self, text: str, style: str = "") -> None:
        """A line of ours, or one made safe."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    async def choose(self, prompt: str, choices: Sequence[str], default: str) -> str:
        """One of the words, or of their first letters; the default for an empty line."""
        while True:
            typed = (await self.ask(prompt)).strip().lower()
            for choice in choices:
                if typed and choice.startswith(typed):
                    return choice
            if not typed:
                return default
            self.say(f"  answer {', '.join(choices)}", "yellow")


async def elicited(terminal: Terminal, server: str, params: Json) -> dict[str, Any]:
    """The ElicitResult of whoever is asked, by form or by URL."""
    terminal.say(f"? {plain(params.get('message', ''))}", "bold magenta")
    terminal.say(f"  asked by {line(server)}", "dim")
    try:
        if params.get("mode") == "url":
            await _consented(terminal, params)
            return {"action": "accept"}
        content = await _filled_in(terminal, mapping(params.get("requestedSchema")))
        return {"action": "accept", "content": content}
    except Declined:
        return {"action": "decline"}
    except Dismissed:
        return {"action": "cancel"}


async def _consented(terminal: Terminal, params: Json) -> None:
    """Return once the person agrees to visit the URL. It is shown whole and opened by nobody."""
    terminal.say("  It wants you to open this address yourself, in a browser:")
    terminal.say(f"  {shown_url(str(params.get('url', '')))}", "bold")
    choices = ("yes", "decline", "later")
    said = await terminal.choose("  Done, or agreed? [yes/decline/later] (yes)", choices, "yes")
    if said == "decline":
        raise Declined
    if said == "later":
        raise Dismissed


def shown_url(url: str) -> str:
    """The URL, with a warning where its host is not what it seems."""
    shown = line(url, chars_max=len(url) + 1)
    if not shown.isascii() or "xn--" in shown.lower():
        return f"{shown}\n  Beware: it holds letters that can look like others."
    if not re.match(r"https://", shown, re.IGNORECASE):
        return f"{shown}\n  Beware: the connection to it is not private."
    return shown


async def _filled_in(terminal: Terminal, schema: Json) -> dict[str, Any]:
    fields = forms.fields_of(schema)
    terminal.say(
        f"  {DECLINE} says no, {DISMISS} says nothing. Optional ones may stay empty.", "dim"
    )
    content: dict[str, Any] = {}
    while True:
        for field in fields:
            content = await _with(terminal, field, content)
        if len(fields) == 1:
            return content
        for name, value in content.items():
            terminal.say(f"    {line(name)}: {line(value)}")
        choices = ("yes", "edit", "decline")
        said = await terminal.choose("  Send this? [yes/edit/decline] (yes)", choices, "yes")
        if said == "decline":
            raise Declined
        if said == "yes":
            return content


async def _with(terminal: Terminal, field: Field, content: dict[str, Any]) -> dict[str, Any]:
    """The content with this field as it is typed; asked again until it fits."""
    if field.description:
        terminal.say(f"  {plain(field.description)}", "dim")
    for number, option in enumerate(field.options, 1):
        terminal.say(f"    {number}) {line(option.title)}")
    rest = {name: value for name, value in content.items() if name != field.name}
    proposal = content.get(field.name, field.default if field.has_default else None)
    while True:
        typed = await terminal.ask(_prompt(field, proposal))
        if typed.strip() in (DECLINE, DISMISS):
            raise Declined if typed.strip() == DECLINE else Dismissed
        try:
            return {**rest, **_typed(field, typed, proposal)}
        except Unfit as error:
            terminal.say(f"  {line(error)}", "yellow")


def _typed(field: Field, typed: str, proposal: Any) -> dict[str, Any]:
    """The value by its name, or nothing where it is left out. Raises Unfit."""
    if not typed.strip() and proposal is not None:
        return {field.name: proposal}
    if not field.is_required and typed.strip() in ("", NOTHING):
        return {}
    if not typed.strip():
        raise Unfit("this one is needed")
    return {field.name: forms.parse(field, typed)}


def _prompt(field: Field, proposal: Any) -> str:
    wanted = {
        Kind.ONE_OF: "a number or a name",
        Kind.SOME_OF: "numbers or names, with commas",
    }.get(field.kind) or forms.hint(field)
    words = f"  {line(field.title)} [{line(wanted)}]"
    if proposal is not None:
        leave_out = "" if field.is_required else f"; {NOTHING} for none"
        return f"{words} ({line(forms.written(field, proposal))}{leave_out}):"
    return f"{words}:" if field.is_required else f"{words} (optional):"
