"""The door for clients with sessions, over the methods that all clients have."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from ...delivery.port import Listener
from ..access import Access
from ..config import Config
from ..endpoint import Method
from ..legacy.calls import Calls
from ..legacy.door import Bounds, Door
from ..legacy.listening import SessionEars
from ..legacy.server import Methods
from ..legacy.tasks import OlderTasks
from ..legacy.waiting import Waiting
from ..settings import Settings
from ..throttle import Throttle
from .process import Built


@dataclass(frozen=True)
class Shared:
    """What clients of all eras are served with."""

    methods: Mapping[str, Method]
    listener: Listener
    access: Access
    throttle: Throttle
    server_info: Mapping[str, str]


def door_of(
    settings: Settings, config: Config, built: Built, shared: Shared, *, is_alone: bool
) -> Door | None:
    """None when they are not served. Who shares a port with other processes keeps no sessions."""
    if not settings.legacy:
        return None
    waiting = Waiting(shared.listener, built.feed.moments, shared.methods)
    served = Methods(
        Calls(waiting, config.policies),
        OlderTasks(waiting, built.push.stores.events),
        SessionEars(shared.listener),
        shared.server_info,
        shared.throttle.refused,
    )
    bounds = Bounds(settings.sessions, settings.sessions_per_owner, settings.session_idle_s)
    within = bounds if is_alone else None
    return Door(served.server(), shared.access, shared.throttle, within)


def running_with(
    running: Callable[[], AbstractAsyncContextManager[None]], door: Door | None
) -> Callable[[], AbstractAsyncContextManager[None]]:
    """All that is opened and closed, with sessions in the inmost place."""
    if door is None:
        return running

    @asynccontextmanager
    async def both() -> AsyncGenerator[None]:
        async with running(), door.running():
            yield

    return both
