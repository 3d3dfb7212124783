"""Signatures, judged by verifiers that are not ours, and by what must not pass."""

import base64
import hashlib
import hmac
import json
import math
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.webhook import signing
from outlast.domain import errors
from outlast.tests.support import node

HERE = Path(__file__).resolve().parent
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
STAMP = int(NOW.timestamp())
# Its base64 has both characters in which the alphabets differ, and its length asks for padding.
SECRET = b"\xfb\xff\xbf" + bytes(range(29))
OTHER = bytes(range(100, 132))
BODY = '{"eventId":"evt_1","name":"task.finished","data":{"text":"Zoë ✓"}}'.encode()
NODE_S_MAX = 30.0


def headers_of(
    *secrets: bytes, body: bytes = BODY, stamp: int = STAMP, webhook_id: str = "evt_1"
) -> dict[str, str]:
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": signing.sign(secrets or (SECRET,), webhook_id, stamp, body),
    }


def spellings(secret: bytes) -> list[str]:
    standard, url_safe = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
    texts = [standard, url_safe, standard.rstrip(b"="), url_safe.rstrip(b"=")]
    return ["whsec_" + text.decode() for text in texts]


def refusal(*secrets: bytes, now: datetime = NOW, body: bytes = BODY, **changed: Any) -> str:
    """What `verify` says of a good message that was changed; nothing if it still accepts it."""
    given_headers = headers_of() | {name.replace("_", "-"): text for name, text in changed.items()}
    try:
        signing.verify(secrets or (SECRET,), given_headers, body, now)
    except signing.SignatureRefused as refused:
        return refused.reason.value
    return ""


# Secrets


def test_a_secret_is_read_in_every_spelling_of_base64():
    assert len(set(spellings(SECRET))) == 4
    assert [signing.parse_secret(text) for text in spellings(SECRET)] == [SECRET] * 4


@given(st.binary(min_size=24, max_size=64))
def test_every_secret_of_lawful_length_survives_its_spellings(secret: bytes):
    assert {signing.parse_secret(text) for text in spellings(secret)} == {secret}
    assert signing.parse_secret(signing.spell_secret(secret)) == secret


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_====",
        spellings(bytes(23))[0],
        spellings(bytes(65))[0],
        spellings(SECRET)[0].removeprefix("whsec_"),
        "v1," + spellings(SECRET)[0],
        "WHSEC_" + spellings(SECRET)[0].removeprefix("whsec_"),
        spellings(SECRET)[0] + "\n",
        " " + spellings(SECRET)[0],
        spellings(SECRET)[0] + "==",
        spellings(SECRET)[0].replace("A", "!"),
        spellings(SECRET)[2] + "AA",
        "whsec_" + "é" * 44,
        "whsec_" + "\ud800" * 44,
        None,
        42,
        ["whsec_"],
    ],
)
def test_what_is_no_secret_is_refused_without_being_repeated(text: object):
    with pytest.raises(errors.InvalidCall) as caught:
        signing.parse_secret(text)
    assert "24 to 64" in str(caught.value)
    bare = str(text).removeprefix("whsec_")
    assert len(bare) < 8 or bare not in str(caught.value)


def test_a_new_secret_is_lawful_and_new():
    texts = {signing.new_secret() for _ in range(20)}
    assert len(texts) == 20
    assert {len(signing.parse_secret(text)) for text in texts} == {32}


@pytest.mark.parametrize("secret", [b"", bytes(23), bytes(65)])
def test_a_key_that_is_too_short_or_too_long_neither_signs_nor_verifies(secret: bytes):
    with pytest.raises(ValueError, match="24 to 64"):
        signing.sign([secret], "evt_1", STAMP, BODY)
    with pytest.raises(ValueError, match="24 to 64"):
        signing.verify([secret], headers_of(), BODY, NOW)


# v1


def test_the_signature_is_the_hmac_of_id_timestamp_and_raw_body():
    content = b"evt_1." + str(STAMP).encode() + b"." + BODY
    mac = base64.b64encode(hmac.new(SECRET, content, hashlib.sha256).digest()).decode()
    assert signing.sign([SECRET], "evt_1", STAMP, BODY) == f"v1,{mac}"


