"""What `outlast stdio` is made of: first what needs no store, then the rest over the same."""

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from ...adapters import embedded_shared, upstream
from ...delivery.port import Listener, ListenRequest, OpenWatch
from ...delivery.websocket import Switchboard
from ...domain import errors
from ..app import Parts
from ..catalogue import Lists
from ..config import Config
from ..endpoint import Endpoint, Method
from ..legacy import lines
from ..methods.discovery import DiscoveryMethods
from ..session import Connect, Gate
from ..settings import Settings
from ..stdio import Whole
from .application import SERVER_INFO, throttle_of
from .identity import own_access
from .process import upstreams_of

OPEN_MAX = 1024  # requests and watches at the same time; each holds one frame if nobody reads


@dataclass(frozen=True)
class Early:
    """What stands before there is a store. `upstreams` are for the rest as well."""

    upstreams: upstream.McpUpstreams
    endpoint: Endpoint
    connect: Connect
    gate: Gate


def early(config: Config) -> Early:
    """What can be said of the upstreams, and the gate for the one user of this process."""
    upstreams, access, unready = upstreams_of(config), own_access(), _Unready()
    discovery = DiscoveryMethods(upstreams, Lists(upstreams), has_events=config.events.enabled)
    methods: dict[str, Method] = {
        "server/discover": discovery.discover,
        "tools/list": discovery.tools,
    }
    return Early(
        upstreams,
        Endpoint(methods, unready, access, SERVER_INFO, require_task_name=False),
        lambda send, refuse: Switchboard(unready, send, refuse, OPEN_MAX),
        Gate(access, throttle_of(config)),
    )


def whole(parts: Parts) -> Whole:
    """The whole service, for one client over lines."""
    door = parts.sessions
    if door is None:
        return Whole(parts.endpoint)
    return Whole(parts.endpoint, lambda given, send: lines.serve(door.server, given, send))


def shared_database(settings: Settings) -> AbstractAsyncContextManager[str]:
    """The URL of the store: the one given, or the embedded server's of all who use its folder."""
    if settings.database_url is not None:
        return nullcontext(settings.database_url)
    return embedded_shared.shared(settings.data_folder.absolute())


class _Unready(Listener):
    async def open(self, request: ListenRequest) -> OpenWatch:
        del request
        raise errors.StoreUnavailable
