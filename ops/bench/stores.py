"""The databases that a benchmark runs on."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outlast.adapters import migrations
from outlast.tests.support.databases import database


@contextmanager
def stores(given: str | None, count: int) -> Iterator[list[str]]:
    """So many migrated databases on the server given, or on an embedded one; dropped afterwards."""
    with ExitStack() as stack:
        if given is None:
            from outlast.adapters.embedded import EmbeddedServer

            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ol-"))
            given = stack.enter_context(EmbeddedServer.start(Path(folder))).url
        urls = [stack.enter_context(database(given, "bench")) for _ in range(count)]
        for url in urls:
            asyncio.run(migrations.upgrade(url))
        yield urls
