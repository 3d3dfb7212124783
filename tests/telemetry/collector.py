"""A collector in the test's own process: OTLP over HTTP, read with the protocol's own messages."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    """A span as it arrived."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: list[tuple[str, str]]
    attributes: Mapping[str, Any]
    is_error: bool
    told: bytes = field(repr=False)


class Collector:
    """What has arrived so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.services: set[str] = set()

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services.add(_attributes(of_resource.resource.attributes)["service.name"])
            for scope in of_resource.scope_spans:
                self.spans += [_span(each) for each in scope.spans]

    def named(self, name: str, kind: int | None = None) -> list[Span]:
        """Those of this name."""
        return [s for s in self.spans if s.name == name and kind in (None, s.kind)]


def _attributes(given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        which = each.value.WhichOneof("value")
        value = getattr(each.value, which)
        is_list = which == "array_value"
        found[each.key] = [one.string_value for one in value.values] if is_list else value
    return found


def _span(given: Any) -> Span:
    return Span(
        given.name,
        given.kind,
        given.trace_id.hex(),
        given.span_id.hex(),
        given.parent_span_id.hex(),
        [(link.trace_id.hex(), link.span_id.hex()) for link in given.links],
        _attributes(given.attributes),
        given.status.code == 2,
        given.SerializeToString(),
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name for it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
