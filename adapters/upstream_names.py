"""Public names: how what an upstream has is called for clients, and whose it is by that name. Not
here: who asks.

With one upstream everything keeps its name, and nothing here looks into a result. With several, a
tool or prompt is `<upstream>_<name>`; an upstream's name is then letters, digits and hyphens, so
the first underscore ends it, no two pairs meet in one name, and no character is used that a client
could refuse in a tool name (a dot would be, by some). A resource's URI, or the template of one, is
`<upstream>+<uri>`: still a URI, of a scheme that only we know, so the upstream's name has to begin
with a letter. Schemes have no case, and some clients write them small: ours are small, and two
upstreams may not differ by case alone.

Results are rewritten in the places that the specification has for URIs (`resource_link`, embedded
resources, `contents`), so that a client can read what it is given; never within text, structured
content or `_meta`, which mean what the upstream means by them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from ..domain import errors
from ..domain.events import Json
from ..domain.passing import Kind

# What an entry of each list is called by.
KEY_OF: Mapping[Kind, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resource_templates": "uriTemplate",
}

_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")

Entry = dict[str, Json]


class Names:
    """The names of these upstreams. Raises ConfigurationError for some that cannot be told apart.

    What is rewritten is copied as far as it differs: nothing given is changed.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self._alone = upstreams[0] if len(upstreams) == 1 else None
        self._by_scheme = {name.lower(): name for name in upstreams}
        self._by_name = set(upstreams)
        if self._alone is None:
            for name in upstreams:
                _check(name)
        if len(self._by_scheme) < len(upstreams):
            raise errors.ConfigurationError("two upstreams have the same name")

    # --- out: to the client

    def name(self, upstream: str, name: str) -> str:
        """The public name of this upstream's tool or prompt."""
        return name if self._alone is not None else f"{upstream}_{name}"

    def uri(self, upstream: str, uri: str) -> str:
        """The public URI, or URI template, of this upstream's resource."""
        return uri if self._alone is not None else f"{upstream.lower()}+{uri}"

    def entries(self, kind: Kind, upstream: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """A list of this upstream as clients see it."""
        if self._alone is not None:
            return entries
        key = KEY_OF[kind]
        public = self.name if key == "name" else self.uri
        return [_with(entry, key, lambda given: public(upstream, given)) for entry in entries]

    def result(self, method: str, upstream: str, result: Entry) -> Entry:
        """A result of this upstream as clients see it."""
        if self._alone is not None:
            return result

        def public(uri: str) -> str:
            return self.uri(upstream, uri)

        match method:
            case "tools/call":
                return _with_each(result, "content", lambda block: _block(block, public))
            case "prompts/get":
                return _with_each(result, "messages", lambda message: _message(message, public))
            case "tasks/get" if isinstance(result.get("result"), dict):
                ended = self.result("tools/call", upstream, cast(Entry, result["result"]))
                return {**result, "result": ended}
            case "resources/read":
                return _with_each(result, "contents", lambda part: _with(part, "uri", public))
            case _:
                return result

    def error_data(self, upstream: str, data: Json) -> Json:
        """What an error of this upstream carries: the resource, where it names one."""
        if self._alone is not None or not isinstance(data, dict):
            return data
        return _with(cast(Entry, data), "uri", lambda given: self.uri(upstream, given))

    # --- in: from the client

    def of_name(self, name: str) -> tuple[str, str] | None:
        """The upstream, and its own name, of a public one; None when it is nobody's."""
        if self._alone is not None:
            return self._alone, name
        upstream, underscore, own = name.partition("_")
        return (upstream, own) if underscore and upstream in self._by_name else None

    def of_uri(self, uri: str) -> tuple[str, str] | None:
        """The upstream, and its own URI, of a public one; None when it is nobody's."""
        if self._alone is not None:
            return self._alone, uri
        scheme, plus, own = uri.partition("+")
        upstream = self._by_scheme.get(scheme.lower())
        return (upstream, own) if plus and upstream is not None else None

    def of_params(self, method: str, params: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
        """The upstream that a request is for, and its parameters there. Raises InvalidCall."""
        if self._alone is not None:
            return self._alone, params
        if method != "completion/complete":
            key = "uri" if method.startswith("resources/") else "name"
            return self._taken_off(params, key, "")
        given = params.get("ref")
        ref: Mapping[str, Any] = cast(Entry, given) if isinstance(given, dict) else {}
        key = "uri" if ref.get("type") == "ref/resource" else "name"
        upstream, own = self._taken_off(ref, key, "ref.")
        return upstream, {**params, "ref": own}

    def _taken_off(
        self, params: Mapping[str, Json], key: str, where: str
    ) -> tuple[str, Mapping[str, Json]]:
        given = params.get(key)
        if not isinstance(given, str):
            raise errors.InvalidCall(f"{where}{key} must be a string")
        found = self.of_uri(given) if key == "uri" else self.of_name(given)
        if found is None:
            kind = "resource" if key == "uri" else "prompt"
            raise errors.InvalidCall(f"Unknown {kind}: {given}")
        return found[0], {**params, key: found[1]}


def _block(block: Entry, public: Callable[[str], str]) -> Entry:
    """A content block: a link to a resource, one that is embedded, or neither."""
    match block.get("type"):
        case "resource_link":
            return _with(block, "uri", public)
        case "resource" if isinstance(block.get("resource"), dict):
            return {**block, "resource": _with(block["resource"], "uri", public)}
        case _:
            return block


def _message(message: Entry, public: Callable[[str], str]) -> Entry:
    content = message.get("content")
    if not isinstance(content, dict):
        return message
    return {**message, "content": _block(cast(Entry, content), public)}


def _with(entry: Entry, key: str, public: Callable[[str], str]) -> Entry:
    given = entry.get(key)
    return {**entry, key: public(given)} if isinstance(given, str) else entry


def _with_each(result: Entry, key: str, change: Callable[[Entry], Entry]) -> Entry:
    given = result.get(key)
    if not isinstance(given, list):
        return result
    items = cast(Iterable[Any], given)
    return {
        **result,
        key: [change(cast(Entry, item)) if isinstance(item, dict) else item for item in items],
    }


def _check(name: str) -> None:
    if not _PREFIX.fullmatch(name):
        raise errors.ConfigurationError(
            f"upstream {name!r}: of several, a name has 1 to 32 letters, digits and hyphens and "
            "begins with a letter, since it becomes the prefix of tool names and the scheme of URIs"
        )
