"""The real `outlast serve`, which sends its spans to a collector of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.tests.support.serving import command_of
from outlast.tests.telemetry.collector import Collector, collecting

UPSTREAM = Path(__file__).with_name("upstream.py")


def config_text(more: str = "") -> str:
    """The telling upstream, all of whose tools become tasks."""
    lines = ["[defaults]", 'run = "task"', 'poll_interval = "50ms"', 'ttl = "10m"']
    lines += ["[tools.where]", 'run = "auto"', 'grace = "60s"']
    lines += ["[upstreams.telling]", f"command = {command_of(UPSTREAM)}", more]
    return "\n".join(lines) + "\n"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that every process knows of that is started from here on."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield found
