"""Questions that come before the task: in rounds on the call itself, with a sealed state."""

from typing import Any

import pytest

from outlast.tests.service.conftest import tasks_stored
from outlast.tests.support.mcp import RawClient
from outlast.tests.support.serving import Serving

pytestmark = pytest.mark.anyio

INVALID_PARAMS = -32602
ANSWER = {"__main__:who": {"action": "accept", "content": {"name": "Ada"}}}


async def first_round(client: RawClient, tool: str = "sign_task_before") -> dict[str, Any]:
    result = (await client.call(tool, {"document": "d"})).result
    assert result["resultType"] == "input_required"
    assert "taskId" not in result
    return result


async def test_questions_that_come_first_are_answered_on_the_call_and_then_it_is_a_task(
    desk: Serving, client: RawClient, other: RawClient
):
    stored = tasks_stored(desk.database_url)
    asked = await first_round(client)
    [request] = asked["inputRequests"].values()
    assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Who signs?")
    assert tasks_stored(desk.database_url) == stored
    state = asked["requestState"]
    reply = await other.call(
        "sign_task_before", {"document": "d"}, inputResponses=ANSWER, requestState=state
    )
    created = reply.result
    assert created["resultType"] == "task"
    assert not {"inputRequests", "requestState", "result"} & set(created)
    ended = await client.until_status(created["taskId"])
    assert ended["result"]["content"][0]["text"] == "d signed by Ada"


@pytest.mark.parametrize("tool", ["sign_task_before", "sign_direct_during"])
async def test_a_state_is_good_for_its_own_call_only(desk: Serving, client: RawClient, tool: str):
    state = (await first_round(client, tool))["requestState"]
    middle = len(state) // 2
    swapped = "A" if state[middle] != "A" else "B"
    stored = tasks_stored(desk.database_url)
    for name, document, token in (
        (tool, "d", state[:middle] + swapped + state[middle + 1 :]),
        (tool, "d", state[:-4]),
        (tool, "d", state + "AAAA"),
        (tool, "another", state),
        ("sign_only_before", "d", state),
    ):
        reply = await client.call(
            name, {"document": document}, inputResponses=ANSWER, requestState=token
        )
        assert reply.refusal == (400, INVALID_PARAMS)
        assert reply.error["message"] == "requestState is not valid for this call"
    assert tasks_stored(desk.database_url) == stored


async def test_a_state_tells_its_holder_nothing(client: RawClient):
    state = (await first_round(client))["requestState"]
    for word in ("owner", "local", "state", "v1.v1"):
        assert word not in state
