"""The policy of a bridge: mistakes are named at the start, and places find what servers answer."""

from typing import Any

import pytest

from outlast.domain import errors
from outlast.service import config
from outlast.service.bridging.places import Place
from outlast.service.policy import Run
from outlast.tests.service.bridge_world import bridge

HEAD = "[tools.x.bridge]\n"
LEAST = {
    "job_id": '"structuredContent.id"',
    "status_tool": '"status"',
    "status": '"structuredContent.state"',
    "completed": '["done"]',
}


def file(**changes: str) -> str:
    """The least that a bridge needs, and these lines."""
    return HEAD + "\n".join(f"{key} = {value}" for key, value in (LEAST | changes).items())


@pytest.mark.promise("policy-mistakes-are-named")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "1: tools.x.bridge.job_id: Field required"),
        (file(job_id='"id"'), "2: tools.x.bridge.job_id: a place is written like"),
        (file(job_id='"a..b"'), "2: tools.x.bridge.job_id: a place is written like"),
        (file(job_id='"/job/"'), "2: tools.x.bridge.job_id: the regular expression needs one"),
        (file(job_id='"/(/"'), "2: tools.x.bridge.job_id: not a regular expression"),
        (file(completed="[]"), "5: tools.x.bridge.completed: Tuple should have at least 1"),
        (file(failed='["done"]'), "1: tools.x.bridge: a state stands in two lists"),
        (file(poll_min='"2m"'), "1: tools.x.bridge: poll_min is longer than poll_max"),
        (file(poll_min='"99ms"'), "6: tools.x.bridge.poll_min: Input should be greater"),
        (file(poll_max="60"), "6: tools.x.bridge.poll_max: a duration is written like"),
        (file(total="0"), "6: tools.x.bridge.total: must be a number above 0, or a place"),
        (file(total="true"), "6: tools.x.bridge.total: must be a number above 0, or a place"),
        (file(total='"many"'), "6: tools.x.bridge.total: a place is written like"),
        (file(repeat='["job_id"]'), "1: tools.x.bridge: job_argument stands in repeat"),
        (file(status_tol='"x"'), "6: tools.x.bridge.status_tol: unknown setting; there are job_id"),
        (file().replace("tools.x", "defaults"), "1: defaults.bridge: a bridge belongs to one"),
        ('[tools.x]\nrun = "auto"\n' + file(), "2: tools.x.run: a tool with a bridge has"),
    ],
)
def test_a_mistake_in_a_bridge_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        config.parse(text, "outlast.toml")
    assert str(caught.value).startswith(f"outlast.toml:{said}")


@pytest.mark.parametrize(
    ("before", "run"),
    [("", Run.TASK), ('[tools.x]\nrun = "task-only"\n', Run.TASK_ONLY)],
    ids=["nothing said", "task-only"],
)
def test_a_bridged_tool_always_makes_tasks(before: str, run: Run) -> None:
    parsed = config.parse('[defaults]\nrun = "direct"\n' + before + file(), "outlast.toml")
    policy = parsed.policies.of("x")
    assert policy.run is run
    assert policy.bridge is not None
    assert (policy.bridge.poll_min, policy.bridge.poll_max) == (1_000, 60_000)
    assert parsed.policies.of("y").bridge is None


def test_everything_that_a_bridge_may_say_is_taken() -> None:
    parsed = config.parse(HEAD + bridge(job_argument='"id"'), "outlast.toml")
    found = parsed.policies.of("x").bridge
    assert found is not None
    assert (found.repeat, found.total, found.lost_after) == (("folder",), 100.0, 500)


TEXT = {"content": [{"type": "image"}, {"type": "text", "text": '{"job": {"id": 7, "ok": true}}'}]}
SENTENCES = {"content": [{"type": "text", "text": "Thanks."}, {"type": "text", "text": "Job a-1!"}]}


@pytest.mark.parametrize(
    ("place", "result", "found"),
    [
        ("structuredContent.id", {"structuredContent": {"id": "a"}}, "a"),
        ("structuredContent.jobs.1.id", {"structuredContent": {"jobs": [{}, {"id": 2}]}}, 2),
        ("structuredContent.jobs.2.id", {"structuredContent": {"jobs": [{}, {"id": 2}]}}, None),
        ("structuredContent.jobs.x", {"structuredContent": {"jobs": []}}, None),
        ("structuredContent.a", {"structuredContent": {"a": {"b": 1}}}, None),
        ("structuredContent.a.b", {"structuredContent": {"a": "b"}}, None),
        ("_meta.id", {"_meta": {"id": 1.5}}, 1.5),
        ("_meta.id", {"_meta": None}, None),
        ("content.1.text", SENTENCES, "Job a-1!"),
        ("json.job.id", TEXT, 7),
        ("json.job.ok", TEXT, True),
        ("json.job.id", SENTENCES, None),
        ("json.job.id", {"content": [{"type": "text", "text": "[" * 100_000}]}, None),
        ("json.job.id", {}, None),
        ("/Job (\\S+)!/", SENTENCES, "a-1"),
        ("/Job (\\d+)!/", SENTENCES, None),
        ("/Job (x)?/", SENTENCES, None),
        ("/Job (\\S+)/", {"content": "none"}, None),
    ],
)
def test_a_place_finds_one_value_or_nothing(place: str, result: Any, found: Any) -> None:
    assert Place(place).find(result) == found
