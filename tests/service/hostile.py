"""Requests that must be refused, as data: what is sent, and the status and code that answer it.

Each is a call of a tool that would write a line and become a task, damaged in one way.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.tests.support.mcp import IDEMPOTENCY_KEY, PREFIX, envelope, headers_of

PARSE, INVALID, NOT_FOUND, PARAMS = -32700, -32600, -32601, -32602
MISMATCH, VERSION = -32020, -32022
BODY_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 64
DEPTH_OF_ARGUMENTS = 3  # the body, its params, their arguments

Body = dict[str, Any]
Headers = list[tuple[str, str]]
Damage = Callable[[Body], tuple[Any, Headers]]


@dataclass(frozen=True)
class Case:
    """One damaged request. What `damage` returns first is sent as it is if it is bytes."""

    name: str
    damage: Damage
    status: int
    code: int

    def request(self, path: str) -> tuple[bytes, Headers]:
        body = good(path)
        content, headers = self.damage(body)
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return raw, headers


def good(path: str) -> Body:
    """The call before it is damaged; the text is a secret that no log may tell."""
    arguments = {"path": path, "text": "hunter2"}
    return envelope("tools/call", {"name": "note_task", "arguments": arguments})


def nested(levels: int) -> Any:
    """Lists within lists, this many."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _bytes(content: bytes) -> Damage:
    return lambda body: (content, list(headers_of(body).items()))


def _instead(content: Any) -> Damage:
    return lambda body: (content, list(headers_of(body).items()))


def _member(**members: Any) -> Damage:
    return lambda body: ({**body, **members}, list(headers_of(body).items()))


def _without(name: str) -> Damage:
    return lambda body: (
        {k: v for k, v in body.items() if k != name},
        list(headers_of(body).items()),
    )


def _params(**params: Any) -> Damage:
    """Changes the parameters; the headers go with the change."""

    def damage(body: Body) -> tuple[Any, Headers]:
        changed = {**body, "params": {**body["params"], **params}}
        return changed, list(headers_of(changed).items())

    return damage


def _arguments(**arguments: Any) -> Damage:
    return lambda body: _params(arguments={**body["params"]["arguments"], **arguments})(body)


def _meta(drop: str = "", /, **meta: Any) -> Damage:
    def damage(body: Body) -> tuple[Any, Headers]:
        kept = {k: v for k, v in body["params"]["_meta"].items() if k != PREFIX + drop}
        return _params(_meta={**kept, **meta})(body)

    return damage


def _method(method: str, **params: Any) -> Damage:
    def damage(body: Body) -> tuple[Any, Headers]:
        changed = envelope(method, params)
        return changed, list(headers_of(changed).items())

    return damage


def _headers(**headers: str | None) -> Damage:
    """Replaces headers; None leaves one out."""
    changes = {name.replace("_", "-"): value for name, value in headers.items()}

    def damage(body: Body) -> tuple[Any, Headers]:
        all_of_it: Mapping[str, str | None] = {**headers_of(body), **changes}
        return body, [(name, value) for name, value in all_of_it.items() if value is not None]

    return damage


def _twice(name: str) -> Damage:
    def damage(body: Body) -> tuple[Any, Headers]:
        headers = headers_of(body)
        return body, [*headers.items(), (name, headers[name])]

    return damage


def _version(version: str) -> Damage:
    def damage(body: Body) -> tuple[Any, Headers]:
        changed, _ = _meta("", **{f"{PREFIX}protocolVersion": version})(body)
        return changed, list({**headers_of(body), "mcp-protocol-version": version}.items())

    return damage


def _b64(value: bytes) -> str:
    return f"=?base64?{base64.b64encode(value).decode()}?="


def _large(body: Body) -> tuple[Any, Headers]:
    text = json.dumps(body).encode()
    return text + b" " * (BODY_BYTES_MAX + 1 - len(text)), list(headers_of(body).items())


FRAMING = [
    Case("not JSON", _bytes(b"{nope"), 400, PARSE),
    Case("no body", _bytes(b""), 400, PARSE),
    Case("not UTF-8", _bytes(b'{"jsonrpc":"\xff"}'), 400, PARSE),
    Case("NaN", _arguments(seconds=float("nan")), 400, PARSE),
    Case("Infinity", _arguments(seconds=float("inf")), 400, PARSE),
    Case("a number beyond doubles", _bytes(b'{"id":1e999}'), 400, PARSE),
    Case("a lone surrogate", _arguments(text="\ud800"), 400, PARSE),
    Case("a lone surrogate as id", _member(id="\udfff"), 400, PARSE),
    Case("a batch", lambda body: ([body], list(headers_of(body).items())), 400, INVALID),
    Case("an empty batch", _instead([]), 400, INVALID),
    Case("a string", _instead("tools/call"), 400, INVALID),
    Case("a number", _instead(7), 400, INVALID),
    Case("null", _instead(None), 400, INVALID),
    Case("id null", _member(id=None), 400, INVALID),
    Case("id true", _member(id=True), 400, INVALID),
    Case("id 1.5", _member(id=1.5), 400, INVALID),
    Case("id 1.0", _member(id=1.0), 400, INVALID),
    Case("id beyond 64 bits", _member(id=10**30), 400, INVALID),
    Case("id an object", _member(id={}), 400, INVALID),
    Case("id too long", _member(id="i" * 1025), 400, INVALID),
    Case("no jsonrpc", _without("jsonrpc"), 400, INVALID),
    Case("jsonrpc 1.0", _member(jsonrpc="1.0"), 400, INVALID),
    Case("no method", _without("method"), 400, INVALID),
    Case("a method that is no string", _member(method=5), 400, INVALID),
    Case("params a list", _member(params=[1]), 400, INVALID),
    Case("params null", _member(params=None), 400, INVALID),
    Case("a response", _instead({"jsonrpc": "2.0", "id": 1, "result": {}}), 400, INVALID),
    Case(
        "one level too deep",
        _arguments(text=nested(DEPTH_MAX - DEPTH_OF_ARGUMENTS + 1)),
        400,
        INVALID,
    ),
    Case("5000 brackets", _bytes(b"[" * 5000 + b"]" * 5000), 400, PARSE),
    Case("500 objects", _bytes(b'{"a":' * 500 + b"1" + b"}" * 500), 400, INVALID),
    Case("a byte too large", _large, 413, INVALID),
    Case("not called JSON", _headers(content_type="text/plain"), 415, INVALID),
    Case("of no type", _headers(content_type=None), 415, INVALID),
    Case("a foreign host", _headers(host="evil.example"), 421, INVALID),
    Case("a host that is none", _headers(host="[::1"), 421, INVALID),
    Case("a foreign origin", _headers(origin="https://evil.example"), 403, INVALID),
    Case("the origin null", _headers(origin="null"), 403, INVALID),
    Case("an origin that only begins well", _headers(origin="http://localhost.evil"), 403, INVALID),
]

