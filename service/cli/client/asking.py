"""Whom to ask what a server wants to know: the person at the terminal, if there is one.

Sampling and roots are nobody's here: this command has no model and keeps no folders for others. It
declares neither, and what is asked all the same stays unanswered and is said.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ....domain.clienting import InputRequired
from . import outcomes, prompts
from .screen import Screen

ELICITATION = "elicitation/create"


def terminal() -> prompts.Terminal | None:
    """The terminal to ask at: typed at standard input, shown on standard error."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return prompts.Terminal(console, sys.stdin.fileno())


class Asker:
    """Asks one question at a time, while nothing else moves on the screen."""

    def __init__(self, server: str, screen: Screen, at: prompts.Terminal | None) -> None:
        self._server, self._screen, self.terminal = server, screen, at
        self._turn = asyncio.Lock()

    def can_answer(self, request: Mapping[str, Any]) -> bool:
        """Whether somebody is there who can."""
        return self.terminal is not None and request.get("method") == ELICITATION

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The response to an input request. Raises InputRequired."""
        if self.terminal is None or not self.can_answer(request):
            raise InputRequired({"question": request})
        async with self._turn:
            with self._screen.held():
                params = outcomes.mapping(request.get("params"))
                return await prompts.elicited(self.terminal, self._server, params)

    async def what_now(self) -> str:
        """After a Ctrl-C: cancel, leave or watch. Nobody to ask: leave."""
        if self.terminal is None:
            return "leave"
        with self._screen.held():
            self.terminal.say("")
            choices = ("cancel", "leave", "watch")
            prompt = "Cancel the task, leave it running, or watch on? [cancel/leave/watch] (leave)"
            try:
                return await self.terminal.choose(prompt, choices, "leave")
            except prompts.Dismissed:
                return "leave"
