"""What runs of tasks work with."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..domain.ports import Signal, Upstreams
from ..domain.task import Task
from .bridging.following import Following
from .bridging.port import Bridge
from .commands import Commands

if TYPE_CHECKING:
    from .run import Run

Offer = Callable[[Task], Mapping[str, str] | None]


@dataclass(frozen=True)
class Workbench:
    """What a run works with. `offer` makes the callback of a task's attempt, where there is one.
    `takes_task` says of which tools, by upstream and name there, the upstream's tasks are followed.
    """

    commands: Commands
    upstreams: Upstreams
    signal: Signal
    offer: Offer = lambda _task: None
    bridges: Sequence[Bridge] = ()
    takes_task: Callable[[str, str], bool] = lambda _upstream, _tool: False
    around: Callable[["Run"], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    @cached_property
    def following(self) -> Following:
        """What looks at the jobs that tools have started at their upstreams."""
        return Following(self.commands, self.bridges)
