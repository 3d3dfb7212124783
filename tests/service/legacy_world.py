"""A desk whose clients bring tokens, and sessions of theirs."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from outlast.tests.service.conftest import desk_config
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.sessions import RawSession

ALICE, BOB, WATCHER = "alice-token", "bob-token", "watcher-token"


@asynccontextmanager
async def guarded(folder: Path, database_url: str, server: str = "") -> AsyncGenerator[Serving]:
    """Outlast in front of the desk for Alice, Bob, and one of Alice's who may only watch."""
    given = [(ALICE, "alice", "call"), (BOB, "bob", "call"), (WATCHER, "alice", "watch")]
    lines = [
        f'[[tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
        f'subject = "{subject}"\nclient = "desk"\nscopes = ["watch", "{scope}"]\n'
        for token, subject, scope in given
    ]
    (folder / "tokens.toml").write_text("\n".join(lines).replace('["watch", "watch"]', '["watch"]'))
    config = desk_config(f'tokens_file = "tokens.toml"\n{server}')
    async with serving(folder, config, database_url) as running:
        yield running


def bearing(serving_: Serving, http: httpx2.AsyncClient, token: str, **more: Any) -> RawSession:
    """A client with this token, which has no session yet."""
    return RawSession(serving_.url, http, headers={"authorization": f"Bearer {token}"}, **more)
