"""Who is asking: static tokens from a file, and the one local owner."""

import hashlib
from pathlib import Path

import pytest

from outlast.adapters.identity import (
    ISSUER,
    Identities,
    LocalIdentity,
    OperatorToken,
    StaticTokens,
)
from outlast.domain import errors
from outlast.domain.owner import LOCAL_CALLER, LOCAL_OWNER, Owner, Scope

pytestmark = pytest.mark.anyio

ANNA, BERT = "token-of-anna", "token-of-bert"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def entry(sha256: str, subject: str = "anna", more: str = "") -> str:
    return f'[[tokens]]\nsha256 = "{sha256}"\nsubject = "{subject}"\n{more}\n'


@pytest.fixture
def tokens(tmp_path: Path) -> StaticTokens:
    path = tmp_path / "tokens.toml"
    path.write_text(
        entry(digest(ANNA)) + entry(digest(BERT), "bert", 'client = "ci"'), encoding="utf-8"
    )
    return StaticTokens.read(path)


@pytest.mark.parametrize(
    ("authorization", "owner"),
    [
        (f"Bearer {ANNA}", Owner(ISSUER, "anna", "default")),
        (f"bearer {ANNA}", Owner(ISSUER, "anna", "default")),
        (f"BEARER  {ANNA} ", Owner(ISSUER, "anna", "default")),
        (f"Bearer {BERT}", Owner(ISSUER, "bert", "ci")),
    ],
)
async def test_a_token_names_its_owner(
    tokens: StaticTokens, authorization: str, owner: Owner
) -> None:
    assert (await tokens.authenticate(authorization)).owner == owner


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer    ",
        ANNA,
        f"Basic {ANNA}",
        f"Bearer {ANNA}x",
        f"Bearer {ANNA[:-1]}",
        f"Bearer {ANNA.upper()}",
        f"Bearer {ANNA}, Bearer {BERT}",
        f"Bearer {digest(ANNA)}",
        "Bearer t\u00f6k\u00e9n",
        "Bearer \ud800",
        "Bearer a\x00b",
    ],
)
async def test_anything_else_is_nobody(tokens: StaticTokens, authorization: str | None) -> None:
    with pytest.raises(errors.Unauthenticated):
        await tokens.authenticate(authorization)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "tokens: Field required"),
        ("tokens = []", "tokens: .*at least 1"),
        ("[[tokens]", "line 1"),
        ("tokens = 1", "tokens"),
        (entry("abc"), r"tokens\.0\.sha256"),
        (entry(digest(ANNA).upper()), r"tokens\.0\.sha256"),
        (entry(digest(ANNA), subject=""), r"tokens\.0\.subject"),
        (entry(digest(ANNA), more="role = 1"), r"tokens\.0\.role"),
        (entry(digest(ANNA), more='client = ""'), r"tokens\.0\.client"),
        (entry(digest(ANNA), more='scopes = ["all"]'), r"tokens\.0\.scopes\.0"),
        (entry(digest(ANNA), more="scopes = []"), r"tokens\.0\.scopes"),
        (entry(digest(ANNA)) + entry(digest(ANNA), "bert"), r"tokens\.1\.sha256: .*twice"),
        (entry(digest(ANNA)) + "[other]\n", "other"),
    ],
)
async def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(errors.ConfigurationError, match=f"(?s)tokens.toml.*{reason}"):
        StaticTokens.read(path)


async def test_a_token_put_in_place_of_its_digest_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("my-secret-token"), encoding="utf-8")
    with pytest.raises(errors.ConfigurationError) as refused:
        StaticTokens.read(path)
    assert "my-secret-token" not in str(refused.value)
    assert refused.value.__cause__ is None


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, binary):
        with pytest.raises(errors.ConfigurationError, match=path.name):
            StaticTokens.read(path)


async def test_a_token_may_do_what_the_file_says_and_by_default_call_and_watch(
    tokens: StaticTokens, tmp_path: Path
) -> None:
    usual = await tokens.authenticate(f"Bearer {ANNA}")
    assert (usual.scopes, usual.until) == (frozenset({Scope.CALL, Scope.WATCH}), None)
    path = tmp_path / "auditors.toml"
    path.write_text(entry(digest(ANNA), more='scopes = ["audit", "watch"]'), encoding="utf-8")
    auditor = await StaticTokens.read(path).authenticate(f"Bearer {ANNA}")
    assert auditor.scopes == frozenset({Scope.AUDIT, Scope.WATCH})


async def test_the_operators_token_may_operate_and_audit_and_has_no_tasks() -> None:
    operators = OperatorToken("the-operators'-token")
    caller = await operators.authenticate("bearer the-operators'-token")
    assert caller.scopes == frozenset({Scope.OPERATE, Scope.AUDIT})
    assert not operators.knows(caller.owner.key)
    for wrong in (None, "Bearer", "Bearer the-operators'-toke", "Basic the-operators'-token"):
        with pytest.raises(errors.Unauthenticated):
            await operators.authenticate(wrong)


async def test_of_several_ways_the_first_that_knows_the_caller_decides(
    tokens: StaticTokens,
) -> None:
    several = Identities([OperatorToken("op"), tokens])
    assert (await several.authenticate("Bearer op")).scopes == {Scope.OPERATE, Scope.AUDIT}
    anna = await several.authenticate(f"Bearer {ANNA}")
    assert anna.owner.subject == "anna"
    assert several.knows(anna.owner.key)
    assert not several.knows(LOCAL_OWNER.key)
    with pytest.raises(errors.Unauthenticated):
        await several.authenticate("Bearer nobody")


async def test_who_is_anonymous_may_do_what_is_said() -> None:
    guest = await LocalIdentity(frozenset({Scope.WATCH})).authenticate(None)
    assert (guest.owner, guest.scopes) == (LOCAL_OWNER, {Scope.WATCH})


@pytest.mark.parametrize("authorization", [None, "", f"Bearer {ANNA}", "nonsense"])
async def test_on_loopback_everybody_is_the_local_owner(authorization: str | None) -> None:
    assert await LocalIdentity().authenticate(authorization) == LOCAL_CALLER