def test_a_good_message_is_accepted_whatever_the_case_of_its_header_names():
    shouting = {name.upper(): value for name, value in headers_of().items()}
    signing.verify([SECRET], shouting, BODY, NOW)


@given(body=st.binary(max_size=300), secret=st.binary(min_size=24, max_size=64))
def test_what_was_signed_verifies_whatever_the_bytes(body: bytes, secret: bytes):
    signing.verify([secret], headers_of(secret, body=body), body, NOW)


@given(at=st.integers(0, len(BODY) - 1), flip=st.integers(1, 255))
def test_no_changed_byte_of_the_body_passes(at: int, flip: int):
    changed = BODY[:at] + bytes([BODY[at] ^ flip]) + BODY[at + 1 :]
    assert refusal(body=changed) == "forged"


def test_neither_another_id_nor_a_new_stamp_passes():
    assert refusal(webhook_id="evt_2") == "forged"
    assert refusal(webhook_timestamp=str(STAMP + 1)) == "forged"


def test_while_a_secret_is_replaced_old_and_new_both_verify():
    rotating = headers_of(OTHER, SECRET)
    assert rotating["webhook-signature"].count("v1,") == 2
    signing.verify([SECRET], rotating, BODY, NOW)
    signing.verify([OTHER], rotating, BODY, NOW)
    signing.verify([bytes(32), OTHER], rotating, BODY, NOW)
    with pytest.raises(signing.SignatureRefused):
        signing.verify([bytes(32)], rotating, BODY, NOW)


GOOD = headers_of()["webhook-signature"]
WRONG = headers_of(OTHER)["webhook-signature"]


@pytest.mark.parametrize(
    "signatures",
    [
        f"{WRONG} {GOOD}",
        f"{WRONG}, {GOOD}",
        f"{WRONG},{GOOD}",
        f"  {WRONG}   {GOOD}  ",
        f"v2,{'A' * 44} {GOOD}",
        f"v1,not-base64!! {GOOD}",
        f"v1, {GOOD}",
        f"v1 {GOOD}",
        f"v1,A {GOOD}",
        f"nonsense {GOOD}",
        f"v1a,{'A' * 86}== {GOOD}",
        f"v1,Zoë {GOOD}",
        GOOD.rstrip("="),
        GOOD.replace("+", "-").replace("/", "_"),
    ],
)
def test_any_good_entry_is_found_whatever_stands_before_it(signatures: str):
    assert refusal(webhook_signature=signatures) == ""


@pytest.mark.parametrize(
    "signatures",
    [
        WRONG,
        "v1,",
        ",",
        "v1",
        GOOD.removeprefix("v1,"),
        "V1," + GOOD.removeprefix("v1,"),
        "v2," + GOOD.removeprefix("v1,"),
        "v1a," + GOOD.removeprefix("v1,"),
        "xv1," + GOOD.removeprefix("v1,"),
        GOOD[:-8],
        GOOD + "AAAA",
        "v1," + base64.b64encode(hmac.digest(b"", BODY, "sha256")).decode(),
        "\u0661",
    ],
)
def test_no_other_entry_passes(signatures: str):
    assert refusal(webhook_signature=signatures) == "forged"


def test_a_flood_of_entries_is_not_read_to_its_end():
    assert refusal(webhook_signature=f"{WRONG} " * 31 + GOOD) == ""
    assert refusal(webhook_signature=f"{WRONG} " * 32 + GOOD) == "forged"


def test_no_secret_at_all_accepts_nothing():
    with pytest.raises(signing.SignatureRefused):
        signing.verify([], headers_of(), BODY, NOW)
    with pytest.raises(ValueError, match="at least one"):
        signing.sign([], "evt_1", STAMP, BODY)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_message_without_one_of_its_headers_is_malformed(name: str, value: str | None):
    changed = {key: text for key, text in headers_of().items() if key != name}
    if value is not None:
        changed[name] = value
    with pytest.raises(signing.SignatureRefused) as caught:
        signing.verify([SECRET], changed, BODY, NOW)
    assert caught.value.reason is signing.Refusal.MALFORMED


