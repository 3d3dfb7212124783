"""Request state on its way through a client: sealed to its owner, its call and a time.

Outlast is one caller to the upstream, so an upstream cannot tell our owners apart: without the seal
one owner could present another's state (multi round-trip requests, "Server Requirements").
"""

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import rfc8785
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState

from ..domain import errors

STATE_LIFE_S = 24 * 3600  # how long a question may lie with the user


class StateSeal:
    """Seals an upstream's state for one owner and one call, and opens what comes back."""

    def __init__(self, key: str) -> None:
        self._codec = AESGCMRequestStateCodec([hashlib.sha256(key.encode()).digest()])

    def seal(self, state: str, owner: str, digest: str) -> str:
        """An opaque token around `state`."""
        claims = {
            "state": state,
            "owner": owner,
            "call": digest,
            "until": time.time() + STATE_LIFE_S,
        }
        return self._codec.seal(json.dumps(claims).encode())

    def open(self, token: Any, owner: str, digest: str) -> str:
        """The state in a token. Raises InvalidCall, without saying what was wrong with it."""
        claims = self._claims(token)
        bound = (claims.get("owner"), claims.get("call")) == (owner, digest)
        if not bound or claims["until"] < time.time():
            raise errors.InvalidCall("requestState is not valid for this call")
        return str(claims["state"])

    def _claims(self, token: Any) -> dict[str, Any]:
        if not isinstance(token, str):
            return {}
        try:
            return json.loads(self._codec.unseal(token))
        except InvalidRequestState:
            return {}


def call_digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """One digest for one call, whatever the order of its arguments (RFC 8785)."""
    return _digest({"tool": tool, "arguments": dict(arguments)})


def request_digest(method: str, params: Mapping[str, Any]) -> str:
    """The same for a request of another kind, by what its rounds have in common."""
    return _digest({"method": method, "params": dict(params)})


def _digest(named: dict[str, Any]) -> str:
    try:
        canonical = rfc8785.dumps(named)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        # Integers beyond 53 bits and lone surrogates have no RFC 8785 form.
        canonical = json.dumps(named, sort_keys=True).encode()
    return hashlib.sha256(canonical).hexdigest()
