"""Where spans go: to a collector, by OTLP over HTTP, as the standard OTEL_ variables say.

The SDK is an extra, and is not even imported without it. Nothing of the process is made global:
what others trace in it is theirs.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Literal

from ...domain import errors
from .tracing import Tracing

CLOSE_S_MAX = 5.0  # what has not left by then is lost

Choice = Literal["auto", "on", "off"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MISSING = "traces need the extra `telemetry`: pip install 'outlast[telemetry]'"

_log = logging.getLogger("outlast.tracing")


def is_wanted(choice: Choice, environment: Mapping[str, str]) -> bool:
    """`auto` is on where the environment names a collector."""
    if choice == "off" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return False
    return choice == "on" or any(environment.get(name) for name in _ENDPOINTS)


def tracing(
    choice: Choice, environment: Mapping[str, str], version: str, instance: str
) -> Tracing | None:
    """What traces this process, or None. Raises ConfigurationError for one that cannot be had."""
    if not is_wanted(choice, environment):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        if choice == "on":
            raise errors.ConfigurationError(_MISSING) from None
        _log.warning("a collector is named, and nothing is traced: %s", _MISSING)
        return None
    own = {"service.version": version, "service.instance.id": instance}
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create(own if named else {**own, "service.name": "outlast"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    async def close() -> None:
        # On a thread that nobody has to wait for: the collector may be away.
        leaving = threading.Thread(target=provider.shutdown, daemon=True)
        leaving.start()
        await asyncio.to_thread(leaving.join, CLOSE_S_MAX)

    return Tracing(provider.get_tracer("outlast", version), close)