@pytest.mark.parametrize(
    "stamp", ["nan", "inf", "-1", "+1", "1.5", "1.2e9", "0x1", " ", "١٢", "9" * 13, f"{STAMP} "]
)
def test_a_timestamp_that_is_not_whole_seconds_is_malformed(stamp: str):
    assert refusal(webhook_timestamp=stamp) == "malformed"


@pytest.mark.parametrize("webhook_id", ["a b", "a\nb", "evt_é", 'evt_{"', "x" * 257])
def test_an_id_that_is_no_id_is_malformed(webhook_id: str):
    assert refusal(webhook_id=webhook_id) == "malformed"


def test_a_part_of_a_body_cannot_pass_as_another_id():
    # The same signed bytes, cut at another place: a fresh stamp for an old message.
    later = STAMP + 9_000
    body = f'{{"a":"x.{later}.{{}}'.encode()
    signed = headers_of(body=body)
    moved = signed | {"webhook-id": f'evt_1.{STAMP}.{{"a":"x', "webhook-timestamp": str(later)}
    with pytest.raises(signing.SignatureRefused):
        signing.verify([SECRET], moved, b"{}", NOW + timedelta(seconds=9_000))


@pytest.mark.parametrize("webhook_id", ["", "a.b", "a b", "evt_é", "x" * 129])
def test_an_id_that_could_blur_the_signed_bytes_is_never_signed(webhook_id: str):
    with pytest.raises(ValueError, match="webhook-id"):
        signing.sign([SECRET], webhook_id, STAMP, BODY)


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(0, ""), (300, ""), (301, "stale"), (86_400, "stale"), (-300, ""), (-301, "stale")],
)
def test_a_message_is_good_for_five_minutes_in_either_direction(age_s: int, expected: str):
    assert refusal(now=NOW + timedelta(seconds=age_s)) == expected


@pytest.mark.parametrize("tolerance_s", [math.nan, math.inf, -math.inf, -1.0])
def test_a_tolerance_that_would_switch_the_check_off_is_refused(tolerance_s: float):
    with pytest.raises(ValueError, match="tolerance"):
        signing.verify([SECRET], headers_of(), BODY, NOW, tolerance_s)


# v1a

SEED = bytes(range(32))
SERVER = signing.ServerKey(SEED)


def whsk(raw: bytes) -> str:
    return "whsk_" + base64.b64encode(raw).decode()


def test_a_server_key_is_read_from_its_seed_or_from_seed_and_public_key():
    for raw in (SEED, SEED + SERVER.public.raw):
        assert signing.ServerKey.parse(whsk(raw)).public == SERVER.public
    assert signing.PublicKey.parse(str(SERVER.public)) == SERVER.public


@pytest.mark.parametrize("text", ["", whsk(b""), whsk(SEED * 2), whsk(SEED[1:]), "whpk_AAAA"])
def test_what_is_no_server_key_is_refused_without_being_repeated(text: str):
    with pytest.raises(errors.ConfigurationError) as caught:
        signing.ServerKey.parse(text)
    assert len(text) < 12 or text.removeprefix("whsk_") not in str(caught.value)


@pytest.mark.parametrize("text", ["", "whpk_", whsk(SEED), "whpk_" + "A" * 84])
def test_what_is_no_public_key_is_refused(text: str):
    with pytest.raises(errors.ConfigurationError):
        signing.PublicKey.parse(text)


def test_a_server_signature_stands_beside_the_secret_one_and_disturbs_no_verifier():
    both = headers_of()
    both["webhook-signature"] += " " + SERVER.sign("evt_1", STAMP, BODY)
    signing.verify([SECRET], both, BODY, NOW)
    signing.verify_server([signing.ServerKey(bytes(32)).public, SERVER.public], both, BODY, NOW)