HEADERS = [
    Case("no version header", _headers(mcp_protocol_version=None), 400, MISMATCH),
    Case("another version header", _headers(mcp_protocol_version="2025-11-25"), 400, MISMATCH),
    Case("no Mcp-Method", _headers(mcp_method=None), 400, MISMATCH),
    Case("another Mcp-Method", _headers(mcp_method="tools/list"), 400, MISMATCH),
    Case("Mcp-Method in capitals", _headers(mcp_method="TOOLS/CALL"), 400, MISMATCH),
    Case("no Mcp-Name", _headers(mcp_name=None), 400, MISMATCH),
    Case("another Mcp-Name", _headers(mcp_name="note_direct"), 400, MISMATCH),
    Case("another Mcp-Name in base64", _headers(mcp_name=_b64(b"note_only")), 400, MISMATCH),
    Case("Mcp-Name in bad base64", _headers(mcp_name="=?base64?!?="), 400, MISMATCH),
    Case("Mcp-Name not in UTF-8", _headers(mcp_name=_b64(b"\xff")), 400, MISMATCH),
    Case("Mcp-Name twice", _twice("mcp-name"), 400, MISMATCH),
    Case("Mcp-Method twice", _twice("mcp-method"), 400, MISMATCH),
    Case("the version twice", _twice("mcp-protocol-version"), 400, MISMATCH),
]

ENVELOPE = [
    Case("no _meta", _params(_meta=None), 400, PARAMS),
    Case("_meta a list", _params(_meta=[]), 400, PARAMS),
    Case("no version in _meta", _meta("protocolVersion"), 400, PARAMS),
    Case("no capabilities in _meta", _meta("clientCapabilities"), 400, PARAMS),
    Case("capabilities a list", _meta("", **{f"{PREFIX}clientCapabilities": []}), 400, PARAMS),
    Case("capabilities null", _meta("", **{f"{PREFIX}clientCapabilities": None}), 400, PARAMS),
    Case("an older version", _version("2025-11-25"), 400, VERSION),
    Case("a version to come", _version("2999-01-01"), 400, VERSION),
]

METHODS = [
    Case("tasks/list", _method("tasks/list"), 404, NOT_FOUND),
    Case("tasks/result", _method("tasks/result", taskId="t"), 404, NOT_FOUND),
    Case("ping", _method("ping"), 404, NOT_FOUND),
    Case("initialize", _method("initialize", protocolVersion="2025-11-25"), 404, NOT_FOUND),
    Case("no such method", _method("tools/run"), 404, NOT_FOUND),
]

PARAMETERS = [
    Case("an unknown tool", _params(name="nope"), 400, PARAMS),
    Case("NUL in the tool's name", _params(name="note\0task"), 400, PARAMS),
    Case("a tool that is no string", _params(name=5), 400, MISMATCH),
    Case("no tool", _params(name=None), 400, PARAMS),
    Case("arguments a list", _params(arguments=[]), 400, PARAMS),
    Case("arguments a string", _params(arguments="path"), 400, PARAMS),
    Case("answers a list", _params(inputResponses=[]), 400, PARAMS),
    Case("a state that is no string", _params(requestState=5), 400, PARAMS),
    Case("a state that nobody sealed", _params(requestState="v1.forged"), 400, PARAMS),
    Case("a state that is not ASCII", _params(requestState="v1.é\0"), 400, PARAMS),
    Case("an empty state", _params(requestState=""), 400, PARAMS),
    Case("NUL in the key", _meta("", **{IDEMPOTENCY_KEY: "a\0b"}), 400, PARAMS),
    Case("an empty key", _meta("", **{IDEMPOTENCY_KEY: ""}), 400, PARAMS),
    Case("a key too long", _meta("", **{IDEMPOTENCY_KEY: "k" * 257}), 400, PARAMS),
    Case("a key that is no string", _meta("", **{IDEMPOTENCY_KEY: 5}), 400, PARAMS),
    Case("NUL in a task's id", _method("tasks/get", taskId="a\0b"), 400, PARAMS),
    Case("a task id that is no string", _method("tasks/cancel", taskId=5), 400, PARAMS),
    Case("an update without answers", _method("tasks/update", taskId="t"), 400, PARAMS),
    Case("a cursor of somebody else's", _method("tools/list", cursor="AAAA"), 400, PARAMS),
    Case("a cursor that is no string", _method("tools/list", cursor=[1]), 400, PARAMS),
]

ALL = [*FRAMING, *HEADERS, *ENVELOPE, *METHODS, *PARAMETERS]
