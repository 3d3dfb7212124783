"""The second table: what is called otherwise when there are several upstreams.

Only names and URIs in the places that the specification has for them are renamed; the same word in
a text, in structured content or in `_meta` stays as it is.
"""

import copy
from dataclasses import replace
from typing import Any

from outlast.tests.differential.comparing import Answer
from outlast.tests.differential.generating import Asked, sent_with

FIRST, SECOND = "one", "two"
# What is renamed in a result: the member that is a list, what of its entries, and in which way.
RENAMED = (
    ("tools", ("name",), "name"),
    ("prompts", ("name",), "name"),
    ("resources", ("uri",), "uri"),
    ("resourceTemplates", ("uriTemplate",), "uri"),
    ("contents", ("uri",), "uri"),
    ("content", ("uri",), "link"),
    ("content", ("resource", "uri"), "embedded"),
    ("messages", ("content", "uri"), "link"),
    ("messages", ("content", "resource", "uri"), "embedded"),
)
BLOCK_OF = {"link": "resource_link", "embedded": "resource"}


def name(own: str) -> str:
    """The public name of the first upstream's tool or prompt."""
    return f"{FIRST}_{own}"


def uri(own: str) -> str:
    """The public URI of its resource."""
    return f"{FIRST}+{own}"


def as_public(asked: Asked) -> Asked:
    """The same request by public names."""
    params = copy.deepcopy(asked.body["params"])
    named = params.get("ref", params)
    for key, public in (("name", name), ("uri", uri)):
        if isinstance(named.get(key), str):
            named[key] = public(named[key])
    body = {**asked.body, "params": params}
    mirrored = {k: v for k, v in asked.headers.items() if k.startswith("mcp-param-")}
    return replace(asked, body=body, headers={**sent_with(body), **mirrored})


def as_own(answer: Answer) -> Answer:
    """The answer by the first upstream's own names, without the entries of the second."""
    result = answer.result
    for member, path, way in RENAMED:
        entries = result.get(member)
        if not isinstance(entries, list):
            continue
        if way in {"name", "uri"} and member != "contents":
            begins = name("") if way == "name" else uri("")
            entries[:] = [each for each in entries if each[path[0]].startswith(begins)]
        for entry in entries:
            _rename(entry, path, way)
    return answer


def _rename(node: Any, path: tuple[str, ...], way: str) -> None:
    *way_in, last = path
    kind = BLOCK_OF.get(way)
    for step in way_in:
        if not _is_of(kind, step, node):
            return
        node = node.get(step)
    if not isinstance(node, dict) or (kind == "resource_link" and node.get("type") != kind):
        return
    begins = name("") if way == "name" else uri("")
    given = node.get(last)
    if isinstance(given, str):
        is_public = given.startswith(begins)
        node[last] = given.removeprefix(begins) if is_public else f"not renamed: {given}"


def _is_of(kind: str | None, step: str, node: Any) -> bool:
    """Whether this is a block of the kind, where the step leads into one."""
    if not isinstance(node, dict):
        return False
    return step != "resource" or node.get("type") == kind
