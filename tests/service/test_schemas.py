"""What is found out of a tool once and kept: it must be what looking each time would say."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mcp.shared.inbound import validate_mcp_param_headers

from outlast.domain import errors
from outlast.domain.ports import RunningCall, Tool, ToolCall
from outlast.service.catalogue import Catalogue

pytestmark = pytest.mark.anyio

KEY = "x-mcp-header"
NAMES = st.sampled_from(["region", "zone"])
HEADERS = st.sampled_from(["mcp-param-region", "Mcp-Param-Zone", "mcp-name"])
VALUES = st.one_of(st.sampled_from(["eu", "us", ""]), st.integers(), st.none(), st.booleans())
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object", ["string"]]),
        KEY: st.sampled_from(["Region", "Zone", "not a token", "", 5, None]),
        "default": st.just({KEY: "Region"}),
    },
)
SCHEMAS = st.one_of(
    st.recursive(
        LEAVES,
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(NAMES, inner, max_size=2),
                "items": inner,
                "anyOf": st.lists(inner, max_size=2),
                "$defs": st.dictionaries(NAMES, inner, max_size=1),
                KEY: st.just("Region"),
            },
        ),
        max_leaves=6,
    ),
    st.sampled_from([None, True, [], "no schema"]),
)


class Listed:
    """Upstreams whose tools are set by hand."""

    def __init__(self, *tools: Tool) -> None:
        self.listed: Sequence[Tool] = tools

    async def tools(self) -> Sequence[Tool]:
        return self.listed

    async def ready(self, upstream: str, capabilities: Any = None) -> None:
        raise NotImplementedError

    async def call(self, call: ToolCall) -> RunningCall:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def tool(name: str, schema: Any = None) -> Tool:
    return Tool(name, "up", name, {"name": name, "inputSchema": schema})


def taking(kind: str) -> Tool:
    return tool("run", {"type": "object", "properties": {"it": {"type": kind}}})


@given(SCHEMAS, st.dictionaries(NAMES, VALUES), st.dictionaries(HEADERS, VALUES.map(str)))
def test_headers_go_unread_only_where_no_header_could_be_wrong(
    schema: Any, arguments: Mapping[str, Any], headers: Mapping[str, str]
):
    if not Catalogue(Listed()).is_mirrored(tool("run", schema)):
        assert validate_mcp_param_headers(schema, arguments, headers) is None


@pytest.mark.parametrize(
    ("schema", "is_mirrored"),
    [
        ({"properties": {"region": {"type": "string", KEY: "Region"}}}, True),
        ({"properties": {"a": {"properties": {"b": {"type": "integer", KEY: "B"}}}}}, True),
        ({"properties": {"region": {"type": "string", "default": {KEY: "Region"}}}}, False),
        ({"type": "object"}, False),
        (None, False),
    ],
    ids=["at the top", "deeper", "in data", "nowhere", "no schema"],
)
def test_only_a_tool_that_mirrors_an_argument_has_its_headers_read(schema: Any, is_mirrored: bool):
    assert Catalogue(Listed()).is_mirrored(tool("run", schema)) == is_mirrored


async def test_a_tool_is_found_in_the_list_of_now():
    upstreams = Listed(tool("a"), tool("b"))
    catalogue = Catalogue(upstreams)
    assert [(await catalogue.find(name)).name for name in "ab"] == ["a", "b"]
    upstreams.listed = (tool("b"), tool("c"))
    assert [(await catalogue.find(name)).name for name in "bc"] == ["b", "c"]
    with pytest.raises(errors.InvalidCall):
        await catalogue.find("a")


async def test_arguments_are_held_against_the_schema_of_now():
    upstreams = Listed(taking("string"))
    catalogue = Catalogue(upstreams)
    for kind, fits in (("string", [True, False]), ("integer", [False, True])):
        upstreams.listed = (taking(kind),)
        found = await catalogue.find("run")
        assert [catalogue.accepts(found, {"it": value}) for value in ("x", 1)] == fits
    mirrored = {"properties": {"it": {"type": "string", KEY: "It"}}}
    assert [catalogue.is_mirrored(one) for one in (taking("string"), tool("run", mirrored))] == [
        False,
        True,
    ]
