"""The event types: what may be asked of them, and what is refused with which words."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from outlast.delivery.events import types
from outlast.domain import errors
from outlast.domain.push import Filter

NAMES = ("task.updated", "task.finished", "task.progress")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_type_has_two_valid_schemas_and_words_for_people(name: str):
    listed = types.TYPES[name].listed(["poll"])
    assert sorted(listed) == ["delivery", "description", "inputSchema", "name", "payloadSchema"]
    assert (listed["name"], listed["delivery"]) == (name, ["poll"])
    assert listed["description"]
    for schema in (listed["inputSchema"], listed["payloadSchema"]):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"


def test_the_types_are_these_three():
    assert tuple(types.TYPES) == NAMES


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (None, Filter("task.finished")),
        ({}, Filter("task.finished")),
        ({"taskId": "t"}, Filter("task.finished", task_ids=("t",))),
        ({"taskIds": ["b", "a", "b"]}, Filter("task.finished", task_ids=("b", "a"))),
        (
            {"tools": ["x"], "statuses": ["failed", "failed", "cancelled"][1:]},
            Filter("task.finished", tools=("x",), statuses=("failed", "cancelled")),
        ),
    ],
)
def test_good_arguments_make_a_filter(arguments: Any, wanted: Filter):
    assert types.wanted("task.finished", arguments) == wanted


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"taskId": "a", "taskIds": ["b"]}, "exclude each other"),
        ({"task": "a"}, "'task' was unexpected"),
        ({"taskId": 1}, "arguments.taskId"),
        ({"taskIds": []}, "arguments.taskIds"),
        ({"taskIds": ["t"] * 1001}, "at most 1000 items"),
        ({"taskIds": ["t", 1]}, "arguments.taskIds[1]"),
        ({"tools": "x"}, "arguments.tools"),
        ({"statuses": ["working"]}, "arguments.statuses[0]"),
        ({"taskId": "a\0"}, "arguments.taskId"),
        ({"tools": ["a\0"]}, "arguments.tools[0]"),
        ({"taskId": "\ud800"}, "canonical form"),
        ({"taskId": 2**53}, "canonical form"),
        ([], "arguments"),
        ("taskId", "arguments"),
        (False, "arguments"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(arguments: Any, says: str):
    with pytest.raises(errors.InvalidCall) as refused:
        types.wanted("task.finished", arguments)
    assert says in str(refused.value)
    assert len(str(refused.value)) <= types.FAULT_LENGTH_MAX


def test_all_five_statuses_may_be_asked_of_changes():
    statuses = ["working", "input_required", "completed", "failed", "cancelled"]
    assert types.wanted("task.updated", {"statuses": statuses}).statuses == tuple(statuses)


@pytest.mark.parametrize("name", [None, 1, ["task.updated"], {}])
def test_a_name_that_is_no_string_is_not_valid(name: Any):
    with pytest.raises(errors.InvalidCall):
        types.wanted(name, {})


def test_an_unknown_event_type_is_not_found_whatever_its_arguments():
    with pytest.raises(errors.EventNotFound) as refused:
        types.wanted("task.vanished", {"x": 2**60})
    assert refused.value.data == {"kind": "event"}


@given(name=st.sampled_from(NAMES), arguments=JSON)
def test_any_arguments_make_a_filter_or_are_refused(name: str, arguments: Any):
    try:
        wanted = types.wanted(name, arguments)
    except errors.InvalidCall:
        return
    for texts in (wanted.task_ids, wanted.tools):
        assert texts is None or not any("\0" in text for text in texts)


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_arguments_have_one_canonical_form(nothing: Any):
    assert types.canonical(nothing) == "{}"


def test_the_order_and_the_spelling_of_arguments_do_not_matter():
    assert types.canonical({"b": 1, "a": "é"}) == types.canonical({"a": "\u00e9", "b": 1.0})


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), float("nan"), float("inf"), "\ud800", {"\udfff": 1}]
)
def test_what_has_no_canonical_form_is_refused(value: Any):
    with pytest.raises(errors.InvalidCall):
        types.canonical({"x": value})


def test_arguments_without_end_are_refused():
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(100_000):
        inner["a"] = inner = {}
    with pytest.raises(errors.InvalidCall):
        types.canonical(deep)
