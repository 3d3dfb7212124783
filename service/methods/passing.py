"""What passes through: resources, prompts, completions. The upstream answers, on this request.

No store is on any of these paths. Between two rounds of a request nothing is kept here either: what
a round needs of those before is in the `requestState`, sealed for its owner and its request. For a
legacy upstream, which asks while it works, that is the answers so far: its request is begun again
and given them as it asks, which what only reads can bear.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from ...domain import errors
from ...domain.passing import Forward, Kind, PassThrough
from ...domain.ports import CallNews, Faulted, HeldAsk, LegEnded, Returned
from ..catalogue import Lists
from ..exchange import Exchange
from ..jsonrpc import Rejection
from ..legs import merged_result
from ..news import NewsReader
from ..sealing import StateSeal, request_digest

READ, GET, COMPLETE = "resources/read", "prompts/get", "completion/complete"
LEGACY_NOT_FOUND = -32002  # of a resource, before this revision; a server of it must not say it

_CAPABILITY = {READ: "resources", GET: "prompts", COMPLETE: "completions"}
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}  # what a legacy upstream says of a resource
STATE, RESPONSES = "requestState", "inputResponses"
_OF_A_ROUND = frozenset({"_meta", STATE, RESPONSES})


@dataclass(frozen=True)
class Round:
    """One request of the client, and what the rounds before it have left.

    `answers` are what the client answered to a legacy upstream, each with its question's digest.
    """

    exchange: Exchange
    digest: str
    upstream_state: str | None = None
    answers: Sequence[tuple[str, Any]] = ()

    @property
    def params(self) -> dict[str, Any]:
        """The parameters as they are passed on."""
        params = {key: value for key, value in self.exchange.params.items() if key != STATE}
        return params if self.upstream_state is None else {**params, STATE: self.upstream_state}


class PassingMethods:
    """See the module."""

    def __init__(self, passing: PassThrough, lists: Lists, seal: StateSeal) -> None:
        self._passing, self._lists, self._seal = passing, lists, seal

    async def resources(self, exchange: Exchange) -> dict[str, Any]:
        """One page of the resources."""
        return await self._listed(exchange, "resources")

    async def templates(self, exchange: Exchange) -> dict[str, Any]:
        """One page of the resource templates."""
        return await self._listed(exchange, "resource_templates")

    async def prompts(self, exchange: Exchange) -> dict[str, Any]:
        """One page of the prompts."""
        return await self._listed(exchange, "prompts")

    async def forward(self, exchange: Exchange) -> dict[str, Any]:
        """The upstream's own answer to this request, its errors included."""
        this = self._round(exchange)
        request = Forward(exchange.method, this.params, exchange.capabilities)
        try:
            reader = NewsReader(await self._passing.forward(request))
        except errors.InvalidCall:
            await self._demand_offered(exchange.method)
            raise
        try:
            return await self._answer(this, reader)
        finally:
            await reader.abandon()

    async def _listed(self, exchange: Exchange, kind: Kind) -> dict[str, Any]:
        page = await self._lists.page(kind, exchange.params.get("cursor"))
        if page is None:
            raise _not_found(exchange.method)
        return page

    async def _demand_offered(self, method: str) -> None:
        """A name that is nobody's is one thing, a method that is nobody's another."""
        offers = await self._passing.offers()
        if _CAPABILITY[method] not in offers.capabilities and not offers.unavailable:
            raise _not_found(method)

    # --- one round

    async def _answer(self, this: Round, reader: NewsReader) -> dict[str, Any]:
        unused = list(this.answers)
        while True:
            item = await reader.next(this.exchange.tell)
            if not isinstance(item, HeldAsk):
                return self._outcome(this, item)
            question = request_digest("", item.ask.request)
            known = next((given for given in unused if given[0] == question), None)
            if known is None:
                state = {"asked": {item.ask.name: question}, "answers": this.answers}
                return self._input_required(this, {item.ask.name: item.ask.request}, state)
            unused.remove(known)
            item.reply(known[1])

    def _outcome(self, this: Round, item: CallNews | None) -> dict[str, Any]:
        method = this.exchange.method
        match item:
            case Returned():
                hints = _UNCACHED if method == READ else {}
                return {**hints, **merged_result(item.result)}
            case Faulted(code=code) if code == LEGACY_NOT_FOUND and method == READ:
                raise errors.UpstreamFault(INVALID_PARAMS, item.message, item.data)
            case Faulted():
                raise errors.UpstreamFault(item.code, item.message, item.data)
            case LegEnded() if method != COMPLETE:
                requests = {wanted.name: wanted.request for wanted in item.asks}
                state = None if item.request_state is None else {"upstream": item.request_state}
                return self._input_required(this, requests, state)
            case _:
                raise errors.UpstreamFault(INTERNAL_ERROR, "The upstream gave no answer")

    def _input_required(
        self, this: Round, requests: Mapping[str, Any], state: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        result: dict[str, Any] = {"resultType": "input_required"}
        if requests:
            result["inputRequests"] = dict(requests)
        if state is not None:
            owner = this.exchange.owner.key
            result[STATE] = self._seal.seal(json.dumps(state), owner, this.digest)
        return result

    def _round(self, exchange: Exchange) -> Round:
        """Raises InvalidCall for a state that was not sealed for this owner and this request."""
        params = exchange.params
        common = {key: value for key, value in params.items() if key not in _OF_A_ROUND}
        digest = request_digest(exchange.method, common)
        if params.get(STATE) is None:
            return Round(exchange, digest)
        state = json.loads(self._seal.open(params[STATE], exchange.owner.key, digest))
        given: Any = params.get(RESPONSES)
        responses = cast(dict[str, Any], given) if isinstance(given, dict) else dict[str, Any]()
        answers = [(question, answer) for question, answer in state.get("answers", ())]
        for name, question in state.get("asked", {}).items():
            if isinstance(responses.get(name), dict):
                answers.append((question, responses[name]))
        return Round(exchange, digest, state.get("upstream"), answers)


def _not_found(method: str) -> Rejection:
    return Rejection(METHOD_NOT_FOUND, f"Method not found: {method}", status=404)
