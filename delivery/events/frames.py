"""The JSON-RPC messages of an event stream, whatever carries them."""

from collections.abc import Mapping
from typing import Any

from ...domain import draft
from ..frames import SUBSCRIPTION_META_KEY, RequestId, dumps
from .occurrences import Occurrence


class EventFrames:
    """The messages of one stream. Its id keeps the JSON type that the client gave it."""

    def __init__(self, subscription: RequestId) -> None:
        self._id = subscription

    def active(self, cursor: str, *, truncated: bool) -> bytes:
        """Always the first, and again wherever something may have been missed."""
        return self._notification(draft.ACTIVE, {"cursor": cursor, "truncated": truncated})

    def event(self, occurrence: Occurrence, cursor: str) -> bytes:
        """One event, and the place after it."""
        return self._notification(draft.EVENT, {**occurrence, "cursor": cursor})

    def heartbeat(self, cursor: str) -> bytes:
        """All is quiet up to this place."""
        return self._notification(draft.HEARTBEAT, {"cursor": cursor})

    def error(self, error: Mapping[str, Any]) -> bytes:
        """Something failed that will be tried again; the stream goes on."""
        return self._notification(draft.ERROR, {"error": error})

    def terminated(self, error: Mapping[str, Any]) -> bytes:
        """The subscription has ended, and is not to be made again."""
        return self._notification(draft.TERMINATED, {"error": error})

    def ended(self) -> bytes:
        """The answer to the request itself: the server closes the stream."""
        result: dict[str, Any] = {"resultType": "complete", "_meta": {}}
        return dumps({"jsonrpc": "2.0", "id": self._id, "result": result})

    def _notification(self, method: str, params: Mapping[str, Any]) -> bytes:
        meta = {SUBSCRIPTION_META_KEY: self._id}
        return dumps({"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}})
