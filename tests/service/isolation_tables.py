"""Every way in: what it needs, and what it can be asked about a task. A way without a row fails.

The tables are compared with the application as it is built, in both directions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.tests.delivery.webhook_world import SECRET

CALL, WATCH, OPERATE, AUDIT = "call", "watch", "operate", "audit"
SCOPES = (CALL, WATCH, OPERATE, AUDIT)
ANSWER = {"action": "accept", "content": {"name": "Mallory"}}
AFTER = "dev.outlast/after"
# A port of loopback on which nobody listens: who is not let in never gets so far.
HOOK = {"mode": "webhook", "url": "http://127.0.0.1:9/hook", "secret": SECRET}

Params = dict[str, Any]
Probe = Callable[[str], Params]


@dataclass(frozen=True)
class Row:
    """The scope that a way in needs, None for none; what it can be asked about a task, by name.

    `good` are parameters that its scope alone is enough for.
    """

    scope: str | None
    probes: Mapping[str, Probe]
    good: Params


def _row(scope: str | None, good: Params | None = None, **probes: Probe) -> Row:
    return Row(scope, {name.replace("_", " "): probe for name, probe in probes.items()}, good or {})


def _about(**params: Any) -> Probe:
    return lambda task_id: {"taskId": task_id, **params}


def _events(**params: Any) -> Probe:
    def about(task_id: str) -> Params:
        arguments = {"taskIds": [task_id]}
        return {"name": "task.updated", "arguments": arguments, "cursor": None, **params}

    return about


ALL_EVENTS: Params = {"name": "task.updated", "cursor": None}

METHODS: Mapping[str, Row] = {
    "server/discover": _row(None),
    "tools/list": _row(None),
    "resources/list": _row(CALL),
    "resources/templates/list": _row(CALL),
    "resources/read": _row(CALL, {"uri": "note://none"}),
    "prompts/list": _row(CALL),
    "prompts/get": _row(CALL, {"name": "none"}),
    "completion/complete": _row(CALL, {"ref": {}}),
    "tools/call": _row(CALL, {"name": "note_task", "arguments": {"path": "/dev/null"}}),
    "tasks/get": _row(
        WATCH,
        {"taskId": "x" * 43},
        as_it_is=_about(),
        from_its_beginning=lambda task_id: {"taskId": task_id, "_meta": {AFTER: {task_id: 1}}},
    ),
    "tasks/update": _row(
        CALL,
        {"taskId": "x" * 43, "inputResponses": {}},
        answers=_about(inputResponses={"in-1": ANSWER}),
        malformed_answers=_about(inputResponses={"in-1": 5}),
        answers_to_nothing=_about(inputResponses={"in-9": ANSWER}),
        no_answers=_about(inputResponses={}),
    ),
    "tasks/cancel": _row(CALL, {"taskId": "x" * 43}, cancels=_about()),
    "subscriptions/listen": _row(
        WATCH,
        {"notifications": {"taskIds": []}},
        listens=lambda task_id: {"notifications": {"taskIds": [task_id]}},
        listens_from_a_version=lambda task_id: {
            "notifications": {"taskIds": [task_id]},
            "_meta": {AFTER: {task_id: 1}},
        },
    ),
    "events/list": _row(WATCH),
    "events/poll": _row(
        WATCH,
        ALL_EVENTS,
        polls=_events(),
        polls_from_elsewhere=_events(cursor="v1.AAAA"),
        polls_by_the_other_name=lambda task_id: {
            **ALL_EVENTS,
            "arguments": {"taskId": task_id},
        },
    ),
    "events/stream": _row(WATCH, ALL_EVENTS, streams=_events()),
    "events/subscribe": _row(
        WATCH,
        {**ALL_EVENTS, "delivery": HOOK | {"url": 5}},
        subscribes=_events(delivery=HOOK),
    ),
    "events/unsubscribe": _row(
        WATCH,
        {**ALL_EVENTS, "delivery": HOOK},
        unsubscribes=_events(delivery=HOOK),
    ),
}

# What a message on /ws can be. All else is answered with -32601, whoever sends it.
FRAMES = ("subscriptions/listen", "events/stream", "notifications/cancelled")


@dataclass(frozen=True)
class Page:
    """One route. `scope` is what it needs: None for nothing, "method" for what is said there.

    `path` is one that the route takes.
    """

    scope: str | None
    path: str
    body: Any = None


BY_METHOD = "method"

PAGES: Mapping[tuple[str, str], Page] = {
    ("POST", "/mcp"): Page(BY_METHOD, "/mcp"),
    # Of a session, which only its owner has; without one there is nothing.
    ("GET", "/mcp"): Page(None, "/mcp"),
    ("DELETE", "/mcp"): Page(None, "/mcp"),
    ("WEBSOCKET", "/ws"): Page(BY_METHOD, "/ws"),
    ("GET", "/healthz"): Page(None, "/healthz"),
    ("GET", "/readyz"): Page(None, "/readyz"),
    ("GET", "/metrics"): Page(OPERATE, "/metrics"),
    ("GET", "/admin/webhooks"): Page(OPERATE, "/admin/webhooks"),
    ("GET", "/admin/webhooks/{id}"): Page(OPERATE, "/admin/webhooks/sub_1"),
    ("GET", "/admin/webhooks/{id}/attempts"): Page(OPERATE, "/admin/webhooks/sub_1/attempts"),
    ("POST", "/admin/webhooks/{id}/resend"): Page(OPERATE, "/admin/webhooks/sub_1/resend"),
    ("POST", "/admin/webhooks/{id}/resume"): Page(OPERATE, "/admin/webhooks/sub_1/resume"),
    ("POST", "/admin/webhooks/{id}/test"): Page(OPERATE, "/admin/webhooks/sub_1/test"),
    ("GET", "/audit/tasks/{id}"): Page(AUDIT, "/audit/tasks/" + "x" * 43),
    ("GET", "/audit/checkpoint"): Page(AUDIT, "/audit/checkpoint"),
    # A callback's own ticket and signature open it, and no token does.
    ("POST", "/callbacks/{token}"): Page(None, "/callbacks/v1.AAAA", {}),
    ("GET", "/.well-known/mcp-webhook-jwks.json"): Page(None, "/.well-known/mcp-webhook-jwks.json"),
    **{
        (verb, path): Page(None, path)
        for verb in ("GET", "OPTIONS")
        for path in (
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-protected-resource/mcp",
        )
    },
}


CONSOLE = "/console"
# Pages of the console that are for everybody; every other one needs a session that began here.
SIGN_IN = {
    ("GET", "/console/sign-in"),
    ("POST", "/console/sign-in"),
    ("GET", "/console/static/{name}"),
}


def routes_of(app: Any) -> set[tuple[str, str]]:
    """Every way in that an application has: the method of HTTP, and the path."""
    found: set[tuple[str, str]] = set()
    for route in app.routes:
        methods: Sequence[str] = sorted(getattr(route, "methods", None) or ())
        if "Mount" in type(route).__name__:
            methods = ["MOUNT"]
        elif "WebSocket" in type(route).__name__:
            methods = ["WEBSOCKET"]
        found |= {(method, route.path) for method in methods or ["GET"] if method != "HEAD"}
    return found
