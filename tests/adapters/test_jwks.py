"""An issuer's keys over real HTTP: how often it is asked, and what is done while it fails."""

import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from outlast.adapters import jwks
from outlast.domain import errors
from outlast.tests.adapters.oauth_world import BOUND_S, EC, ROTATED, RSA, World, a_world
from outlast.tests.support.issuing import SigningKey

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with a_world(EC, RSA) as made:
        yield made


# --- the issuer's keys


async def test_keys_are_fetched_once_and_kept(world: World):
    for _ in range(20):
        assert await world.opens(world.issuer.token())
    world.clock.now += jwks.FRESH_S - 1
    assert await world.opens(world.issuer.token(RSA))
    assert world.issuer.looks == 1


@pytest.mark.promise("an-issuer-is-asked-seldom")
async def test_a_flood_of_unknown_keys_does_not_flood_the_issuer(world: World):
    stranger = SigningKey.made("nobody's", "ES256")
    assert await world.opens(world.issuer.token())
    for number in range(300):
        unknown = dataclasses.replace(stranger, id=f"unknown-{number}")
        assert not await world.opens(world.issuer.token(unknown))
    assert world.issuer.looks == 1
    world.clock.now += jwks.PAUSE_S
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            unknown = dataclasses.replace(stranger, id=f"more-{number}")
            tasks.start_soon(world.opens, world.issuer.token(unknown))
    assert world.issuer.looks == 2


async def test_all_who_wait_share_one_look_and_one_who_goes_takes_it_from_nobody():
    async with a_world() as world:
        world.issuer.behaves = "slow"
        came: list[bool] = []

        async def come() -> None:
            came.append(await world.opens(world.issuer.token()))

        with anyio.CancelScope() as impatient:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come)
                while world.issuer.looks == 0:
                    await anyio.lowlevel.checkpoint()
                impatient.cancel()
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(come)
            await anyio.lowlevel.checkpoint()
            world.issuer.behaves = "well"
            world.issuer.resumed.set()
        assert (came, world.issuer.looks) == ([True] * 10, 1)


@pytest.mark.promise("an-issuer-is-asked-seldom")
async def test_a_new_key_is_found_when_it_is_first_used(world: World):
    assert await world.opens(world.issuer.token())
    world.issuer.keys[:] = [ROTATED, RSA]
    assert not await world.opens(world.issuer.token(ROTATED))  # too early for another look
    world.clock.now += jwks.PAUSE_S
    assert await world.opens(world.issuer.token(ROTATED))
    assert not await world.opens(world.issuer.token(EC))


async def test_a_key_that_is_taken_back_is_soon_good_for_nothing(world: World):
    assert await world.opens(world.issuer.token(EC))
    world.issuer.keys[:] = [ROTATED]
    world.clock.now += 2 * jwks.FRESH_S
    assert not await world.opens(world.issuer.token(EC))


async def test_a_key_past_its_time_is_used_while_it_is_looked_up(world: World):
    assert await world.opens(world.issuer.token(EC))
    world.issuer.behaves = "slow"
    world.clock.now += jwks.FRESH_S
    assert await world.opens(world.issuer.token(EC))
    with anyio.fail_after(BOUND_S):
        while world.issuer.looks < 2:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("an-issuer-that-is-down-keeps-nobody-out")
@pytest.mark.parametrize("how", ["down", "huge", "many", "redirects", "garbled", "compressed"])
async def test_while_the_issuer_fails_its_last_keys_are_good_for_a_bounded_time(
    world: World, how: str
):
    assert await world.opens(world.issuer.token())
    world.issuer.behaves = how
    for _ in range(3):
        world.clock.now += 2 * jwks.FRESH_S
        assert await world.opens(world.issuer.token())
        assert not await world.opens(world.issuer.token(ROTATED))
    world.clock.now += jwks.STALE_S_MAX
    with pytest.raises(errors.IdentityUnavailable):
        await world.caller(world.issuer.token())
    assert "/elsewhere" not in world.issuer.asked
    world.issuer.behaves = "well"
    world.clock.now += jwks.PAUSE_S
    assert await world.opens(world.issuer.token())


