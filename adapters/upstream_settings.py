"""How one upstream is reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class UpstreamSettings:
    """How to reach one upstream: a command to speak to over stdio, or the URL of its Streamable
    HTTP endpoint.

    A command's process gets a few variables of ours (PATH, HOME and the like), and `env` on top
    of them.
    """

    name: str
    command: Sequence[str] | None = None
    url: str | None = None
    era: Literal["auto", "modern", "legacy"] = "auto"
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    headers: Mapping[str, str] | None = None
