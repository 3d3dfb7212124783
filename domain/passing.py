"""The seam of what passes through: all that an upstream speaks beside tools, under public names.

Only the adapter knows how a public name is made of an upstream's own, and what in a result names a
resource: `adapters/upstream_names.py`. Everywhere else a name or URI is what the client was given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .events import Json
from .ports import RunningCall

Kind = Literal["tools", "resources", "resource_templates", "prompts"]


@dataclass(frozen=True)
class Forward:
    """One request to be passed on: `prompts/get`, `resources/read` or `completion/complete`.

    Or `tasks/get`, `tasks/update` or `tasks/cancel`, for which `upstream` says whose task it is:
    no id of a task tells that. A task that asks is a `LegEnded` of `tasks/get`.

    `params` are the client's own, under public names, `_meta` with its trace context and log level
    included, and with `requestState` as the upstream gave it. What of `_meta` belongs to the
    transport or to Outlast is taken out and put in by the adapter. Progress is asked for when
    `_meta` has a `progressToken`, `Logged` when it has `io.modelcontextprotocol/logLevel`.
    """

    method: str
    params: Mapping[str, Json]
    client_capabilities: Mapping[str, Json]
    upstream: str | None = None


@dataclass(frozen=True)
class Listing:
    """One list of all upstreams, every page of it, in their order.

    `entries` are as they came but for the public names; the same object until something has
    changed, and never changed itself. `is_offered` is False when no upstream that answered has the
    kind. `unavailable` names the upstreams whose entries are missing. `ttl_ms` and `scope` are what
    holds of all parts: the least time, 0 while one is missing, and `private` unless each part says
    `public`.
    """

    entries: Sequence[Mapping[str, Json]]
    is_offered: bool
    unavailable: Sequence[str]
    ttl_ms: int
    scope: Literal["public", "private"]


@dataclass(frozen=True)
class Offers:
    """What the upstreams say of themselves, as `server/discover` has it.

    `capabilities` are merged: what one of them has is there. Extensions and capabilities that end
    at Outlast (tasks, events) are left out. `instructions` is None when none gives any; of several
    upstreams each has a section under its name. `servers` has the `serverInfo` of each that is
    known. `unavailable` are those that cannot be reached now: what was known of them is in.
    """

    capabilities: Mapping[str, Json]
    instructions: str | None
    servers: Mapping[str, Mapping[str, Json]]
    unavailable: Sequence[str]


class PassThrough(Protocol):
    """The upstreams, for what is passed on as it is. No store is on any path of these."""

    async def forward(self, request: Forward) -> RunningCall:
        """Begin the request at the upstream that its name or URI belongs to.

        The news are those of a tool's call, results under public names. Raises InvalidCall for a
        name or URI that no upstream can have, UpstreamUnavailable when it was certainly not sent.
        Errors of the upstream itself are `Faulted`, as they came.
        """
        ...

    async def listed(self, kind: Kind) -> Listing:
        """The merged list. An upstream that does not offer the kind has no entries and is not
        missing; raises UpstreamUnavailable when all are down."""
        ...

    async def offers(self) -> Offers:
        """What is known of all upstreams. Never raises, and waits for none longer than some
        seconds after the attempt to reach it began."""
        ...

    def upstream_of(self, name: str) -> str | None:
        """The upstream that a tool or prompt of this public name would belong to, known or not.

        None when there is none. So a name that is missing from a list can be told from one whose
        upstream is down: ask `Upstreams.ready`.
        """
        ...
