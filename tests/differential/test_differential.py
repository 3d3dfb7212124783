"""Generated requests, to a server and to Outlast before it: the answers are equal but for what a
gateway owns (`owned.py`), and with two servers behind it but for the names (`renamed.py`).

    OUTLAST_DIFFERENTIAL_RUNS=5000 OUTLAST_DIFFERENTIAL_SEED=7 .venv/bin/pytest tests/differential
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.to_thread import run_sync
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from outlast.tests.differential import renamed
from outlast.tests.differential.comparing import Answer, Side, differences, rounds
from outlast.tests.differential.generating import GOOD, SPOILS, Asked
from outlast.tests.differential.owned import GATEWAY_OWNS
from outlast.tests.support.mcp import ANSWER_S_MAX
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import serving
from outlast.tests.support.upstreams import http_server, until_it_listens

pytestmark = pytest.mark.anyio

RUNS = int(os.environ.get("OUTLAST_DIFFERENTIAL_RUNS", "150"))
SEED = int(os.environ.get("OUTLAST_DIFFERENTIAL_SEED", "0"))
CONFIG = """
[defaults]
run = "direct"
[quotas]
calls_per_minute = "unlimited"
"""
UPSTREAM = """
[upstreams.{name}]
url = "http://127.0.0.1:{port}/mcp"
"""
ANSWERS = {
    "elicitation/create": {"action": "accept", "content": {"who": "ü\u2028"}},
    "sampling/createMessage": {
        "role": "assistant",
        "content": {"type": "text", "text": "ü"},
        "model": "m",
        "x-ü": [None],
    },
    "roots/list": {"roots": [{"uri": "file:///srv", "name": "srv"}]},
}
generated = settings(
    max_examples=RUNS,
    database=None,
    derandomize=not SEED,
    phases=[Phase.generate],  # what differs is told with its request, which is small enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Pair:
    """The server itself, and Outlast before it."""

    direct: Side
    through: Side

    def both(self, asked: Asked) -> tuple[Answer, Answer]:
        return self.direct.walk(asked), self.through.walk(asked)


@pytest.fixture(scope="module")
async def port() -> AsyncIterator[int]:
    number = free_port()
    with http_server("plentiful", number):
        await until_it_listens(number)
        yield number


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False, verify=False, timeout=ANSWER_S_MAX) as client:
        yield client


async def before(
    folder: Path, database_url: str, port: int, http: httpx2.Client, *names: str
) -> AsyncIterator[Pair]:
    config = CONFIG + "".join(UPSTREAM.format(name=name, port=port) for name in names)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(folder, config, database_url))
        yield Pair(Side(f"http://127.0.0.1:{port}/mcp", http), Side(served.url, http))


@pytest.fixture(scope="module")
async def pair(
    tmp_path_factory: pytest.TempPathFactory,
    module_database_url: str,
    port: int,
    http: httpx2.Client,
) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("alone")
    async for made in before(folder, module_database_url, port, http, "plentiful"):
        yield made


@pytest.fixture(scope="module")
async def among_two(
    tmp_path_factory: pytest.TempPathFactory,
    module_database_url: str,
    port: int,
    http: httpx2.Client,
) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("two")
    names = (renamed.FIRST, renamed.SECOND)
    async for made in before(folder, module_database_url, port, http, *names):
        yield made


async def of_generated(test: Callable[..., None], *strategies: Any) -> None:
    """Run a test over generated values, off the event loop."""
    wrapped = generated(given(*strategies)(test))
    await run_sync(seed(SEED)(wrapped) if SEED else wrapped)


def told(asked: Asked, found: list[str]) -> str:
    lines = (str(asked.spoilt), str(dict(asked.headers)), asked.content.decode(), *found)
    return "\n".join(lines)


def check(asked: Asked, direct: Answer, through: Answer) -> None:
    found = differences(asked, direct, through)
    assert not found, told(asked, found)


@pytest.mark.promise("answers-are-those-of-the-server-alone")
async def test_a_good_request_has_the_same_answer_through_outlast(pair: Pair):
    def same(asked: Asked) -> None:
        direct, through = pair.both(asked)
        check(asked, direct, through)
        for _ in range(2):
            following = rounds(asked, direct, through, ANSWERS)
            if following is None:
                return
            direct, through = pair.direct.ask(following[0]), pair.through.ask(following[1])
            check(asked, direct, through)

    await of_generated(same, GOOD)


@pytest.mark.promise("answers-are-those-of-the-server-alone")
async def test_a_spoilt_request_has_the_same_refusal_through_outlast(pair: Pair):
    def same(asked: Asked, data: st.DataObject) -> None:
        spoilt = data.draw(st.sampled_from(SPOILS))(asked, data)
        check(spoilt, *pair.both(spoilt))

    await of_generated(same, GOOD, st.data())


@pytest.mark.promise("answers-are-those-of-the-server-alone")
async def test_among_two_servers_only_the_names_are_others(among_two: Pair):
    def same(asked: Asked) -> None:
        public = renamed.as_public(asked)
        direct, through = among_two.direct.walk(asked), among_two.through.walk(public)
        check(asked, direct, renamed.as_own(through))

    await of_generated(same, GOOD)


async def test_the_comparison_sees_what_differs(pair: Pair):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
    asked = Asked(body, {})
    result = {"resultType": "complete", "content": [{"type": "text", "text": "a"}]}
    message = {"jsonrpc": "2.0", "id": 1, "result": result}
    answer = Answer(200, "application/json", [message])
    assert not differences(asked, answer, answer)
    others = (
        Answer(202, "application/json", [message]),
        Answer(200, "text/event-stream", [message]),
        Answer(200, "application/json", [message, message]),
        Answer(200, "application/json", [{**message, "id": "1"}]),
        Answer(200, "application/json", [{**message, "result": {**result, "content": []}}]),
        Answer(200, "application/json", [{**message, "result": {**result, "isError": False}}]),
        Answer(200, "application/json", [{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602}}]),
    )
    for other in others:
        assert differences(asked, answer, other), other


async def test_every_row_of_the_table_gives_its_reason():
    assert all(len(row.why.split()) >= 2 for row in GATEWAY_OWNS)
