"""Signed notes and checkpoints: what others have signed opens, and what is damaged does not."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outlast.adapters import notes
from outlast.adapters.notes import CheckpointNotary, SigningKey, VerifierKey
from outlast.domain import errors
from outlast.domain.audit import Signed

ROOT = bytes(range(32))
KEY = SigningKey("log.example", bytes(32))
NOTARY = CheckpointNotary("log.example", KEY, [KEY.verifier])

# The example in the documentation of Go's package for signed notes, which this form comes from.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
PETERS_NOTE = (
    f"{PETERS_TEXT}\n— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZ"
    "SNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)


def test_a_note_that_another_implementation_signed_opens() -> None:
    key = VerifierKey.parse(PETER)
    text, signatures = notes.opened(PETERS_NOTE)
    assert text == PETERS_TEXT
    assert [key.has_signed(text, each) for each in signatures] == [True]
    assert str(key) == PETER
    other = VerifierKey("PeterNeumann", KEY.verifier.public)
    assert not other.has_signed(text, signatures[0])
    assert not key.has_signed(text.replace("think", "thank"), signatures[0])


def test_a_checkpoint_is_three_lines_and_a_signature() -> None:
    note = NOTARY.sign(7, ROOT)
    lines = note.split("\n")
    assert lines[:4] == ["log.example", "7", base64.b64encode(ROOT).decode(), ""]
    assert lines[4].startswith("— log.example ")
    assert len(lines) == 6
    assert NOTARY.read(note) == Signed(7, ROOT)


def test_further_lines_and_foreign_signatures_do_no_harm() -> None:
    other = SigningKey("other.example", bytes([1] * 32))
    body = notes.body_of("log.example", Signed(7, ROOT)) + "further line\n"
    note = KEY.sign(body)
    stranger = other.sign(body).rpartition("\n\n")[2]
    assert NOTARY.read(note + stranger) == NOTARY.read(
        body + "\n" + stranger + note.split("\n\n")[1]
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: note.replace("\n7\n", "\n8\n"),
        lambda note: note.replace("log.example\n7", "log.exbmple\n7"),
        lambda note: note.replace("\n7\n", "\n07\n"),
        lambda note: note.replace("\n7\n", "\n-7\n"),
        lambda note: note.replace("\n7\n", "\n\N{ARABIC-INDIC DIGIT SEVEN}\n"),
        lambda note: note.rstrip("\n"),
        lambda note: note.partition("\n\n")[0] + "\n",
        lambda note: note.partition("\n\n")[0] + "\n\n",
        lambda note: note.replace("— ", "- "),
        lambda note: note.replace("— log.example ", "— log.example  "),
        lambda note: note.replace("\n\n", "\n\n\n"),
        lambda note: note + "and more\n",
        lambda note: note.replace("— log.example", "— other.example"),
        lambda note: note + "— log.example AAAA\n",
        lambda note: note + note.split("\n\n")[1] * 100,
        lambda note: "x" * 70_000 + note,
        lambda note: "",
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(damage) -> None:
    with pytest.raises(errors.NoteRefused):
        NOTARY.read(damage(NOTARY.sign(7, ROOT)))


def test_a_checkpoint_under_a_key_that_is_not_trusted_is_refused() -> None:
    forged = SigningKey("log.example", bytes([9] * 32))
    note = forged.sign(notes.body_of("log.example", Signed(7, ROOT)))
    with pytest.raises(errors.NoteRefused):
        NOTARY.read(note)
    both = CheckpointNotary("log.example", KEY, [KEY.verifier, forged.verifier])
    assert both.read(note) == Signed(7, ROOT)


def test_a_checkpoint_of_another_log_is_refused_though_the_key_is_trusted() -> None:
    note = KEY.sign(notes.body_of("other.example", Signed(7, ROOT)))
    with pytest.raises(errors.NoteRefused, match="of the log 'other"):
        NOTARY.read(note)


@pytest.mark.parametrize(
    "text",
    ["", "name", "name+00000000+", PETER.replace("c74f", "c74e"), PETER[:-4], f"a b{PETER[12:]}",
     PETER.replace("+AR", "+BR")],
)  # fmt: skip
def test_a_damaged_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="verifier key"):
        VerifierKey.parse(text)


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 43 + "!", base64.b64encode(bytes(31)).decode()]
)
def test_a_signing_key_of_another_size_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="must be 32 bytes") as refused:
        SigningKey.parse("log", text)
    assert not text or text not in str(refused.value)


def test_a_signing_key_is_read_with_and_without_padding() -> None:
    text = base64.urlsafe_b64encode(bytes([255] * 32)).decode()
    one, other = SigningKey.parse("log", text), SigningKey.parse("log", text.rstrip("="))
    assert one.verifier == other.verifier == SigningKey("log", bytes([255] * 32)).verifier


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb"])
def test_a_name_that_a_note_cannot_bear_is_refused(name: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="audit_origin"):
        SigningKey(name, bytes(32))


def test_a_derived_key_follows_from_its_secret_and_tells_nothing_of_it() -> None:
    one, again = SigningKey.derived("log", "s" * 32), SigningKey.derived("log", "s" * 32)
    assert one.verifier == again.verifier
    assert one.verifier != SigningKey.derived("log", "t" * 32).verifier


def test_a_witness_signs_the_note_and_the_time() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes([5] * 32))
    key = VerifierKey("witness", private.public_key().public_bytes_raw(), notes.COSIGNATURE)
    text = notes.body_of("log.example", Signed(7, ROOT))
    at = (1_800_000_000).to_bytes(8, "big")
    value = at + private.sign(b"cosignature/v1\ntime 1800000000\n" + text.encode())
    assert VerifierKey.parse(str(key)) == key
    assert key.has_signed(text, notes.Signature("witness", key.key_id, value))
    assert not key.has_signed(
        text, notes.Signature("witness", key.key_id, at[:7] + b"\1" + value[8:])
    )
    assert not key.has_signed(text, notes.Signature("witness", key.key_id, b""))
