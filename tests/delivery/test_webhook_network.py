"""From a name to a socket: who is dialled, and whose certificate is asked for. Real sockets."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import httpcore2
import pytest

from outlast.delivery.webhook.exchange import Limits, Outcome, WebhookClient
from outlast.delivery.webhook.network import (
    GuardedNetwork,
    Resolve,
    RoadClosed,
    SystemResolver,
)
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.internet import (
    OK,
    Authority,
    Internet,
    endpoint,
    name_server,
    names,
    saying,
)

pytestmark = pytest.mark.anyio

PATIENCE_S = 30
SHORT = Limits(connect_s=0.4, total_s=5)
PUBLIC, PUBLIC_TOO, PUBLIC_V6 = "93.184.215.14", "93.184.215.15", "2606:4700::1111"
A, B = "https://a.example/hook", "https://b.example/hook"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def client_of(
    authority: Authority, internet: Internet, resolve: Resolve, limits: Limits | None = None
) -> WebhookClient:
    return WebhookClient(extra_ca=authority.bundle, dial=internet, resolve=resolve, limits=limits)


async def post(client: WebhookClient, url: str) -> Outcome:
    with anyio.fail_after(PATIENCE_S):
        return await client.post(url, b"{}", {"webhook-id": "evt_1"})


def seen(outcome: Outcome) -> tuple[int | None, str | None]:
    return outcome.status, outcome.category


# Names and certificates


@pytest.mark.promise("webhooks-go-to-public-addresses")
async def test_the_judged_address_is_dialled_and_the_name_stays(authority: Authority):
    context = authority.context("a.example")
    asked: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked.append(name)
    async with endpoint(saying(OK), context) as served:
        internet = Internet({PUBLIC: served.port})
        async with client_of(authority, internet, names(a=[PUBLIC])) as client:
            assert seen(await post(client, A)) == (200, None)
        [exchange] = served.seen
    assert internet.dialled == [PUBLIC]
    assert (asked, exchange.header("host")) == (["a.example"], "a.example")


async def test_two_names_on_one_address_each_need_their_own_certificate(authority: Authority):
    async with endpoint(saying(OK), authority.context("a.example")) as served:
        internet = Internet({PUBLIC: served.port})
        resolve = names(a=[PUBLIC], b=[PUBLIC])
        async with client_of(authority, internet, resolve) as client:
            assert seen(await post(client, A)) == (200, None)
            assert seen(await post(client, B)) == (None, "tls_error")
            assert seen(await post(client, A)) == (200, None)
    assert [exchange.header("host") for exchange in served.seen] == ["a.example"] * 2
    assert internet.dialled == [PUBLIC] * 2  # one for each name; the first was used again


async def test_two_names_with_one_certificate_still_share_no_connection(authority: Authority):
    async with endpoint(saying(OK), authority.context("a.example", "b.example")) as served:
        internet = Internet({PUBLIC: served.port})
        resolve = names(a=[PUBLIC], b=[PUBLIC])
        async with client_of(authority, internet, resolve) as client:
            for url in (A, B, A, B):
                assert seen(await post(client, url)) == (200, None)
    assert internet.dialled == [PUBLIC] * 2


async def test_a_certificate_of_an_unknown_authority_is_a_tls_error(
    authority: Authority, tmp_path: Path
):
    async with endpoint(saying(OK), Authority(tmp_path).context("a.example")) as served:
        internet = Internet({PUBLIC: served.port})
        async with client_of(authority, internet, names(a=[PUBLIC])) as client:
            assert seen(await post(client, A)) == (None, "tls_error")
    assert served.seen == []


async def test_a_server_without_tls_is_a_tls_error(authority: Authority):
    async with endpoint(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as served:
        internet = Internet({PUBLIC: served.port})
        async with client_of(authority, internet, names(a=[PUBLIC]), SHORT) as client:
            assert (await post(client, A)).category in {"tls_error", "timeout"}


async def test_a_client_certificate_that_we_do_not_have_is_a_tls_error(authority: Authority):
    context = authority.context("a.example")
    context.load_verify_locations(authority.bundle)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listener: socket.socket) -> None:
        """Refuse in the handshake. Our side thinks that it is over, and reads the alert as data."""
        connection, _ = listener.accept()
        with context.wrap_socket(connection, True, do_handshake_on_connect=False) as shaken:
            with pytest.raises(ssl.SSLError):
                shaken.do_handshake()
            while socket.socket.recv(shaken, 65_536):
                pass  # closing on unread bytes would tear the alert away from the client

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        internet = Internet({PUBLIC: listener.getsockname()[1]})
        async with (
            client_of(authority, internet, names(a=[PUBLIC])) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(anyio.to_thread.run_sync, serve, listener)
            assert seen(await post(client, A)) == (None, "tls_error")


async def test_a_handshake_that_never_ends_is_a_timeout_of_connecting(authority: Authority):
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        internet = Internet({PUBLIC: port})
        limits = Limits(connect_s=0.3, total_s=2 * PATIENCE_S)  # which nobody here waits for
        async with client_of(authority, internet, names(a=[PUBLIC]), limits) as client:
            assert seen(await post(client, A)) == (None, "timeout")


# Names that lead astray

ASTRAY = [
    ["127.0.0.1"],
    ["::1"],
    ["10.0.0.1"],
    ["169.254.169.254"],
    ["::ffff:127.0.0.1"],
    ["64:ff9b::7f00:1"],
    ["64:ff9b::a9fe:a9fe"],
    ["64:ff9b:1::7f00:1"],
    ["2002:7f00:1::1"],
    ["100.64.0.1"],
    ["0.0.0.0"],
    ["fd00:ec2::254"],
    ["fe80::1%eth0"],
    [PUBLIC, "127.0.0.1"],
    ["127.0.0.1", PUBLIC],
    [PUBLIC_V6, "::1"],
    [PUBLIC, "::ffff:10.0.0.1"],
    [PUBLIC, "b.example"],
    [],
]


@pytest.mark.parametrize("answers", ASTRAY, ids=",".join)
@pytest.mark.parametrize("development", [False, True])
@pytest.mark.promise("webhooks-go-to-public-addresses")
async def test_a_name_that_leads_astray_is_not_dialled(answers: list[str], development: bool):
    internet = Internet()
    async with WebhookClient(
        dial=internet, resolve=names(a=answers), allow_loopback_http=development
    ) as client:
        assert seen(await post(client, A)) == (None, "connection_refused")
    assert internet.dialled == []


@pytest.mark.promise("webhooks-go-to-public-addresses")
async def test_a_name_that_flips_to_loopback_after_the_check_changes_nothing(authority: Authority):
    context = authority.context("a.example")
    async with (
        endpoint(saying(OK), context) as secret,  # where 127.0.0.1 would lead, were it dialled
        endpoint(saying(OK), context) as served,
        name_server([PUBLIC], ["127.0.0.1"]) as dns,
    ):
        internet = Internet({PUBLIC: served.port})
        url = f"https://a.example:{secret.port}/hook"
        async with WebhookClient(
            extra_ca=authority.bundle, dial=internet, resolve=dns.resolve, ports={secret.port}
        ) as client:
            assert seen(await post(client, url)) == (200, None)
            assert dns.asked == 1  # nobody asks twice for one connection
            assert seen(await post(client, url)) == (200, None)
            assert (dns.asked, internet.dialled) == (1, [PUBLIC])  # used again, as it was judged
        async with WebhookClient(
            extra_ca=authority.bundle, dial=internet, resolve=dns.resolve, ports={secret.port}
        ) as fresh:
            assert seen(await post(fresh, url)) == (None, "connection_refused")
            assert (dns.asked, internet.dialled) == (2, [PUBLIC])
    assert (len(served.seen), secret.connections) == (2, 0)


async def test_a_later_connection_of_the_same_client_is_judged_anew(authority: Authority):
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with (
        endpoint(saying(closing), authority.context("a.example")) as served,
        name_server([PUBLIC], [PUBLIC, "127.0.0.1"], [PUBLIC]) as dns,
    ):
        internet = Internet({PUBLIC: served.port})
        async with client_of(authority, internet, dns.resolve) as client:
            got = [seen(await post(client, A)) for _ in range(3)]
    assert got == [(200, None), (None, "connection_refused"), (200, None)]
    assert internet.dialled == [PUBLIC] * 2


async def test_the_next_judged_address_is_tried_when_one_is_dead(authority: Authority):
    async with endpoint(saying(OK), authority.context("a.example")) as served:
        internet = Internet({PUBLIC: served.port})
        answers = [PUBLIC_V6, PUBLIC_TOO, PUBLIC]
        async with client_of(authority, internet, names(a=answers)) as client:
            assert seen(await post(client, A)) == (200, None)
    assert internet.dialled == answers


async def test_a_name_with_countless_addresses_is_tried_a_few_times_only(authority: Authority):
    internet = Internet()
    answers = [f"93.184.215.{last}" for last in range(100)]
    async with client_of(authority, internet, names(a=answers)) as client:
        assert seen(await post(client, A)) == (None, "connection_refused")
    assert internet.dialled == answers[:4]


async def test_a_name_that_nobody_knows_counts_as_refused(authority: Authority):
    async with client_of(authority, Internet(), names()) as client:
        assert seen(await post(client, A)) == (None, "connection_refused")


async def test_a_name_server_that_is_silent_is_a_timeout_for_its_name_only(authority: Authority):
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        if host == "a.example":
            await anyio.Event().wait()
        return [PUBLIC]

    async def is_asked() -> bool:
        return bool(asked)

    async with endpoint(saying(OK), authority.context("b.example")) as served:
        internet = Internet({PUBLIC: served.port})
        # Time for the other one, however slow the machine is; and then no time to speak of.
        patient, hasty = Limits(connect_s=2 * PATIENCE_S, total_s=2 * PATIENCE_S), SHORT
        async with client_of(authority, internet, resolve, patient) as client:
            lost = asyncio.create_task(post(client, A))
            await until(is_asked, PATIENCE_S)
            assert seen(await post(client, B)) == (200, None)
            assert not lost.done()
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
        async with client_of(authority, internet, resolve, hasty) as client:
            assert seen(await post(client, A)) == (None, "timeout")


# The machine's own resolver


async def test_the_real_resolver_leads_to_loopback_only_under_the_switch():
    async with endpoint(saying(OK)) as served:
        url = f"http://localhost:{served.port}/hook"
        async with WebhookClient(allow_loopback_http=True) as client:
            assert seen(await post(client, url)) == (200, None)
        async with WebhookClient() as client:
            assert seen(await post(client, url)) == (None, "connection_refused")
    assert served.connections == 1


async def test_below_the_url_check_the_network_refuses_a_local_name_too():
    resolver = SystemResolver()
    internet = Internet()
    network = GuardedNetwork(resolver, internet, allow_loopback=False)
    with pytest.raises(RoadClosed):
        await network.connect_tcp("localhost", 80, timeout=PATIENCE_S)
    with pytest.raises(httpcore2.ConnectError):
        await network.connect_tcp("no-such-host.invalid", 80, timeout=PATIENCE_S)
    with pytest.raises(httpcore2.ConnectError):
        await network.connect_tcp("a" * 64, 80, timeout=PATIENCE_S)  # the codec refuses it
    assert internet.dialled == []
    resolver.close()


async def test_under_the_switch_a_local_name_may_not_lead_elsewhere():
    internet = Internet()

    async def resolve(host: str) -> Sequence[str]:
        return ["127.0.0.1", PUBLIC]

    async with WebhookClient(allow_loopback_http=True, resolve=resolve, dial=internet) as client:
        assert seen(await post(client, "http://localhost/")) == (None, "connection_refused")
    assert internet.dialled == []


async def test_one_name_holds_one_thread_however_many_ask_and_stop_waiting():
    release = threading.Event()
    asked: list[str] = []

    def lookup(host: str) -> Sequence[str]:
        asked.append(host)
        if host == "slow":
            release.wait(PATIENCE_S)
            raise OSError("too late")
        return [PUBLIC]

    async def is_looked_up() -> bool:
        return asked == ["slow"]

    resolver = SystemResolver(lookup)
    with anyio.fail_after(PATIENCE_S):
        for _ in range(3):
            with anyio.move_on_after(0.02):
                await resolver("slow")
        await until(is_looked_up, PATIENCE_S)  # its thread may begin later than we stop to wait
        assert await resolver("quick") == [PUBLIC]
        assert asked == ["slow", "quick"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_no_name, resolver)
            release.set()
        assert await resolver("quick") == [PUBLIC]
    assert asked == ["slow", "quick", "quick"]
    resolver.close()


async def _expect_no_name(resolver: SystemResolver) -> None:
    with pytest.raises(OSError, match="too late"):
        await resolver("slow")
