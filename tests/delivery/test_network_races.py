"""Names that are asked for while their resolver closes: an answer, and nobody is cancelled."""

import asyncio
import threading

import anyio
import pytest

from outlast.delivery.webhook import network
from outlast.delivery.webhook.network import SystemResolver
from outlast.service.waits import turns

pytestmark = pytest.mark.anyio

SOON_S = 20.0


async def test_who_waits_for_a_name_when_the_resolver_closes_is_refused_and_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
):
    """Found: a question that no thread had taken yet ended as if who asked had been cancelled."""
    monkeypatch.setattr(network, "RESOLVER_THREADS_MAX", 1)
    may_answer, loop = threading.Event(), asyncio.get_running_loop()
    is_asked = asyncio.Event()

    def lookup(_host: str) -> list[str]:
        loop.call_soon_threadsafe(is_asked.set)
        may_answer.wait(SOON_S)
        return ["192.0.2.1"]

    resolver = SystemResolver(lookup)
    try:
        with anyio.fail_after(SOON_S):
            asking = [asyncio.create_task(resolver(host)) for host in ("first", "queued", "left")]
            await is_asked.wait()
            asking[2].cancel()
            await turns()
            resolver.close()
            await asyncio.wait(asking[1:])
            with pytest.raises(OSError, match="not looked up"):
                await resolver("late")
            may_answer.set()
            assert await asking[0] == ["192.0.2.1"]
    finally:
        may_answer.set()
    assert not asking[1].cancelled()
    assert isinstance(asking[1].exception(), OSError)
    assert asking[2].cancelled()
