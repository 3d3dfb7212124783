"""Answers of this revision, written as the older ones write them.

What their clients do not know, they skip. So nothing else is taken away: an unknown member of an
upstream's answer reaches the client here too.
"""

from collections.abc import Mapping
from typing import Any, cast

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import is_version_at_least

from ...domain.draft import EVENTS_EXTENSION
from ...domain.extension import TASKS_EXTENSION
from ..policy import Policies, Run

WITH_TASKS = "2025-11-25"
RELATED_TASK = "io.modelcontextprotocol/related-task"

_OF_THIS_REVISION = frozenset({"resultType", "ttlMs", "cacheScope"})
_CAPABILITIES = ("experimental", "logging", "completions", "prompts", "resources", "tools")
_TASKS: Mapping[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def has_tasks(version: str) -> bool:
    """Whether this revision has tasks of its own."""
    return version == WITH_TASKS


def older(
    method: str, version: str, result: Mapping[str, Any], policies: Policies
) -> dict[str, Any]:
    """The result of a request as a client of `version` reads it."""
    given = plain(result)
    if method == "tools/list":
        tools = cast(list[dict[str, Any]], given.get("tools") or [])
        given["tools"] = [_tool(tool, version, policies) for tool in tools]
    return given


def plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what only this revision has."""
    given = {key: value for key, value in result.items() if key not in _OF_THIS_REVISION}
    if not isinstance(given.get("structuredContent", {}), dict):
        del given["structuredContent"]  # what it says is in the content as well
    if not isinstance(given.get("_meta", {}), dict):
        del given["_meta"]  # no client could read it
    if SERVER_INFO_META_KEY in _object(given.get("_meta")):
        meta = {k: v for k, v in given.pop("_meta").items() if k != SERVER_INFO_META_KEY}
        given |= {"_meta": meta} if meta else {}
    return given


def capabilities(discovered: Mapping[str, Any], version: str) -> dict[str, Any]:
    """What `initialize` declares, out of what `server/discover` does."""
    declared = {key: discovered[key] for key in _CAPABILITIES if key in discovered}
    ours = (TASKS_EXTENSION, EVENTS_EXTENSION)  # of this revision alone
    others = cast(dict[str, Any], discovered.get("extensions") or {})
    extensions = {name: value for name, value in others.items() if name not in ours}
    if extensions:
        declared["extensions"] = extensions
    if has_tasks(version):
        declared["tasks"] = _TASKS
    return declared


def task(detailed: Mapping[str, Any]) -> dict[str, Any]:
    """A task as 2025-11-25 has it: there a result that says it is an error is a failed task."""
    result = cast(dict[str, Any], detailed.get("result") or {})
    failed = detailed["status"] == "completed" and result.get("isError") is True
    told = {
        "taskId": detailed["taskId"],
        "status": "failed" if failed else detailed["status"],
        "statusMessage": detailed.get("statusMessage"),
        "createdAt": detailed["createdAt"],
        "lastUpdatedAt": detailed["lastUpdatedAt"],
        "pollInterval": detailed.get("pollIntervalMs"),
    }
    return {
        **{key: value for key, value in told.items() if value is not None},
        "ttl": detailed.get("ttlMs"),
    }


def related(result: Mapping[str, Any], task_id: str) -> dict[str, Any]:
    """A result or the parameters of a request, marked as belonging to a task."""
    return {**result, "_meta": {**_object(result.get("_meta")), RELATED_TASK: {"taskId": task_id}}}


def marked(request: Mapping[str, Any], task_id: str) -> dict[str, Any]:
    """A question to the client, as belonging to a task."""
    return {**request, "params": related(request.get("params") or {}, task_id)}


def _tool(given: dict[str, Any], version: str, policies: Policies) -> dict[str, Any]:
    tool = dict(given)
    # What the upstream says of tasks is about its own, which are not these.
    execution = {
        k: v for k, v in _object(tool.pop("execution", None)).items() if k != "taskSupport"
    }
    if has_tasks(version) and policies.of(str(tool.get("name"))).run is not Run.DIRECT:
        execution["taskSupport"] = "optional"
    if execution and is_version_at_least(version, WITH_TASKS):
        tool["execution"] = execution
    if _object(tool.get("outputSchema")).get("type") != "object":
        tool.pop("outputSchema", None)
    return tool


def _object(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
