"""The one rule at every door: the name that was called, who is asking, and what they may do.

What a door says to those it keeps out is here too, as OAuth clients read it: 401 or 403, and a
challenge that names the scopes and where the metadata is. The challenges of the SDK's own
middleware name no scope and call a missing token an invalid one, and its bodies are not JSON-RPC;
its metadata document, the handler of it and the rule for its place are used as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.shared.auth import ProtectedResourceMetadata
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from pydantic import AnyHttpUrl
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Route

from ..domain import draft, errors
from ..domain.owner import Caller, Scope
from ..domain.ports import Identity
from .guard import Guard
from .jsonrpc import Rejection, dumps

JSON = "application/json"
METADATA_PATH = "/.well-known/oauth-protected-resource"
DEFAULT_PREFIX = "outlast:"
UNAUTHORIZED, FORBIDDEN, UNAVAILABLE = 401, 403, 503
RETRY_S = 5  # what Retry-After says while an issuer's keys cannot be had

USUAL = (Scope.CALL, Scope.WATCH)  # what an ordinary client needs

# Methods that are not named here are for every caller.
_SCOPES: Mapping[str, Scope] = {
    "tools/call": Scope.CALL,
    "resources/list": Scope.CALL,
    "resources/templates/list": Scope.CALL,
    "resources/read": Scope.CALL,
    "prompts/list": Scope.CALL,
    "prompts/get": Scope.CALL,
    "completion/complete": Scope.CALL,
    "tasks/update": Scope.CALL,
    "tasks/cancel": Scope.CALL,
    "tasks/get": Scope.WATCH,
    "tasks/result": Scope.WATCH,  # this and the next three: in sessions of older revisions
    "tasks/list": Scope.WATCH,
    "resources/subscribe": Scope.WATCH,
    "resources/unsubscribe": Scope.WATCH,
    "subscriptions/listen": Scope.WATCH,
    draft.LIST: Scope.WATCH,
    draft.POLL: Scope.WATCH,
    draft.STREAM: Scope.WATCH,
    draft.SUBSCRIBE: Scope.WATCH,
    draft.UNSUBSCRIBE: Scope.WATCH,
}


@dataclass(frozen=True)
class Protected:
    """This service as a resource that issuers give tokens for."""

    resource: str
    issuers: Sequence[str]
    prefix: str = DEFAULT_PREFIX

    @property
    def metadata_url(self) -> str:
        """Where a client finds out which issuers there are."""
        return str(build_resource_metadata_url(AnyHttpUrl(self.resource)))

    def routes(self, path: str) -> list[Route]:
        """The metadata: at the root, under our own path, and where the resource's URL puts it."""
        told = {
            "resource": self.resource,
            "authorization_servers": list(self.issuers),
            "scopes_supported": [f"{self.prefix}{scope}" for scope in USUAL],
            "resource_name": "Outlast",
        }
        # From texts: as URLs they would be changed first, and names count to the letter.
        document = ProtectedResourceMetadata.model_validate(told)
        handler = cors_middleware(ProtectedResourceMetadataHandler(document).handle, ["GET"])
        paths = {METADATA_PATH, METADATA_PATH + path, urlsplit(self.metadata_url).path}
        return [Route(one, handler, methods=["GET", "OPTIONS"]) for one in sorted(paths)]


class Access:
    """Lets in, or refuses. `protected` is None where no issuer gives tokens for this service."""

    def __init__(
        self, identity: Identity, guard: Guard, protected: Protected | None = None
    ) -> None:
        self._identity, self._guard, self._protected = identity, guard, protected
        self._prefix = DEFAULT_PREFIX if protected is None else protected.prefix

    async def admit(self, headers: Headers, *scopes: Scope) -> Caller:
        """Whoever sent these headers. Raises Rejection: 401, 403, 421, or 503 for not now."""
        self._guard.check(headers.get("host"), headers.get("origin"))
        given = headers.getlist("authorization")
        try:
            if len(given) > 1:  # no two readers would have to agree on which one counts
                raise errors.Unauthenticated
            caller = await self._identity.authenticate(given[0] if given else None)
        except errors.Unauthenticated as error:
            fault = "invalid_token" if given else None
            raise self._rejected(UNAUTHORIZED, str(error), fault, scopes or USUAL) from None
        except errors.IdentityUnavailable as error:
            again = {"Retry-After": str(RETRY_S)}
            raise Rejection(INTERNAL_ERROR, str(error), status=UNAVAILABLE, headers=again) from None
        self.demand(caller, *scopes)
        return caller

    def demand(self, caller: Caller, *scopes: Scope) -> None:
        """Raises Rejection unless the caller holds all of these."""
        if not caller.scopes.issuperset(scopes):
            error = errors.InsufficientScope(*(f"{self._prefix}{scope}" for scope in scopes))
            raise self._rejected(FORBIDDEN, str(error), "insufficient_scope", scopes)

    def demand_method(self, caller: Caller, method: str, meta: Mapping[str, object]) -> None:
        """Raises Rejection unless the caller may use this method, with a webhook if it has one."""
        scope = _SCOPES.get(method)
        if scope is None:
            return
        if draft.WEBHOOK_META_KEY in meta and scope is not Scope.WATCH:
            self.demand(caller, scope, Scope.WATCH)
        else:
            self.demand(caller, scope)

    async def enter(self, request: HTTPConnection, *scopes: Scope) -> Caller | Response:
        """For a page that is not JSON-RPC: the caller, or the answer for who is none."""
        try:
            return await self.admit(request.headers, *scopes)
        except Rejection as refused:
            headers = {"Cache-Control": "no-store", **refused.headers}
            body = dumps({"error": refused.message})
            return Response(body, refused.status, headers, JSON)

    def _rejected(
        self, status: int, message: str, fault: str | None, scopes: Sequence[Scope]
    ) -> Rejection:
        named = " ".join(f"{self._prefix}{scope}" for scope in scopes)
        parts = [] if fault is None else [f'error="{fault}"']
        # Who brings a token of the file can ask no issuer for more, when there is none.
        if self._protected is not None or status == FORBIDDEN:
            parts.append(f'scope="{named}"')
        if self._protected is not None:
            parts.append(f'resource_metadata="{self._protected.metadata_url}"')
        challenge = " ".join(["Bearer", ", ".join(parts)]).rstrip()
        data = {"reason": fault, "scope": named} if status == FORBIDDEN else None
        headers = {"WWW-Authenticate": challenge}
        return Rejection(INVALID_REQUEST, message, data=data, status=status, headers=headers)
