"""`events/subscribe` and `events/unsubscribe`: what is judged and granted, and in which order."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlast.delivery.events import types
from outlast.delivery.port import EventsRequest
from outlast.delivery.webhook import signing
from outlast.delivery.webhook.exchange import Outcome
from outlast.delivery.webhook.vault import Vault
from outlast.domain import draft, errors
from outlast.tests.delivery.subscribing import RAW, URL, Endpoint, asks, delivery, strict
from outlast.tests.delivery.webhook_world import (
    ALICE,
    BOB,
    KEY,
    SECRET,
    Made,
    now,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint() as made:
        yield made


async def test_the_checks_come_in_an_order_that_tells_a_probe_little(
    made: Made, endpoint: Endpoint
):
    here, publisher = made
    methods = strict(here, endpoint, most_per_owner=1)
    theirs, ours = await publisher.opened(owner=BOB), await publisher.opened(owner=ALICE)
    endpoint.answer = Outcome(500, "http_5xx")
    wrong: dict[str, Any] = {
        "name": "no.such",
        "arguments": {"no": "such"},
        "delivery": {"mode": "push", "url": "http://10.0.0.1/", "secret": "short"},
        "ttlMs": "long",
        "cursor": 7,
    }
    good = delivery(secret="short", url="http://hooks.example/")
    steps: list[tuple[dict[str, Any], type[Exception], str | None]] = [
        ({}, errors.EventNotFound, None),
        ({"name": draft.TASK_UPDATED}, errors.Unsupported, None),
        ({"delivery": good}, errors.InvalidCall, "arguments"),
        ({"arguments": {"taskId": theirs}}, errors.InvalidCall, "delivery.url"),
        ({"delivery": delivery(secret="short")}, errors.InvalidCall, "secret"),
        ({"delivery": delivery()}, errors.InvalidCall, "ttlMs"),
        ({"ttlMs": 60_000}, errors.InvalidCall, "cursor"),
        ({"cursor": None}, errors.TaskNotFound, None),
    ]
    with pytest.raises(errors.Forbidden):
        await methods.subscribe(EventsRequest(ALICE, False, 1, wrong))
    for change, error, text in steps:
        wrong |= change
        with pytest.raises(error, match=text):
            await methods.subscribe(EventsRequest(ALICE, True, 1, wrong))
    assert not endpoint.posted
    wrong |= {"arguments": {"taskId": ours}}
    with pytest.raises(errors.EndpointNotVerified) as refused:
        await methods.subscribe(EventsRequest(ALICE, True, 1, wrong))
    assert refused.value.data == {"reason": "http_5xx"}
    assert len(endpoint.posted) == 1
    assert await here.subscriptions.count(ALICE) == 0


async def test_the_quota_is_looked_at_before_anything_is_posted(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint, most_per_owner=1)
    await methods.subscribe(asks())
    with pytest.raises(errors.TooManySubscriptions) as refused:
        await methods.subscribe(asks(delivery=delivery(url="https://other.example/")))
    assert refused.value.data == {"limit": "subscriptions", "max": 1}
    assert endpoint.posted == [URL]
    await methods.subscribe(asks())
    await methods.subscribe(asks(BOB))


async def test_the_quota_of_all_owners_is_looked_at_before_anything_is_posted(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint, most_in_all=1)
    await methods.subscribe(asks())
    with pytest.raises(errors.TooManySubscriptions) as refused:
        await methods.subscribe(asks(BOB))
    assert refused.value.data == {"limit": "subscriptions_in_all", "max": 1}
    assert endpoint.posted == [URL]
    await methods.subscribe(asks())


async def test_a_mode_that_is_none_or_another_is_told_apart(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint)
    for given in (None, "webhook", [], {"url": URL}, delivery(mode=None), delivery(mode=1)):
        with pytest.raises(errors.InvalidCall):
            await methods.subscribe(asks(delivery=given))
    with pytest.raises(errors.Unsupported) as refused:
        await methods.subscribe(asks(delivery=delivery(mode="push")))
    assert refused.value.data == {"feature": "deliveryMode", "value": "push"}


async def test_a_secret_is_taken_in_every_spelling_of_base64(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint)
    for key in (RAW, RAW[:24], bytes(64), RAW[:25]):
        standard = base64.b64encode(key).decode()
        for text in (standard, standard.translate(str.maketrans("+/", "-_"))):
            for spelling in (text, text.rstrip("=")):
                granted = await methods.subscribe(
                    asks(delivery=delivery(secret=f"whsec_{spelling}"))
                )
                stored = await here.subscriptions.get(granted["id"])
                assert stored is not None
                assert Vault(KEY).open(stored.secret, granted["id"]) == key


BAD_SECRETS: list[Any] = [
    *(None, 7, "", "whsec_", "whsec_!", SECRET.removeprefix("whsec_"), f"v1,{SECRET}"),
    *(SECRET.upper(), SECRET + "\n", " " + SECRET, SECRET[:-8] + "*" + SECRET[-7:]),
    *(signing.spell_secret(bytes(23)), signing.spell_secret(bytes(65))),
]


async def test_a_bad_secret_is_refused_with_nothing_stored_and_nothing_posted(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint)
    texts: set[str] = set()
    for secret in BAD_SECRETS:
        for call in (
            methods.subscribe(asks(delivery=delivery(secret=secret))),
            methods.judge(asks(), {"url": URL, "secret": secret}),
        ):
            with pytest.raises(errors.InvalidCall) as refused:
                await call
            texts.add(str(refused.value))
    assert len(texts) == 1
    assert not endpoint.posted
    assert await here.subscriptions.find() == []


BAD_URLS: list[Any] = [
    *(None, 7, "", "hooks.example", "ftp://hooks.example/", "http://hooks.example/"),
    *("https://me:pw@hooks.example/", "https://hooks.example/#part", "https://hooks.example#"),
    *("https://93.184.216.34/", "https://[2606:2800:220:1::1]/", "https://0x5db8d822/"),
    *("https://127.0.0.1/", "http://localhost/", "https://hooks.example:8443/"),
    *("https://hooks.example\\@evil.example/", "https://hooks.example/ x", "https:///x"),
    "https://" + "a" * 3_000 + ".example/",
]


async def test_a_url_that_no_webhook_may_have_is_refused_and_never_posted_to(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint)
    texts: set[str] = set()
    for url in BAD_URLS:
        for call in (
            methods.subscribe(asks(delivery=delivery(url=url))),
            methods.unsubscribe(asks(delivery=delivery(url=url))),
            methods.judge(asks(), {"url": url, "secret": SECRET}),
        ):
            with pytest.raises(errors.InvalidCall) as refused:
                await call
            texts.add(str(refused.value))
    # One text for what is no string, and one for all the rest: it tells nothing of our network.
    assert len(texts) == 2
    assert not endpoint.posted


async def test_time_is_granted_as_wished_and_clamped(made: Made, endpoint: Endpoint):
    here, _ = made
    at = now().replace(microsecond=0)
    methods = strict(
        here, endpoint, clock=lambda: at, ttl_s_default=600.0, ttl_s_max=3_600.0, most_per_owner=99
    )
    wishes: list[tuple[dict[str, Any], float]] = [
        ({}, 600),
        ({"ttlMs": 120_000}, 120),
        ({"ttlMs": 120_000.5}, 120),
        ({"ttlMs": None}, 3_600),
        ({"ttlMs": 10**18}, 3_600),
        ({"ttlMs": 10**400}, 3_600),
        ({"ttlMs": 1}, 60),
        ({"ttlMs": 0}, 60),
    ]
    for wish, seconds in wishes:
        granted = await methods.subscribe(asks(**wish))
        until = datetime.fromisoformat(granted["refreshBefore"])
        assert abs((until - at).total_seconds() - seconds) < 0.01, wish
    for bad in ("1", True, -1, float("nan"), [], {}):
        with pytest.raises(errors.InvalidCall):
            await methods.subscribe(asks(ttlMs=bad))


async def test_a_caller_who_could_be_anybody_is_refused_whatever_it_asks(
    made: Made, endpoint: Endpoint
):
    here, _ = made
    methods = strict(here, endpoint)
    anybody = replace(asks(), is_authenticated=False)
    for call in (
        methods.subscribe(anybody),
        methods.unsubscribe(anybody),
        methods.judge(anybody, delivery()),
    ):
        with pytest.raises(errors.Forbidden) as refused:
            await call
        assert refused.value.data == {"reason": "unauthenticated"}
    assert not endpoint.posted


async def test_equal_arguments_are_one_subscription(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint)
    none = asks()
    absent = EventsRequest(ALICE, True, 1, {key: none.params[key] for key in ("name", "delivery")})
    ids = {(await methods.subscribe(each))["id"] for each in (none, asks(arguments=None), absent)}
    assert len(ids) == 1
    both = [{"tools": ["a"], "statuses": ["working"]}, {"statuses": ["working"], "tools": ["a"]}]
    assert len({(await methods.subscribe(asks(arguments=each)))["id"] for each in both}) == 1
    assert types.canonical({"a": 1, "b": 1e2}) == types.canonical({"b": 100, "a": 1.0})
    assert await here.subscriptions.count(ALICE) == 2
    for other in (
        asks(name=draft.TASK_FINISHED),
        asks(delivery=delivery(url=URL + "/")),
        asks(BOB),
    ):
        assert (await methods.subscribe(other))["id"] not in ids


async def test_unsubscribing_needs_the_very_key(made: Made, endpoint: Endpoint):
    here, _ = made
    methods = strict(here, endpoint)
    await methods.subscribe(asks())
    bare = {"url": URL}
    for other in (
        asks(BOB, delivery=bare),
        asks(name=draft.TASK_FINISHED, delivery=bare),
        asks(arguments={"tools": ["a"]}, delivery=bare),
        asks(delivery={"url": URL + "/"}),
    ):
        with pytest.raises(errors.EventNotFound) as refused:
            await methods.unsubscribe(other)
        assert refused.value.data == {"kind": "subscription"}
    with pytest.raises(errors.EventNotFound) as refused:
        await methods.unsubscribe(asks(name="no.such", delivery=bare))
    assert refused.value.data == {"kind": "event"}
    assert await methods.unsubscribe(asks(delivery=bare)) == {}
    # With its last subscription the verification has gone too.
    await methods.subscribe(asks())
    assert len(endpoint.posted) == 2


async def test_a_call_webhook_needs_its_parts_and_nothing_of_the_tools_arguments(
    made: Made, endpoint: Endpoint
):
    here, publisher = made
    methods = strict(here, endpoint)
    for given in (None, "https://hooks.example/", [], {}, {"url": URL}, {"secret": SECRET}):
        with pytest.raises(errors.InvalidCall):
            await methods.judge(asks(), given)
    call = EventsRequest(ALICE, True, 1, {"name": "build", "arguments": {"n": 2**60}})
    followed = await methods.judge(call, {"url": URL, "secret": SECRET})
    assert await here.subscriptions.count(ALICE) == 0
    task_id = await publisher.opened(owner=ALICE)
    await followed.follow(task_id)
    await followed.follow(task_id)
    await publisher.ends(task_id)
    assert await here.subscriptions.count(ALICE) == 1
    assert await here.outbox.waiting() == 4  # three events, and the end
    same = await methods.subscribe(asks(arguments={"taskId": task_id}))
    (stored,) = await here.subscriptions.find(owner=ALICE)
    assert (same["id"], stored.former_secret) == (stored.id, None)
    assert len(endpoint.posted) == 1
    assert timedelta(days=29) > (stored.refresh_before or now()) - now() > timedelta(hours=23)


async def test_a_secret_of_another_key_is_told_and_a_former_one_is_left_out():
    old, new = Vault("the former key"), Vault(KEY)
    sealed = old.seal(RAW, "sub")
    assert RAW not in sealed
    assert old.seal(RAW, "other") != sealed
    with pytest.raises(errors.ConfigurationError) as refused:
        new.open(sealed, "sub")
    assert "former key" not in str(refused.value)
    with pytest.raises(errors.ConfigurationError):
        new.open_all([sealed], "sub")
    assert new.open_all([new.seal(RAW, "sub"), sealed], "sub") == [RAW]
    assert old.open_all([sealed, old.seal(bytes(24), "sub")], "sub") == [RAW, bytes(24)]
    with pytest.raises(errors.ConfigurationError):
        old.open(sealed, "other")