@pytest.mark.parametrize("how", ["down", "huge", "many", "redirects", "garbled", "compressed"])
async def test_without_any_keys_nobody_is_let_in_and_nobody_called_a_liar(how: str):
    async with a_world() as world:
        world.issuer.behaves = how
        for _ in range(20):
            with pytest.raises(errors.IdentityUnavailable):
                await world.caller(world.issuer.token())
        assert world.issuer.looks == 1


async def test_a_slow_issuer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jwks, "FETCH_S_MAX", 0.05)
    async with a_world() as world:
        world.issuer.behaves = "slow"
        with pytest.raises(errors.IdentityUnavailable):
            await world.caller(world.issuer.token())


@pytest.mark.parametrize(
    "jwk",
    [
        None,
        7,
        {},
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "kid": "bad"},
        {**SigningKey.made("bad", "RS256", 1024).jwk},
        {**SigningKey.made("bad").jwk, "use": "enc"},
        {**SigningKey.made("bad").jwk, "key_ops": ["sign"]},
        SigningKey.made("bad").private_jwk,
        SigningKey.made("bad", "RS256").private_jwk,
        SigningKey.made("bad", "EdDSA").private_jwk,
        {**SigningKey.made("bad").jwk, "x": 7},
        {**SigningKey.made("bad").jwk, "crv": "P-384"},
        {**SigningKey.made("bad").jwk, "kid": ["bad"]},
        {**SigningKey.made("bad").jwk, "kty": ["EC"]},
        {**SigningKey.made("bad", "RS256").jwk, "n": 5},
        {**SigningKey.made("bad", "RS256").jwk, "e": "AAAA"},
        {**SigningKey.made("bad", "RS256").jwk, "alg": "RSA-OAEP"},
    ],
)
async def test_keys_that_are_of_no_use_here_are_passed_over(jwk: Any):
    async with a_world() as world:
        world.issuer.further = [jwk]
        assert await world.opens(world.issuer.token())
        assert len(jwks.usable({"keys": [jwk]})) == 0


# --- where the keys are


PLACES = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]


@pytest.mark.parametrize("place", PLACES)
async def test_the_keys_are_found_through_the_issuers_metadata(place: str):
    async with a_world(metadata=place, discovers=True) as world:
        assert await world.opens(world.issuer.token())
        assert await world.opens(world.issuer.token())
        assert world.issuer.asked[-2:] == [place, "/keys"]
        asked = len(world.issuer.asked)
        world.clock.now += 2 * jwks.FRESH_S
        assert await world.opens(world.issuer.token())
        assert world.issuer.asked[asked:] == ["/keys"]


@pytest.mark.parametrize(
    "lie", [{"named": "https://other.example"}, {"key_url": "http://keys.example/k"}]
)
async def test_metadata_of_another_issuer_or_without_https_leads_nowhere(lie: dict[str, str]):
    async with a_world(metadata=PLACES[0], discovers=True) as world:
        for name, value in lie.items():
            setattr(world.issuer, name, value)
        with pytest.raises(errors.IdentityUnavailable):
            await world.caller(world.issuer.token())
        assert world.issuer.looks == 0


@pytest.mark.parametrize(
    ("issuer", "urls"),
    [
        (
            "https://a.example",
            [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration",
            ],
        ),
        (
            "https://a.example/t/1/",
            [
                "https://a.example/.well-known/oauth-authorization-server/t/1",
                "https://a.example/.well-known/openid-configuration/t/1",
                "https://a.example/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
async def test_metadata_is_looked_for_where_the_standards_put_it(issuer: str, urls: list[str]):
    assert jwks.discovery_urls(issuer) == urls


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://a.example/k", True),
        ("http://127.0.0.1:8/k", True),
        ("http://localhost/k", True),
        ("http://[::1]/k", True),
        ("http://a.example/k", False),
        ("http://localhost.example/k", False),
        ("https://u:p@a.example/k", False),
        ("https:///k", False),
        ("https://a.example:x/k", False),
        ("https://[a/k", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
async def test_keys_come_over_https_alone_but_on_loopback(url: str, is_safe: bool):
    assert jwks.is_safe_url(url) is is_safe
