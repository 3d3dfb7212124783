"""Access tokens of a real issuer: what opens, what does not, and that all refusals say the same."""

import base64
import dataclasses
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.adapters import jwks, oauth
from outlast.domain import errors
from outlast.domain.owner import LOCAL_OWNER, Owner, Scope
from outlast.tests.acceptance.waiting import until
from outlast.tests.adapters.oauth_world import (
    ALGORITHMS,
    BOUND_S,
    EC,
    ROTATED,
    RSA,
    Clock,
    World,
    a_world,
    trusted,
)
from outlast.tests.support.issuing import AUDIENCE, Issuer, SigningKey, forged, issuing, signed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    async with a_world(EC, RSA) as made:
        yield made


# --- what opens


async def test_a_token_names_its_owner_what_it_may_do_and_until_when(world: World):
    ends = int(time.time()) + 600
    caller = await world.caller(world.issuer.token(exp=ends, scope="openid outlast:watch other"))
    assert caller.owner == Owner(world.issuer.url, "anna", "desk")
    assert caller.scopes == {Scope.WATCH}
    assert caller.until == datetime.fromtimestamp(ends + oauth.LEEWAY_S, UTC)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_each_algorithm_is_checked_with_the_keys_that_fit_it(algorithm: str):
    key = SigningKey.made("k", algorithm)
    async with a_world(key) as world:
        assert await world.opens(world.issuer.token())
        other = SigningKey.made("k", algorithm)
        assert not await world.opens(world.issuer.token(other))


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "outlast:call outlast:audit"}, {Scope.CALL, Scope.AUDIT}),
        ({"scope": None, "scp": "outlast:operate"}, {Scope.OPERATE}),
        ({"scope": None, "scp": ["outlast:call", "outlast:watch"]}, {Scope.CALL, Scope.WATCH}),
        ({"scope": ["outlast:call", 1, None]}, {Scope.CALL}),
        ({"scope": "call outlast: OUTLAST:CALL outlast:callx"}, set()),
        ({"scope": None}, set()),
        ({"scope": 5}, set()),
        ({"scope": "", "scp": "outlast:call"}, set()),
    ],
)
async def test_scopes_are_read_from_text_and_from_lists(
    world: World, claims: dict[str, Any], scopes: set[Scope]
):
    assert (await world.caller(world.issuer.token(**claims))).scopes == scopes


@pytest.mark.parametrize(
    ("given", "client"),
    [
        ({"client_id": "a", "azp": "b"}, "a"),
        ({"client_id": None, "azp": "b"}, "b"),
        ({"client_id": "", "azp": "b"}, "b"),
    ],
)
async def test_the_client_is_the_one_that_the_token_was_given_to(
    world: World, given: dict[str, Any], client: str
):
    assert (await world.caller(world.issuer.token(**given))).owner.client == client


async def test_the_claim_of_the_client_can_be_said():
    async with a_world(client_claims=("cid",)) as world:
        assert (await world.caller(world.issuer.token(cid="x"))).owner.client == "x"
        with pytest.raises(errors.Unauthenticated, match="no usable claim cid"):
            await world.caller(world.issuer.token())


@pytest.mark.parametrize("missing", ["sub", "client_id"])
@pytest.mark.parametrize("value", [None, "", 7, ["a"], "x" * 513])
async def test_a_good_token_that_names_nobody_is_told_what_it_lacks(
    world: World, missing: str, value: Any
):
    with pytest.raises(errors.Unauthenticated, match=f"no usable claim {missing}"):
        await world.caller(world.issuer.token(**{missing: value}))


async def test_one_audience_of_several_is_enough(world: World):
    assert await world.opens(world.issuer.token(aud=["https://other.example", AUDIENCE]))


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", None])
async def test_access_tokens_and_plain_ones_are_taken(world: World, kind: str | None):
    assert await world.opens(world.issuer.token(kind=kind))


async def test_clocks_may_be_a_little_apart(world: World):
    now = int(time.time())
    assert await world.opens(world.issuer.token(exp=now - 10))
    assert await world.opens(world.issuer.token(nbf=now + 10, iat=now + 10))


async def test_a_key_without_an_id_is_found_when_it_is_the_only_one_that_fits():
    key, other = SigningKey.made(None, "ES256"), SigningKey.made("named", "RS256")
    async with a_world(key, other) as world:
        assert await world.opens(world.issuer.token())
        world.issuer.keys.append(SigningKey.made(None, "ES256"))
        world.clock.now += 2 * jwks.FRESH_S
        assert not await world.opens(world.issuer.token())


