"""The ASGI application over the objects of a process."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...adapters.operations import PostgresOperations
from ...adapters.postgres import Database
from ...delivery.events.desk import Desk
from ...delivery.events.poll import PollMethod
from ...delivery.events.reading import Reading
from ...delivery.events.stream import Streaming, StreamMethod
from ...delivery.limits import WatchLimits
from ...delivery.listen import Listening, ListenMethod
from ...delivery.polling import PollingMethod
from ...delivery.port import Listener
from ...delivery.webhook import signing
from ...delivery.websocket import Switchboard
from ...domain import draft
from ...domain.owner import LOCAL_OWNER
from ..access import Access
from ..admin import Admin
from ..app import Lookout, Parts
from ..callbacks import Callbacks
from ..catalogue import Catalogue, Lists
from ..config import Config
from ..endpoint import Endpoint, Method, Streams
from ..legacy.door import Door
from ..methods.discovery import DiscoveryMethods
from ..methods.events import EventMethods
from ..methods.passing import COMPLETE, GET, READ, PassingMethods
from ..methods.tasks import TaskMethods
from ..methods.tools import Bench, ToolMethods
from ..metrics import Figure, Metrics, webhook_figures
from ..sealing import StateSeal
from ..seen import Seen
from ..settings import Settings
from ..siblings import Siblings
from ..socket import Connect, Socket
from ..throttle import Throttle
from .audit_reading import audit_pages
from .draining import Drain
from .identity import access_of, protected_of
from .process import Built
from .push import Push
from .sessions import Shared, door_of, running_with
from .store import now
from .telemetry import families_of, standing_of
from .tools import operators

if TYPE_CHECKING:
    from .console import Desk as ConsoleDesk

SERVER_INFO = {"name": "outlast", "version": __version__}


def parts(
    settings: Settings, config: Config, built: Built, siblings: Siblings | None = None
) -> Parts:
    """The application over built objects; `siblings` are the other processes of the service."""
    feed, access = built.feed, access_of(settings, config, built.identity)
    limits = WatchLimits(settings.watches, settings.watches_per_owner)
    listening = Listening(feed, built.signal, built.announcements, limits)
    listener = ListenMethod(listening)
    streaming = Streaming(_reading(built.push), built.signal, limits)
    events = _event_methods(config, built.push, streaming)
    streams = {} if events is None else {draft.STREAM: events.stream}
    throttle, seen = throttle_of(config), Seen()
    methods = seen.over(_traced(built, _methods(config, built, throttle, events)))
    shared = Shared(methods, listener, access, throttle, SERVER_INFO)
    sessions = door_of(settings, config, built, shared, is_alone=siblings is None)
    pages, drain = _pages(settings, config, built, throttle), Drain()
    metrics = _metrics(built, _figures(settings, built, limits), access, throttle, siblings, seen)
    running = running_with(lambda: built.running(settings.drain_s, drain), sessions)

    def wind_down() -> None:
        drain.begin()
        listening.closing.set()
        streaming.closing.set()
        if sessions is not None:
            sessions.wind_down()
        built.worker.stop_claiming()

    return Parts(
        _endpoint(settings, shared, streams, sessions),
        Socket(_switching(listener), access, streams, throttle, pages and pages.visiting),
        Lookout(metrics, built.is_ready, running, wind_down),
        _public_keys(built.push),
        Callbacks(built.tickets, built.commands, built.upstreams, _is_signed),
        Admin(operators(built), access),
        protected_of(config),
        audit_pages(built, access),
        sessions,
        pages and pages.console,
    )


def lookout(settings: Settings, config: Config, built: Built) -> Lookout:
    """What tells how a process is that works and serves nobody."""
    access, limits = access_of(settings, config, built.identity), WatchLimits(0, 0)
    figures, drain = _figures(settings, built, limits), Drain()

    def wind_down() -> None:
        drain.begin()
        built.worker.stop_claiming()

    return Lookout(
        _metrics(built, figures, access, throttle_of(config), None, Seen()),
        built.is_ready,
        lambda: built.running(settings.drain_s, drain),
        wind_down,
    )


def _pages(
    settings: Settings, config: Config, built: Built, throttle: Throttle
) -> "ConsoleDesk | None":
    if not config.console.enabled:
        return None
    from .console import console_of  # templates are slow to import: not for who has no console

    return console_of(settings, config, built, throttle)


def _endpoint(
    settings: Settings, shared: Shared, streams: Streams, sessions: Door | None
) -> Endpoint:
    return Endpoint(
        shared.methods,
        shared.listener,
        shared.access,
        shared.server_info,
        require_task_name=settings.require_task_name_header,
        streams=streams,
        throttle=shared.throttle,
        sessions=sessions,
    )


def _traced(built: Built, methods: Mapping[str, Method]) -> Mapping[str, Method]:
    return methods if built.tracing is None else built.tracing.over(methods)


def _metrics(  # noqa: PLR0913, PLR0917 - each is known to the caller alone
    built: Built,
    figures: Mapping[str, Figure],
    access: Access,
    throttle: Throttle,
    siblings: Siblings | None,
    seen: Seen,
) -> Metrics:
    """The page of figures; the other processes are told what counts for all of them."""
    metrics = Metrics(
        figures,
        access,
        siblings,
        families={**seen.families(), **families_of(built.log, built.push, throttle)},
        standing=standing_of(
            PostgresOperations(built.store),
            built.views,
            built.auditing.following if built.auditing.loops else None,
        ),
    )
    if siblings is not None:
        siblings.meet(metrics.own, throttle.taken_elsewhere)
        throttle.share(siblings.took)
    return metrics


def throttle_of(config: Config) -> Throttle:
    """The rates that the file sets."""
    limits = config.limits
    return Throttle(
        limits.calls_per_minute,
        config.polls_per_minute,
        calls_per_minute_in_all=limits.calls_per_minute_in_all,
    )


def _switching(listener: Listener) -> Connect:
    return lambda send, refuse: Switchboard(listener, send, refuse)


def _public_keys(push: Push) -> Mapping[str, Any] | None:
    key = push.server_key
    return None if key is None else signing.public_keys([key])


def _is_signed(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        signing.verify([secret], headers, body, now())
    except signing.SignatureRefused:
        return False
    return True


def _reading(push: Push) -> Reading:
    stores = push.stores
    return Reading(stores.events, stores.feed, stores.occurrences, push.cursors, now)


def _event_methods(config: Config, push: Push, streaming: Streaming) -> EventMethods | None:
    if not config.events.enabled:
        return None
    polling, streamer = PollMethod(streaming.reading), StreamMethod(streaming)
    desk = Desk(polling, streamer, push.cursors, push.methods)
    in_development = config.events.development
    return EventMethods(desk, lambda owner: in_development or owner != LOCAL_OWNER)


_POOL = {
    "open": "Connections to PostgreSQL for reads and the queue.",
    "free": "Of these, those that nobody uses now.",
    "waiting": "Statements that wait for one.",
}


def _pool(store: Database, word: str) -> float:
    return float(store.use()[word])


def _figures(settings: Settings, built: Built, limits: WatchLimits) -> Mapping[str, Figure]:
    sender, store = built.push.sender, built.store
    slots = Figure("Calls that this process runs at most.", lambda: float(settings.slots))
    return {
        **({} if sender is None else webhook_figures(sender.counts)),
        "outlast_signal_live": Figure(
            "1 while changes are heard of at once; 0 while waiters look for them every second.",
            lambda: float(built.signal.is_live),
        ),
        "outlast_watches_open": Figure(
            "Watches that clients hold open.", lambda: limits.open_count
        ),
        "outlast_calls_running": Figure(
            "Calls that this process runs now.", lambda: built.worker.running_count
        ),
        **({"outlast_slots": slots} if built.claims else {}),
        "outlast_signal_lag_seconds": Figure(
            "How far back the moment lies up to which all changes have certainly been heard of.",
            lambda: built.signal.lag_s,
        ),
        **{
            f"outlast_pool_{word}": Figure(meaning, partial(_pool, store, word))
            for word, meaning in _POOL.items()
        },
    }


def _methods(
    config: Config, built: Built, throttle: Throttle, events: EventMethods | None
) -> Mapping[str, Method]:
    upstreams, poller = built.upstreams, PollingMethod(built.feed)
    catalogue = Catalogue(upstreams, upstreams.upstream_of)
    lists = Lists(upstreams, lambda tool: config.policies.of(tool).bridge is not None)
    tasks = TaskMethods(built.commands, poller, built.retention, throttle)
    discovery = DiscoveryMethods(upstreams, lists, has_events=events is not None)
    bench = Bench(built.commands, built.views, built.retention, built.called, built.worker, events)
    seal = StateSeal(built.key)
    tools = ToolMethods(bench, catalogue, config.policies, seal)
    passing = PassingMethods(upstreams, lists, seal)
    methods: dict[str, Method] = {
        "server/discover": discovery.discover,
        "tools/list": discovery.tools,
        "tools/call": tools.call,
        "resources/list": passing.resources,
        "resources/templates/list": passing.templates,
        "prompts/list": passing.prompts,
        READ: passing.forward,
        GET: passing.forward,
        COMPLETE: passing.forward,
        "tasks/get": tasks.get,
        "tasks/update": tasks.update,
        "tasks/cancel": tasks.cancel,
    }
    if events is not None:
        methods[draft.LIST] = events.list
        methods[draft.POLL] = events.poll
        methods[draft.SUBSCRIBE] = events.subscribe
        methods[draft.UNSUBSCRIBE] = events.unsubscribe
    return methods
