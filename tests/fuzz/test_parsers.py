"""Generated texts against what reads cursors and tokens: refused, or what they stand for."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from outlast.adapters import oauth
from outlast.adapters.identity import StaticTokens
from outlast.adapters.jwks import Key, KeyRing, usable
from outlast.delivery.events.cursors import Cursors
from outlast.domain import errors
from outlast.tests.fuzz.campaign import Campaign
from outlast.tests.fuzz.chance import Chance
from outlast.tests.service.isolation_world import EVERY, KEY_ID, RESOURCE, USUAL, Issuer
from outlast.tests.service.test_owners import token_file

OWNERS = ('["i","alice","c"]', '["i","bob","c"]', "", "\ud800")
POSITIONS = (0, 1, 2**31, 2**63, 2**64 - 1)
GOOD_HEADER = {"alg": "ES256", "kid": KEY_ID, "typ": "at+jwt"}
TOKENS = {"alice-token-5c1e": ("alice", "desk"), "bob-token-31d0": ("bob", "desk")}


class Texts:
    """Spellings of one cursor, opened for one owner."""

    def __init__(self) -> None:
        self._cursors = Cursors("a key", 7)
        self._others = (Cursors("another key", 7), Cursors("a key", 8))
        self.last = ""

    def trial(self, chance: Chance) -> str:
        owner, position = chance.choice(OWNERS), chance.choice(POSITIONS)
        maker = chance.choice((*[self._cursors] * 4, *self._others))
        text: object = maker.seal(owner, position)
        for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
            text = chance.mutated(text)
        self.last = str(text)
        reader = chance.choice((*[owner] * 4, *OWNERS))
        found = self._cursors.open(reader, self.last)
        if found is None:
            is_good = maker is self._cursors and self.last == maker.seal(owner, position)
            assert not (is_good and reader == owner), "a good cursor was not known again"
            return "refused"
        assert self.last == self._cursors.seal(reader, found), "a second spelling of a cursor"
        return "opened"


@pytest.mark.promise("no-input-makes-it-stumble")
def test_no_text_is_a_cursor_but_those_that_were_sealed():
    texts = Texts()
    Campaign.of_environment().run("cursors", texts.trial, lambda: repr(texts.last))


class Tokens:
    """Spellings of an Authorization header, of one token or of none."""

    def __init__(self, path: Path) -> None:
        path.write_text(token_file(TOKENS))
        self._tokens = StaticTokens.read(path)
        self.last: str | None = None

    def trial(self, chance: Chance) -> str:
        token = chance.choice((*TOKENS, chance.string(), chance.string()))
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        given: object = chance.choice((f"Bearer {token}", f"Bearer {digest}", token, None))
        for _ in range(chance.randrange(3)):
            given = chance.mutated(given)
        self.last = None if given is None else str(given)
        try:
            anyio.run(self._tokens.authenticate, self.last)
        except errors.Unauthenticated:
            assert self.last not in {f"Bearer {good}" for good in TOKENS}
            return "refused"
        scheme, _, value = (self.last or "").partition(" ")
        assert (scheme.lower(), value.strip() in TOKENS) == ("bearer", True), "a token of nobody's"
        return "known"


@pytest.mark.promise("no-input-makes-it-stumble")
def test_no_header_is_a_token_but_those_of_the_file(tmp_path: Path):
    tokens = Tokens(tmp_path / "tokens.toml")
    Campaign.of_environment().run("tokens", tokens.trial, lambda: repr(tokens.last))


class Claims:
    """Access tokens: whatever an issuer could sign, and whatever others could make of it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._issuer = Issuer("https://issuer.example/one")
        ring = KeyRing(self._issuer.url, self._fetched)
        trusted = oauth.Issuer(self._issuer.url, [RESOURCE], ["ES256"], ring)
        self._tokens = oauth.OAuthTokens([trusted], "outlast:")
        self.last = ""

    def trial(self, chance: Chance) -> str:
        given = self._issuer.claims("alice", "desk", chance.choice((USUAL, EVERY, "")))
        claims, header = given, GOOD_HEADER
        for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
            claims = chance.mutated(claims)
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            header = chance.mutated(header)
        text = ".".join(_part(chance.encoded(each)) for each in (header, claims))
        good = f"{text}.{_part(self._signed(text))}"
        token = good
        if chance.one_in(3):
            token = chance.damaged(good.encode()).decode("utf-8", "replace")
        self.last = f"Bearer {token}"
        try:
            caller = self._runner.run(self._tokens.authenticate(self.last))
        except errors.Unauthenticated:
            is_good = token == good and claims == given and header == GOOD_HEADER
            assert not is_good, "a good token was refused"
            return "refused"
        # Base64 has bits to spare: what counts is what was signed.
        assert token.strip().rpartition(".")[0] == text, "a token was taken that nobody signed"
        named = json.loads(caller.owner.key)
        assert named == [claims["iss"], claims["sub"], claims.get("client_id", claims.get("azp"))]
        assert claims["iss"] == self._issuer.url
        return "known"

    async def _fetched(self) -> Sequence[Key]:
        return usable({"keys": [self._issuer.jwk]})

    def _signed(self, text: str) -> bytes:
        """By the issuer's key, whatever it says: the library would refuse to sign much of it."""
        der = self._issuer.key.sign(text.encode(), ec.ECDSA(hashes.SHA256()))
        return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(der))


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


@pytest.mark.promise("no-input-makes-it-stumble")
def test_no_token_is_taken_but_those_that_an_issuer_signed():
    with asyncio.Runner() as runner:
        claims = Claims(runner)
        Campaign.of_environment().run("claims", claims.trial, lambda: repr(claims.last))