# --- what does not


NOW = int(time.time())
MONTH_S = 30 * 86_400  # much longer than from here until the last test is run
BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "expired": {"exp": NOW - 3600},
    "no end": {"exp": None},
    "an end that is no number": {"exp": "soon"},
    "an end beyond all numbers": {"exp": float("inf")},
    "an end that is nothing": {"exp": float("nan")},
    "not yet": {"nbf": NOW + MONTH_S},
    "from the future": {"iat": NOW + MONTH_S},
    "for another": {"aud": "https://other.example/mcp"},
    "for a longer name": {"aud": f"{AUDIENCE}/x"},
    "for a shorter name": {"aud": AUDIENCE[:-1]},
    "for nobody": {"aud": None},
    "for an empty list": {"aud": []},
    "for a number": {"aud": 7},
    "for a list of numbers": {"aud": [7, AUDIENCE]},
    "from nobody": {"iss": None},
    "from another": {"iss": "https://other.example"},
    "from nearly ours": {"iss": "{url}/"},
    "from ours in capitals": {"iss": "{URL}"},
    "bound to a key": {"cnf": {"jkt": "x"}},
}


@pytest.mark.promise("only-tokens-for-this-service-open-it")
@pytest.mark.parametrize("wrong", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
async def test_a_well_signed_token_that_is_not_for_here_and_now_opens_nothing(
    world: World, wrong: dict[str, Any]
):
    url = world.issuer.url
    changed = dict(wrong)
    if isinstance(changed.get("iss"), str):
        changed["iss"] = changed["iss"].replace("{url}", url).replace("{URL}", url.upper())
    assert not await world.opens(world.issuer.token(**changed))


@pytest.mark.parametrize(
    ("kind", "claims"),
    [
        ("JWT", {"nonce": "n"}),
        ("JWT", {"at_hash": "x"}),
        (None, {"c_hash": "x"}),
        ("JWT", {"typ": "ID"}),
        ("JWT", {"token_use": "id"}),
        ("JWT", {"typ": "Refresh"}),
        ("logout+jwt", {}),
        ("secevent+jwt", {}),
        ("dpop+jwt", {}),
        (7, {}),
    ],
)
async def test_a_token_made_for_something_else_than_access_opens_nothing(
    world: World, kind: Any, claims: dict[str, Any]
):
    assert not await world.opens(world.issuer.token(kind=kind, **claims))


Forgery = Callable[[Issuer], str]


def _flipped(issuer: Issuer) -> str:
    head, body, signature = issuer.token().split(".")
    return f"{head}.{body}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


def _other_claims(issuer: Issuer) -> str:
    head, _, signature = issuer.token().split(".")
    return f"{head}.{issuer.token(sub='root').split('.')[1]}.{signature}"


def _mac(secret: bytes, kid: str) -> Forgery:
    return lambda issuer: forged(
        issuer.claims(), {"alg": "HS256", "typ": "at+jwt", "kid": kid}, secret
    )


def _unsigned(alg: Any) -> Forgery:
    return lambda issuer: forged(issuer.claims(), {"alg": alg, "typ": "at+jwt"})


def _under(**header: Any) -> Forgery:
    return lambda issuer: forged(issuer.claims(), header, b"x")


def _deep() -> str:
    return base64.urlsafe_b64encode(b"[" * 6000).decode().rstrip("=")


STRANGER = SigningKey.made("ec-1", "ES256")
FORGERIES: dict[str, Forgery] = {
    "alg none": _unsigned("none"),
    "alg None": _unsigned("None"),
    "no alg": _unsigned(None),
    "alg is a list": _unsigned(["ES256"]),
    "alg is an object": _unsigned({}),
    "HS256 under the public key": _mac(RSA.pem, "rsa-1"),
    "HS256 under the public key of the curve": _mac(EC.pem, "ec-1"),
    "HS256 under the JWK": _mac(json.dumps(RSA.jwk).encode(), "rsa-1"),
    "HS256 under nothing": _mac(b"", "rsa-1"),
    "RS256 named for a curve's key": _under(alg="RS256", kid="ec-1"),
    "ES256 named for an RSA key": _under(alg="ES256", kid="rsa-1"),
    "PS256 named for a key that is for RS256": lambda issuer: signed(
        issuer.claims(), SigningKey("rsa-1", "PS256", RSA.private)
    ),
    "ES384 named for a key of another curve": _under(alg="ES384", kid="ec-1"),
    "ES256K": _under(alg="ES256K", kid="ec-1"),
    "another's key under our id": lambda issuer: issuer.token(STRANGER),
    "a key that comes along": _under(alg="ES256", jwk=STRANGER.jwk, kid="x"),
    "a key URL that comes along": _under(alg="ES256", jku="http://127.0.0.1:1/k", kid="x"),
    "an id that is a path": _under(alg="ES256", kid="../../dev/null"),
    "an id that is no text": _under(alg="ES256", kid=7),
    "critical headers": _under(alg="ES256", kid="ec-1", crit=["exp"], exp=1),
    "no payload": _under(alg="ES256", kid="ec-1", b64=False, crit=["b64"]),
    "a flipped signature": _flipped,
    "others' claims under a good signature": _other_claims,
    "a signature cut off": lambda issuer: issuer.token().rsplit(".", 1)[0] + ".",
    "two segments": lambda issuer: issuer.token().rsplit(".", 1)[0],
    "four segments": lambda issuer: issuer.token() + ".x",
    "five segments": lambda issuer: "a.b.c.d.e",
    "padded": lambda issuer: issuer.token() + "=",
    "too long": lambda issuer: issuer.token(more="x" * 20_000),
    "no base64": lambda issuer: "!." + issuer.token(),
    "no JSON": lambda issuer: "AAAA.AAAA.AAAA",
    "deep JSON": lambda issuer: ".".join([_deep(), _deep(), "AAAA"]),
    "a list for claims": lambda issuer: forged([], {"alg": "ES256"}),
    "a list for a header": lambda issuer: forged(issuer.claims(), []),
}


@pytest.mark.promise("only-tokens-for-this-service-open-it")
@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
async def test_a_forged_token_opens_nothing(world: World, forge: Forgery):
    assert not await world.opens(forge(world.issuer))
    assert await world.opens(world.issuer.token())


async def test_only_the_algorithms_that_were_said_count_for_an_issuer():
    async with a_world(RSA, EC) as world:
        strict = dataclasses.replace(
            trusted(world.issuer, world.clock, world.issuer.jwks_url), algorithms=["RS256"]
        )
        world.identity = oauth.OAuthTokens([strict], "outlast:")
        assert await world.opens(world.issuer.token(RSA))
        assert not await world.opens(world.issuer.token(EC))


async def test_one_issuers_keys_say_nothing_for_another():
    """Two that are trusted alike: a token in the name of one, under the other's key and id."""
    async with issuing(EC) as first, issuing(ROTATED) as second:
        clock = Clock()
        both = [trusted(one, clock, one.jwks_url) for one in (first, second)]
        world = World(first, oauth.OAuthTokens(both, "outlast:"), clock)
        assert await world.opens(first.token())
        assert await world.opens(second.token())
        assert not await world.opens(first.token(ROTATED))
        assert not await world.opens(second.token(EC))
        one, other = [(await world.caller(it.token())).owner for it in (first, second)]
        assert one.key != other.key
        assert world.identity.knows(one.key)
        assert world.identity.knows(other.key)


async def test_only_owners_of_these_issuers_are_known(world: World):
    known = world.identity.knows
    assert known(Owner(world.issuer.url, "anybody", "any").key)
    for stranger in (LOCAL_OWNER.key, Owner("x", "anna", "desk").key, "", "[]", "{", "[1,2,3]"):
        assert not known(stranger)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer  ", "Basic {}", "{}"])
async def test_what_is_no_bearer_token_opens_nothing(world: World, authorization: str | None):
    given = authorization and authorization.format(world.issuer.token())
    with pytest.raises(errors.Unauthenticated):
        await world.identity.authenticate(given)
    assert world.issuer.looks == 0


async def test_why_a_token_is_refused_is_in_the_log_and_the_token_is_not(
    world: World, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    token = world.issuer.token(aud="https://other.example", sub="marked-subject")
    assert not await world.opens(token)
    assert "Audience doesn't match" in caplog.text
    for part in (*token.split("."), "marked-subject"):
        assert part not in caplog.text


async def test_a_token_that_was_good_a_moment_ago_is_good_until_its_end_and_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(oauth, "LEEWAY_S", 0)
    assert await world.opens(world.issuer.token())  # the keys are there
    token = world.issuer.token(exp=int(time.time()) + 10)
    assert await world.opens(token)

    async def is_over() -> bool:
        return not await world.opens(token)

    await until(is_over, BOUND_S)


async def test_only_so_many_tokens_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oauth, "VERIFIED_MAX", 2)
    for number in range(5):
        assert await world.opens(world.issuer.token(sub=f"s{number}"))
    assert len(world.identity._verified) == 2
