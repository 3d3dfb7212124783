"""What things of an upstream are called for clients, and whose they are by that name."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from outlast.adapters.upstream_names import Names
from outlast.domain import errors

SEVERAL = Names(["ci", "B-2"])
ALONE = Names(["any name at all_"])

LINK: dict[str, Any] = {"type": "resource_link", "name": "a", "uri": "note://a", "x": [1]}
EMBEDDED: dict[str, Any] = {
    "type": "resource",
    "resource": {"uri": "note://b", "text": "note://b", "_meta": {"uri": "note://b"}},
    "annotations": {"priority": 1},
}
TEXT: dict[str, Any] = {"type": "text", "text": "see note://a", "uri": "note://a"}
PUBLIC_LINK = {**LINK, "uri": "ci+note://a"}
PUBLIC_EMBEDDED = {**EMBEDDED, "resource": {**EMBEDDED["resource"], "uri": "ci+note://b"}}


def prompt(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": b, "x": 1} for b in blocks], "x": 2}


RESULTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "tools/call",
        {"content": [LINK, EMBEDDED, TEXT], "structuredContent": {"uri": "note://a"}, "x": None},
        {
            "content": [PUBLIC_LINK, PUBLIC_EMBEDDED, TEXT],
            "structuredContent": {"uri": "note://a"},
            "x": None,
        },
    ),
    (
        "prompts/get",
        prompt(LINK, EMBEDDED, TEXT),
        prompt(PUBLIC_LINK, PUBLIC_EMBEDDED, TEXT),
    ),
    (
        "resources/read",
        {"contents": [{"uri": "note://a", "text": "note://a"}], "_meta": {"uri": "note://a"}},
        {"contents": [{"uri": "ci+note://a", "text": "note://a"}], "_meta": {"uri": "note://a"}},
    ),
    ("completion/complete", {"uri": "note://a"}, {"uri": "note://a"}),
    ("tools/call", {"content": None}, {"content": None}),
    (
        "tools/call",
        {"content": ["?", {"type": "resource"}]},
        {"content": ["?", {"type": "resource"}]},
    ),
    ("prompts/get", {"messages": [{"content": "?"}, 7]}, {"messages": [{"content": "?"}, 7]}),
    ("resources/read", {"contents": [{"uri": None}]}, {"contents": [{"uri": None}]}),
]


@pytest.mark.parametrize(("method", "own", "public"), RESULTS)
def test_a_result_names_its_resources_so_that_they_can_be_read(
    method: str, own: dict[str, Any], public: dict[str, Any]
) -> None:
    before = deepcopy(own)
    assert SEVERAL.result(method, "ci", own) == public
    assert own == before
    assert ALONE.result(method, "any name at all_", own) is own


REQUESTS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("resources/read", {"uri": "ci+file:///x+y", "z": 1}, "ci", {"uri": "file:///x+y", "z": 1}),
    ("resources/read", {"uri": "CI+note://a"}, "ci", {"uri": "note://a"}),
    ("resources/read", {"uri": "b-2+git+ssh://h"}, "B-2", {"uri": "git+ssh://h"}),
    ("prompts/get", {"name": "B-2_two_words"}, "B-2", {"name": "two_words"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "ci_p", "title": "P"}, "argument": {"name": "n"}},
        "ci",
        {"ref": {"type": "ref/prompt", "name": "p", "title": "P"}, "argument": {"name": "n"}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "ci+{scheme}://{x}"}},
        "ci",
        {"ref": {"type": "ref/resource", "uri": "{scheme}://{x}"}},
    ),
]


@pytest.mark.parametrize(("method", "public", "upstream", "own"), REQUESTS)
def test_a_request_is_for_the_upstream_that_its_name_says(
    method: str, public: dict[str, Any], upstream: str, own: dict[str, Any]
) -> None:
    before = deepcopy(public)
    assert SEVERAL.of_params(method, public) == (upstream, own)
    assert public == before
    found, params = ALONE.of_params(method, public)
    assert (found, params is public) == ("any name at all_", True)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "note://a"}),
        ("resources/read", {"uri": "cd+note://a"}),
        ("resources/read", {"uri": ["ci+note://a"]}),
        ("resources/read", {}),
        ("prompts/get", {"name": "ci"}),
        ("prompts/get", {"name": "b-2_p"}),
        ("prompts/get", {"name": None}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "note://a"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt"}}),
        ("completion/complete", {"ref": "ci_p"}),
        ("completion/complete", {}),
    ],
)
def test_what_belongs_to_no_upstream_is_refused(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidCall):
        SEVERAL.of_params(method, params)


@given(st.sampled_from(["ci", "B-2"]), st.text())
def test_every_name_and_uri_comes_back_as_it_went_out(upstream: str, own: str) -> None:
    assert SEVERAL.of_name(SEVERAL.name(upstream, own)) == (upstream, own)
    assert SEVERAL.of_uri(SEVERAL.uri(upstream, own)) == (upstream, own)


def test_entries_are_renamed_and_nothing_else_about_them() -> None:
    entries: list[dict[str, Any]] = [{"uri": "a:b", "_meta": {"uri": "a:b"}}, {"name": "no uri"}]
    assert SEVERAL.entries("resources", "ci", entries) == [
        {"uri": "ci+a:b", "_meta": {"uri": "a:b"}},
        {"name": "no uri"},
    ]
    assert ALONE.entries("resources", "any name at all_", entries) is entries


@pytest.mark.parametrize("names", [["a", "A"], ["a", "a"], ["ci-2", "CI-2", "b"]])
def test_two_names_that_a_scheme_could_not_tell_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(errors.ConfigurationError, match="same name"):
        Names(names)
