"""The ways to be known beside each other: issuers, a file, the operators' token, and nobody."""

import hashlib
from pathlib import Path

import anyio
import pytest
import websockets

from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_identity_served import BOUND_S, DOORS, EC, STATIC, World, config_for
from outlast.tests.service.test_socket import ws_url
from outlast.tests.support.issuing import issuing
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.serving import OUTLAST, Serving, serving

pytestmark = pytest.mark.anyio


@pytest.mark.promise("an-issuer-that-is-down-keeps-nobody-out")
async def test_without_its_issuer_the_server_starts_says_not_now_and_knows_its_own_tokens(
    database_url: str, tmp_path: Path
):
    digest = hashlib.sha256(STATIC.encode()).hexdigest()
    (tmp_path / "tokens.toml").write_text(f'[[tokens]]\nsha256 = "{digest}"\nsubject = "carol"\n')
    async with issuing(EC) as issuer, http_client() as http:
        issuer.behaves = "down"
        config = config_for(issuer)
        async with serving(tmp_path, config, database_url, ["--no-work"]) as server:
            world = World(server, issuer, http)
            reply = await world.client(issuer.token()).request("tools/list")
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with websockets.connect(
                    ws_url(server),
                    additional_headers={"Authorization": f"Bearer {issuer.token()}"},
                    proxy=None,
                ):
                    pass
            assert refused.value.response.status_code == 503
            assert (await world.client(STATIC).request("tools/list")).status == 200
            assert issuer.looks == 1


# --- the operators' token, and nobody's


async def test_beside_an_operators_token_the_anonymous_operate_nothing(
    database_url: str, tmp_path: Path
):
    token = "the-token-of-the-operators-of-this-test"
    config = desk_config(f'admin_token = "{token}"')
    async with (
        serving(tmp_path, config, database_url, ["--no-work"]) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        assert (await client.request("tools/list")).status == 200
        for path in DOORS[:2]:
            url = server.base_url + path
            assert (await http.get(url)).status_code == 403
            ours = {"Authorization": f"Bearer {token}"}
            assert (await http.get(url, headers=ours)).status_code == 200
        operator = RawClient(server.url, http, token)
        assert (await operator.request("tasks/get", {"taskId": "x" * 43})).status == 403
        assert (await operator.call("note_task", {"path": "/dev/null"})).status == 403
        missing = await http.get(f"{server.base_url}/.well-known/oauth-protected-resource")
        assert missing.status_code == 404


async def test_on_loopback_alone_everybody_may_operate(desk: Serving):
    async with http_client() as http:
        for path in DOORS[:2]:
            assert (await http.get(desk.base_url + path)).status_code == 200


async def test_a_new_token_may_do_what_its_scopes_say():
    command = [
        str(OUTLAST),
        "token",
        "new",
        "--subject",
        "a",
        "--scope",
        "audit",
        "--scope",
        "call",
    ]
    with anyio.fail_after(BOUND_S):
        ran = await anyio.run_process(command)
        plain = await anyio.run_process(command[:5])
        wrong = await anyio.run_process([*command[:5], "--scope", "all"], check=False)
    assert b'scopes = ["audit", "call"]\n' in ran.stdout
    assert b'scopes = ["call", "watch"]\n' in plain.stdout
    assert (wrong.returncode, b"'watch'" in wrong.stderr) == (2, True)
