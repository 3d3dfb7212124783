"""The ASGI application: endpoint, socket, health and figures, with the worker in its lifespan."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from . import callbacks
from .access import Protected
from .admin import Admin
from .audit_http import AuditPages
from .callbacks import Callbacks
from .endpoint import Endpoint
from .heads import Asked
from .legacy.door import Door
from .metrics import Metrics
from .socket import Socket

MCP_PATH = "/mcp"
WEBSOCKET_PATH = "/ws"
PUBLIC_KEYS_PATH = "/.well-known/mcp-webhook-jwks.json"


class Console(Protocol):
    """Pages for people."""

    def routes(self) -> list[Route]:
        """What to mount."""
        ...


@dataclass(frozen=True)
class Lookout:
    """What tells how a process is, to who looks after it.

    `running` holds all that must be opened and closed; `wind_down` ends open streams and the
    claiming of work, before the server waits for requests in flight.
    """

    metrics: Metrics
    is_ready: Callable[[], Awaitable[bool]]
    running: Callable[[], AbstractAsyncContextManager[None]]
    wind_down: Callable[[], None]

    def routes(self) -> Iterator[Route]:
        """Whether it lives, whether the store answers, and its figures."""
        yield Route("/healthz", self._healthz, methods=["GET"])
        yield Route("/metrics", self.metrics.get, methods=["GET"])
        yield Route("/readyz", self._readyz, methods=["GET"])

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, _request: Request) -> Response:
        ready = await self.is_ready()
        return JSONResponse(
            {"status": "ready" if ready else "store unavailable"}, status_code=200 if ready else 503
        )


@dataclass(frozen=True)
class Parts:
    """What an application is made of.

    `public_keys` is the JWK set of webhook signatures. Without one of the last seven its routes are
    not there.
    """

    endpoint: Endpoint
    socket: Socket
    lookout: Lookout
    public_keys: Mapping[str, Any] | None = None
    callbacks: Callbacks | None = None
    admin: Admin | None = None
    protected: Protected | None = None
    audit: AuditPages | None = None
    sessions: Door | None = None
    console: Console | None = None

    @property
    def entrance(self) -> Callable[[Asked], Awaitable[Response]]:
        """What answers a request to the endpoint's path."""
        post, sessions = self.endpoint.post, self.sessions
        if sessions is None:
            return post
        serve, wants = sessions.serve, sessions.wants
        return lambda request: (serve if wants(request.scope) else post)(request)


class Application(FastAPI):
    """The framework's application, with one route that it need not look for.

    `POST /mcp` is nearly all that comes. The framework would take half of the time of a `tasks/get`
    for what this route has no use of: searching it, forms, dependencies, an exit stack, a last
    resort for exceptions, which the endpoint never raises. A middleware that somebody adds is for
    every route, and then this one is served like the others.
    """

    hot: Callable[[Asked], Awaitable[Response]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        is_hot = scope["type"] == "http" and scope["path"] == MCP_PATH and scope["method"] == "POST"
        if not is_hot or self.hot is None or self.user_middleware:
            if scope.get("path") == MCP_PATH + "/":  # many write it so
                scope = {**scope, "path": MCP_PATH}
            await super().__call__(scope, receive, send)
            return
        response = await self.hot(Asked(scope, receive))
        await response(scope, receive, send)


def assemble(parts: Parts) -> FastAPI:
    """The application. No documentation routes: the protocol is MCP, not OpenAPI."""

    async def public_keys(_request: Request) -> Response:
        return JSONResponse(parts.public_keys, headers={"Cache-Control": "public, max-age=300"})

    # A redirect would lead a token to the scheme and the host that the request tells of us.
    app = Application(
        title="Outlast", openapi_url=None, lifespan=_lifespan(parts.lookout), redirect_slashes=False
    )
    app.hot = enter = parts.entrance

    async def mcp(request: Request) -> Response:
        return await enter(Asked(request.scope, request.receive))

    # Plain routes: the endpoint reads the body itself and needs no parameter machinery.
    app.router.routes.append(Route(MCP_PATH, mcp, methods=["POST"]))
    app.router.routes.append(WebSocketRoute(WEBSOCKET_PATH, parts.socket.serve))
    app.router.routes.extend(parts.lookout.routes())
    if parts.public_keys is not None:
        app.router.routes.append(Route(PUBLIC_KEYS_PATH, public_keys, methods=["GET"]))
    app.router.routes.extend(_further_routes(parts))
    return app


def assemble_worker(lookout: Lookout) -> Starlette:
    """The application of a process that works and serves nobody."""
    app = Starlette(routes=list(lookout.routes()), lifespan=_lifespan(lookout))
    app.router.redirect_slashes = False  # see `assemble`
    return app


def _lifespan(lookout: Lookout) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        async with lookout.running():
            yield

    return lifespan


def _further_routes(parts: Parts) -> Iterator[Route]:
    if parts.callbacks is not None:
        yield Route(callbacks.PATH, parts.callbacks.post, methods=["POST"])
    if parts.admin is not None:
        yield from parts.admin.routes()
    if parts.protected is not None:
        yield from parts.protected.routes(MCP_PATH)
    if parts.audit is not None:
        yield from parts.audit.routes()
    if parts.sessions is not None:
        yield Route(MCP_PATH, parts.sessions.get_or_delete, methods=["GET", "DELETE"])
    if parts.console is not None:
        yield from parts.console.routes()
