"""The same request to both, and what differs in their answers."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from outlast.tests.differential.generating import Asked
from outlast.tests.differential.owned import GATEWAY_OWNS, MISSING, Owned

ANSWER_S_MAX = 30.0
PAGES_MAX = 50
EXACT_TO = 2**53  # a float says every integer up to it
LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


@dataclass(frozen=True)
class Answer:
    """What came: the status, what kind of content, and every message in it."""

    status: int
    kind: str
    messages: list[Any]

    @property
    def last(self) -> Any:
        """The answer itself."""
        return self.messages[-1] if self.messages else None

    @property
    def code(self) -> int | None:
        """The code of its error."""
        error = self.last.get("error") if isinstance(self.last, dict) else None
        return error.get("code") if isinstance(error, dict) else None

    @property
    def result(self) -> dict[str, Any]:
        """Its result; empty for an error."""
        result = self.last.get("result") if isinstance(self.last, dict) else None
        return result if isinstance(result, dict) else {}


@dataclass(frozen=True)
class Side:
    """One of the two endpoints."""

    url: str
    http: httpx2.Client

    def ask(self, asked: Asked) -> Answer:
        """Send it as it is."""
        request = self.http.build_request("POST", self.url, content=asked.content)
        request.headers.pop("accept", None)
        request.headers.update(dict(asked.headers))
        reply = self.http.send(request)
        kind = reply.headers.get("content-type", "").partition(";")[0]
        return Answer(reply.status_code, kind, _messages(kind, reply.text))

    def walk(self, asked: Asked) -> Answer:
        """The answer, and of a list all pages in one: the hints are those of the first."""
        first = answer = self.ask(asked)
        member = LISTS.get(asked.method, "")
        entries = list(answer.result.get(member, ()))
        for _ in range(PAGES_MAX):
            cursor = answer.result.get("nextCursor")
            if cursor is None:
                break
            answer = self.ask(asked.with_params(cursor=cursor))
            entries += answer.result[member]
        if member in first.result:
            first.result[member] = entries
        return first


def _messages(kind: str, text: str) -> list[Any]:
    if kind == "application/json":
        return [json.loads(text)]
    lines = text.replace("\r\n", "\n").split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def differences(
    asked: Asked, direct: Answer, through: Answer, owns: Sequence[Owned] = GATEWAY_OWNS
) -> list[str]:
    """What differs, and is not the gateway's."""
    rows = [row for row in owns if _applies(row, asked)]
    if any(not row.path and row.when(direct, through) for row in rows):
        return []
    found: list[str] = []
    if direct.status != through.status:
        found.append(f"status: {direct.status} != {through.status}")
    if direct.kind != through.kind:
        found.append(f"content: {direct.kind} != {through.kind}")
    ours, theirs = copy.deepcopy(through.messages), copy.deepcopy(direct.messages)
    for mine, other in zip(ours, theirs, strict=False):
        for row in rows:
            _leave_out(row, other, mine)
        if asked.spoilt:
            _without_words(mine)
            _without_words(other)
    compare("", theirs, ours, found)
    return found


def _applies(row: Owned, asked: Asked) -> bool:
    spoilt = row.spoilt is None or any(row.spoilt in how for how in asked.spoilt)
    return spoilt and row.method in {"*", asked.method}


def _leave_out(row: Owned, direct: Any, through: Any) -> None:
    """Take what a row names out of both messages, if it may differ so."""
    if row.path and row.when(_at(direct, row.path), _at(through, row.path)):
        _drop(direct, row.path)
        _drop(through, row.path)


def _without_words(message: Any) -> None:
    """Who refuses a bad request says so in words of its own: the code and the status are equal."""
    if isinstance(message, dict) and isinstance(message.get("error"), dict):
        message["error"].pop("message", None)
        message["error"].pop("data", None)


def _at(node: Any, path: Sequence[str]) -> Any:
    for name in path:
        node = node.get(name, MISSING) if isinstance(node, dict) else MISSING
    return node


def _drop(node: Any, path: Sequence[str]) -> None:
    """Take out what is at a path, and what is empty for it."""
    head, *rest = path
    if not isinstance(node, dict) or head not in node:
        return
    if rest:
        _drop(node[head], rest)
        if node[head] == {}:
            del node[head]
    else:
        del node[head]


def compare(place: str, one: Any, other: Any, found: list[str]) -> None:
    """Write down where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            if key not in other or key not in one:
                found.append(f"{place}/{key}: only {'direct' if key in one else 'through'}")
            else:
                compare(f"{place}/{key}", one[key], other[key], found)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            compare(f"{place}/{index}", mine, theirs, found)
    elif not _is_same(one, other):
        found.append(f"{place}: {_told(one)} != {_told(other)}")


def _is_same(one: Any, other: Any) -> bool:
    """By value; but `true` is not 1, and an integer is not the float nearest to it."""
    if type(one) is type(other):
        return one == other
    numbers = {type(one), type(other)} == {int, float}
    return numbers and one == other and abs(one) <= EXACT_TO


def _told(value: Any) -> str:
    return json.dumps(value)[:200]


def rounds(
    asked: Asked, direct: Answer, through: Answer, answers: Mapping[str, Any]
) -> tuple[Asked, Asked] | None:
    """The next round for each, when both have asked for something."""
    if not all(each.result.get("resultType") == "input_required" for each in (direct, through)):
        return None
    asks = []
    for each in (direct, through):
        state = each.result.get("requestState")
        given = {
            name: answers[q["method"]]
            for name, q in (each.result.get("inputRequests") or {}).items()
        }
        more: dict[str, Any] = {"inputResponses": given}
        asks.append(
            asked.with_params(**(more if state is None else {**more, "requestState": state}))
        )
    return asks[0], asks[1]
