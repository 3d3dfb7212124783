"""What `outlast doctor` says of those around the service: upstreams, an endpoint, a running one."""

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from outlast import __version__
from outlast.adapters.upstream import McpUpstreams, UpstreamSettings
from outlast.delivery.webhook.challenge import Challenger
from outlast.delivery.webhook.exchange import Limits, WebhookClient
from outlast.service import config as configuration, settings, wiring
from outlast.service.doctor import deployment, upstreams, webhook
from outlast.service.doctor.finding import Finding
from outlast.tests.delivery.internet import OK, Authority, Internet, endpoint, names, saying
from outlast.tests.delivery.webhook_world import hook, now
from outlast.tests.operations.doctoring import answering, discovered
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import stdio

pytestmark = [pytest.mark.anyio, pytest.mark.promise("doctor-names-what-to-change")]

PUBLIC, A = "93.184.215.14", "https://a.example/hook"
# A server of MCP that lists no tools: it answers everything but the handshake with an error.
LISTS_NOTHING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    told = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        told["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                          "serverInfo": {"name": "lists-nothing", "version": "1"}}
    else:
        told["error"] = {"code": -32603, "message": "an unspeakable reason"}
    print(json.dumps(told), flush=True)
"""


def one_of(found: Sequence[Finding], check: str) -> Finding:
    assert all(bool(one.change) == (one.level != "ok") for one in found)
    [one] = [one for one in found if one.check == check]
    return one


async def test_a_service_without_upstreams_is_named():
    async with McpUpstreams([]) as none:
        [found] = await upstreams.check_upstreams(none, [])
    assert (found.check, found.level) == ("upstream", "problem")
    assert "[upstreams.NAME]" in found.change


async def test_each_way_in_which_an_upstream_fails_has_its_sentence(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(upstreams, "READY_S_MAX", 25.0)
    silent, refusing = socket.create_server(("127.0.0.1", 0)), free_port()
    mute = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
    made = [
        UpstreamSettings("mute", url=mute),
        UpstreamSettings("gone", url=f"http://127.0.0.1:{refusing}/mcp"),
        UpstreamSettings("errs", command=[sys.executable, "-c", LISTS_NOTHING], era="legacy"),
        stdio("everyday", name="well"),
    ]
    with silent:
        async with McpUpstreams(made) as real:
            found = await upstreams.check_upstreams(real, ["gone", "errs", "well"])
            monkeypatch.setattr(upstreams, "READY_S_MAX", 0.6)
            found += await upstreams.check_upstreams(real, ["mute"])
    told = {one.check: one.says for one in found}
    says = "It cannot be reached, does not speak MCP, or lists its tools with an error."
    assert told["upstream gone"] == told["upstream errs"] == says
    assert told["upstream mute"] == "It does not answer within 1 s."
    assert {one.check for one in found if one.level == "ok"} == {"upstream well"}
    assert one_of(found, "upstream errs").level == "problem"
    assert "unspeakable" not in "".join(told.values())
    assert "[upstreams.gone]" in one_of(found, "upstream gone").change


async def probed(url: str, client: WebhookClient) -> Finding:
    async with client:

        async def probe(asked: str) -> str | None:
            return await Challenger(client, now, None).ask(asked, "doctor", bytes(32))

        return await webhook.check_webhook(url, probe)


def local(total_s: float = 15.0) -> WebhookClient:
    return WebhookClient(allow_loopback_http=True, limits=Limits(total_s=total_s))


@pytest.mark.parametrize("echoes", [True, False])  # it has not subscribed, and may well refuse
async def test_an_endpoint_that_answers_is_reached(echoes: bool):
    async with hook() as asked:
        asked.echoes = echoes
        found = await probed(asked.url, local())
    assert (found.check, found.level, found.change) == ("webhook probe", "ok", "")


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [
        (404, "ok", "can be reached"),
        (301, "ok", "can be reached"),
        (503, "problem", "error of its own"),
    ],
)
async def test_an_endpoint_is_judged_by_whether_it_answers(status: int, level: str, words: str):
    async with answering(mcp=Response(status_code=status)) as (url, _):
        found = await probed(f"{url}/mcp", local())
    assert (found.level, words in found.says) == (level, True), found
    assert bool(found.change) == (level != "ok")


async def test_an_endpoint_that_is_not_there_or_says_nothing_is_named():
    gone = await probed(f"http://127.0.0.1:{free_port()}/hook", local())
    assert (gone.level, gone.says) == ("problem", "No connection to it can be made from here.")
    assert "firewall" in gone.change
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        silent = await probed(f"http://127.0.0.1:{port}/hook", local(total_s=3.0))
    assert (silent.level, silent.says) == ("problem", "It does not answer in time.")


async def test_certificates_that_do_not_hold_are_named(tmp_path: Path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    trusted, stranger = Authority(mine), Authority(other)
    async with endpoint(saying(OK), stranger.context("a.example")) as served:
        internet = Internet({PUBLIC: served.port})
        resolve = names(a=[PUBLIC])
        hooked = await probed(
            A, WebhookClient(extra_ca=trusted.bundle, dial=internet, resolve=resolve)
        )
        url = f"https://localhost:{served.port}"
        found = await deployment.check_deployment(url, __version__, None)
    assert (hooked.level, hooked.says) == ("problem", "Its certificate does not hold.")
    assert [(one.check, one.level) for one in found] == [("tls", "ok"), ("tls", "problem")]
    assert "certificate" in found[1].says


@pytest.mark.parametrize(
    ("events", "url"),
    [
        ("", "http://tasks.example/hook"),
        ("", "https://127.0.0.1/hook"),
        ("", "https://tasks.example:8443/hook"),
        ("development = true", "https://10.0.0.1:443/hook"),
    ],
)
async def test_an_endpoint_where_no_webhook_may_go_is_not_asked(events: str, url: str):
    config = configuration.parse(f"[events]\n{events}\n", "a test")
    instruments = wiring.doctor(settings.load({}, config.server), config)
    found = await webhook.check_webhook(url, instruments.probe)
    assert found.level == "problem"
    assert "No webhook may go there" in found.says
    assert "events.ports" in found.change


@pytest.mark.parametrize(
    ("reply", "level", "words"),
    [
        (discovered(__version__), "ok", f"as version {__version__}"),
        (discovered(__version__, in_meta=True), "ok", f"as version {__version__}"),
        (discovered("0.0.9"), "warning", "It is version 0.0.9"),
        (Response(status_code=421), "problem", "this name"),
        (Response(status_code=401), "ok", "who is calling"),
        (Response(status_code=403), "ok", "who is calling"),
        (Response(status_code=404), "problem", "answers 404"),
        (PlainTextResponse("<html>"), "problem", "not as Outlast"),
        (JSONResponse([]), "problem", "not as Outlast"),
        (JSONResponse({"result": {}}), "problem", "not as Outlast"),
        (JSONResponse({"result": None}), "problem", "not as Outlast"),
    ],
)
async def test_what_the_endpoint_answers(reply: Response, level: str, words: str):
    async with answering(mcp=reply) as (url, _):
        found = await deployment.check_deployment(url, __version__, None)
    endpoint = one_of(found, "endpoint")
    assert (endpoint.level, words in endpoint.says) == (level, True), endpoint
    assert (one_of(found, "health").level, one_of(found, "ready").level) == ("ok", "ok")
    assert [one for one in found if one.check == "tls"] == []


@pytest.mark.parametrize(("name", "check"), [("healthz", "health"), ("readyz", "ready")])
async def test_a_service_that_is_ill_is_named(name: str, check: str):
    async with answering(**{name: Response(status_code=503)}) as (url, _):
        found = await deployment.check_deployment(url, __version__, None)
    bad = {one.check for one in found if one.level == "problem"} - {"endpoint"}
    assert bad == {check}
    assert "503" in one_of(found, check).says


@pytest.mark.parametrize("token", [None, "a token"])
@pytest.mark.parametrize("ending", ["", "/", "/mcp", "/mcp/"])
async def test_the_token_is_shown_to_the_endpoint_alone(token: str | None, ending: str):
    async with answering(mcp=discovered(__version__)) as (url, asked):
        found = await deployment.check_deployment(url + ending, __version__, token)
    assert {one.level for one in found} == {"ok"}
    shown = {request.url.path: request.headers.get("authorization") for request in asked}
    bearer = None if token is None else f"Bearer {token}"
    assert shown == {"/healthz": None, "/readyz": None, "/mcp": bearer}


async def test_a_service_that_is_not_there_and_plain_http_elsewhere_are_named():
    found = await deployment.check_deployment("http://nobody.invalid", __version__, None)
    assert [(one.check, one.level) for one in found] == [("tls", "warning"), ("service", "problem")]
    gone = f"http://localhost:{free_port()}"
    found = await deployment.check_deployment(gone, __version__, None)
    assert [(one.check, one.level) for one in found] == [("service", "problem")]
    found = await deployment.check_deployment("https://nobody.invalid", __version__, None)
    assert [(one.check, one.level) for one in found] == [("tls", "ok"), ("service", "problem")]


@pytest.mark.parametrize(
    "url",
    [
        "http://[x",
        "http://127.0.0.1:99999",
        "tasks.example",
        "tasks.example:80",
        "ftp://a",
        "",
        "//",
    ],
)
async def test_what_is_no_url_of_a_service_is_named_and_not_asked(url: str):
    [found] = await deployment.check_deployment(url, "1", "t")
    assert (found.check, found.level) == ("service", "problem")
    assert "--url" in found.says
