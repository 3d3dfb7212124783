"""Whether the servers behind us answer."""

import asyncio
from collections.abc import Sequence

from ...domain import errors
from ...domain.ports import Upstreams
from .finding import Finding, ok, problem

READY_S_MAX = 15.0


async def check_upstreams(upstreams: Upstreams, names: Sequence[str]) -> list[Finding]:
    """All at once, each within a bound. A server that is a command is started for this."""
    if not names:
        change = "Add [upstreams.NAME] to the configuration."
        return [problem("upstream", "There is no upstream to stand in front of.", change)]
    return list(await asyncio.gather(*(_one(upstreams, name) for name in names)))


async def _one(upstreams: Upstreams, name: str) -> Finding:
    check = f"upstream {name}"
    try:
        async with asyncio.timeout(READY_S_MAX):
            await upstreams.ready(name)
    except TimeoutError:
        says = f"It does not answer within {READY_S_MAX:.0f} s."
    except errors.UpstreamError:  # its reason may quote what the server wrote
        says = "It cannot be reached, does not speak MCP, or lists its tools with an error."
    else:
        return ok(check, "It answers.")
    return problem(
        check,
        says,
        f"Try its command or URL by itself, and see [upstreams.{name}]; others are not touched.",
    )