def test_a_server_signature_of_another_server_body_or_time_does_not_pass():
    signed = headers_of() | {"webhook-signature": SERVER.sign("evt_1", STAMP, BODY)}
    stranger = signing.ServerKey(bytes(32)).public
    for keys, body, now, reason in [
        ([stranger], BODY, NOW, "forged"),
        ([], BODY, NOW, "forged"),
        ([SERVER.public], BODY + b" ", NOW, "forged"),
        ([SERVER.public], BODY, NOW + timedelta(hours=1), "stale"),
    ]:
        with pytest.raises(signing.SignatureRefused) as caught:
            signing.verify_server(keys, signed, body, now)
        assert caught.value.reason == reason
    with pytest.raises(signing.SignatureRefused):
        signing.verify([SECRET], signed, BODY, NOW)


def test_the_public_keys_are_a_jwk_set_that_tells_nothing_private():
    # The key pair and thumbprint of RFC 8037, appendix A.
    seed = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    [key] = signing.public_keys([signing.ServerKey(seed)])["keys"]
    assert key == {
        "kty": "OKP",
        "crv": "Ed25519",
        "alg": "EdDSA",
        "use": "sig",
        "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    }
    assert len(signing.public_keys([SERVER, signing.ServerKey(seed)])["keys"]) == 2


def test_a_server_key_does_not_show_itself():
    assert whsk(SEED).removeprefix("whsk_") not in repr(SERVER)
    assert SEED.hex() not in repr(vars(SERVER))


# Verifiers that are not ours. They read the clock themselves.


@pytest.mark.promise("webhooks-are-standard")
def test_the_python_package_accepts_what_we_sign():
    verifier = pytest.importorskip("standardwebhooks")
    stamp = int(time.time())
    for secrets in [(SECRET,), (OTHER, SECRET), (SECRET, OTHER)]:
        signed = headers_of(*secrets, stamp=stamp)
        assert verifier.Webhook(spellings(SECRET)[0]).verify(BODY, signed) == json.loads(BODY)
        with pytest.raises(verifier.webhooks.WebhookVerificationError):
            verifier.Webhook(spellings(bytes(32))[0]).verify(BODY, signed)
        with pytest.raises(verifier.webhooks.WebhookVerificationError):
            verifier.Webhook(spellings(SECRET)[0]).verify(BODY + b" ", signed)


def test_we_accept_what_the_python_package_signs():
    signer = pytest.importorskip("standardwebhooks").Webhook(spellings(SECRET)[0])
    signature = signer.sign("evt_1", NOW, BODY.decode())
    assert refusal(webhook_signature=signature) == ""


@pytest.mark.promise("webhooks-are-standard")
def test_the_npm_package_accepts_what_we_sign():
    try:
        workspace = node.install(HERE)
        command = [node.executable(workspace), "--input-type=module"]
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
    stamp = int(time.time())
    with_server = headers_of(OTHER, SECRET, stamp=stamp)
    with_server["webhook-signature"] += " " + SERVER.sign("evt_1", stamp, BODY)
    wanted = [
        (spellings(SECRET)[0], headers_of(stamp=stamp), BODY, "accepted"),
        (spellings(SECRET)[0], headers_of(OTHER, SECRET, stamp=stamp), BODY, "accepted"),
        (spellings(OTHER)[0], headers_of(OTHER, SECRET, stamp=stamp), BODY, "accepted"),
        (spellings(SECRET)[0], with_server, BODY, "accepted"),
        (spellings(bytes(32))[0], with_server, BODY, "refused"),
        (spellings(SECRET)[0], headers_of(stamp=stamp), BODY + b" ", "refused"),
        (spellings(SECRET)[0], headers_of(stamp=stamp - 301), BODY, "refused"),
    ]
    lines = [
        json.dumps({"secret": secret, "headers": signed, "body": base64.b64encode(body).decode()})
        for secret, signed, body, _ in wanted
    ]
    # Read from a string, the script finds its packages in the folder that it runs in.
    ran = subprocess.run(
        [*command, "--eval", (HERE / "verify_driver.mjs").read_text()],
        cwd=workspace,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=NODE_S_MAX,
        check=True,
    )
    told = [line.partition(":")[0] for line in ran.stdout.splitlines()]
    assert told == [expected for *_, expected in wanted], ran.stdout
