"""The console over the objects of a process: its frame, its pages, and who comes in."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...adapters import identity, oidc
from ...delivery.polling import PollingMethod
from ...domain.owner import Owner, Scope
from ..config import Config
from ..console.frame import Frame
from ..console.pages import Console, Page
from ..console.session import Sessions
from ..console.signin import CALLBACK, CodeFlow, SignIn
from ..console.signing import Seal
from ..methods.tasks import TaskMethods
from ..settings import Settings
from ..socket import Visiting
from ..throttle import Throttle
from .console_inbox import inbox_of, webhooks_of
from .console_running import overview, proofs, workers
from .console_task import task_pages
from .console_tasks import task_list
from .identity import guard_of
from .process import Built


@dataclass(frozen=True)
class Desk:
    """The console, and how its pages are known on a WebSocket."""

    console: Console
    visiting: Visiting


def console_of(settings: Settings, config: Config, built: Built, throttle: Throttle) -> Desk:
    """All of it."""
    # The operators' token is part of the key: with another one nobody stays signed in by the old.
    seal = Seal(f"{built.key}\0{settings.admin_token or ''}")
    sessions = Sessions(
        seal,
        built.identity,
        guard_of(settings),
        lambda owner: _is_known(settings, built, owner),
        config.console.session / 1000,
    )
    frame = Frame(seal)
    sign_in = SignIn(frame, sessions, seal, _flow(config))
    pages = [*sign_in.pages(), *_pages(settings, config, built, throttle, frame)]
    console = Console(frame, sessions, pages, sign_in.open_pages())
    return Desk(console, sessions.socket_caller)


def _pages(
    settings: Settings, config: Config, built: Built, throttle: Throttle, frame: Frame
) -> Sequence[Page]:
    methods = TaskMethods(built.commands, PollingMethod(built.feed), built.retention, throttle)
    return [
        *overview(frame, settings, built).pages(),
        *task_list(built, frame, config.console.redact).pages(),
        *task_pages(built, methods, frame, config.console.redact).pages(),
        *inbox_of(frame, built).pages(),
        *webhooks_of(frame, built).pages(),
        *workers(frame, settings, built).pages(),
        *proofs(frame, built).pages(),
    ]


def _is_known(settings: Settings, built: Built, owner: Owner) -> bool:
    if owner.issuer == identity.OPERATORS:
        return settings.admin_token is not None
    return built.identity.knows(owner.key)


def _flow(config: Config) -> CodeFlow | None:
    given, around = config.console.oidc, config.identity
    if given is None or around.resource is None:
        return None
    place = urlsplit(around.resource)
    named = next(one for one in around.issuers if one.issuer == given.issuer)
    client = oidc.Client(
        given.issuer,
        given.client_id,
        given.redirect_uri or f"{place.scheme}://{place.netloc}{CALLBACK}",
        given.scopes or [f"{around.scope_prefix}{scope}" for scope in Scope],
        around.resource,
        given.client_secret,
        named.ca_file,
    )
    return oidc.CodeFlow(client)
