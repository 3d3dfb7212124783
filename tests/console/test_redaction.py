"""What a page shows of arguments and results: no secret, and not too much."""

import json
from functools import reduce
from typing import Any

import pytest

from outlast.service.console.redaction import (
    HIDDEN,
    JSON_CHARS_MAX,
    SHOWN_CHARS_MAX,
    Redactor,
    size,
    url_without_query,
)

SECRET = "s3cr3t-and-nobody's"
PLAIN = Redactor()


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "db_password",
        "passwordHash",
        "accessToken",
        "ACCESS_TOKEN",
        "access-tokens",
        "clientSecret",
        "Authorization",
        "proxy-authorization",
        "apiKey",
        "APIKey",
        "x-api-key",
        "apikey",
        "AWS_SECRET_ACCESS_KEY",
        "private_key2",
        "credentials",
        "headers",
        "Set-Cookie",
    ],
)
@pytest.mark.promise("console-hides-secrets")
def test_a_secret_is_known_by_its_name_in_any_spelling(name: str):
    shown = PLAIN.show({"outer": [{name: SECRET, "kept": "this"}]}, "arguments")
    assert SECRET not in shown.text
    assert json.loads(shown.text) == {"outer": [{name: HIDDEN, "kept": "this"}]}
    assert (shown.hidden, shown.is_cut, shown.is_whole) == (1, False, False)


@pytest.mark.parametrize("name", ["branch", "tokenizer", "secretary", "key", "passenger", "author"])
def test_a_name_that_only_looks_alike_hides_nothing(name: str):
    shown = PLAIN.show({name: "value"})
    assert json.loads(shown.text) == {name: "value"}
    assert shown.is_whole


@pytest.mark.promise("console-hides-secrets")
def test_what_stands_under_a_secret_name_is_hidden_as_a_whole():
    shown = PLAIN.show({"credentials": {"user": "u", "pass": [SECRET]}, "token": 4711})
    assert json.loads(shown.text) == {"credentials": HIDDEN, "token": HIDDEN}


@pytest.mark.promise("console-hides-secrets")
def test_a_text_that_is_json_hides_what_its_parts_hide():
    structured = {"token": SECRET, "name": "n"}
    result = {
        "content": [{"type": "text", "text": json.dumps(structured)}],
        "structuredContent": structured,
    }
    shown = PLAIN.show(result, "result")
    assert SECRET not in shown.text
    inner = json.loads(shown.text)["content"][0]["text"]
    assert json.loads(inner) == {"token": HIDDEN, "name": "n"}
    assert shown.hidden == len(result)


@pytest.mark.promise("console-hides-secrets")
def test_of_json_in_a_text_that_is_too_large_to_look_into_nothing_is_shown():
    text = json.dumps([{"credentials": {"user": SECRET}}, "x" * JSON_CHARS_MAX])
    shown = PLAIN.show([text])
    assert SECRET not in shown.text
    assert shown.is_cut
    below = json.dumps([{"credentials": {"user": SECRET}}, "x" * SHOWN_CHARS_MAX])
    assert SECRET not in PLAIN.show([f"\n {below}"]).text


def test_a_text_that_is_json_without_a_secret_stays_as_it_is():
    text = '{ "a":1,   "b": [2] }'
    assert json.loads(PLAIN.show([text]).text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"Authorization: Bearer {SECRET}",
        "sent with Bearer abcdefgh.ijk",
        "https://h.example/hook?access_token=abcdefgh.ijk&n=1",
        "postgres://me:abcdefgh.ijk@h.example/db",
        'cut off: {"token": "abcdefgh.ijk"',
        '{\\"token\\": \\"abcdefgh.ijk\\"}',
        "api_key : 'abcdefgh.ijk' and more",
        'cut off: {"password": "a b \\" abcdefgh.ijk',
        "password: 'a b abcdefgh.ijk",
        'token: "first password=x abcdefgh.ijk"',
    ],
)
@pytest.mark.promise("console-hides-secrets")
def test_a_secret_within_a_text_is_hidden(text: str):
    shown = PLAIN.show({"message": text})
    assert "s3cr3t" not in shown.text
    assert "abcdefgh.ijk" not in shown.text
    assert shown.hidden
    assert "s3cr3t" not in PLAIN.text(text)
    assert "abcdefgh.ijk" not in PLAIN.text(text)


def test_an_ordinary_sentence_is_left_alone():
    text = "Step 3 of 7: building https://h.example/repo?branch=main at 12:30"
    assert PLAIN.text(text) == text


def test_a_setting_adds_a_name_or_a_path():
    redactor = Redactor(["national_id", "arguments.card.number", "result.items.*.pin"])
    value = {"nationalId": 1, "card": {"number": 2, "name": "n"}, "number": 3, "password": "x"}
    shown = json.loads(redactor.show(value, "arguments").text)
    assert shown == {
        "nationalId": HIDDEN,
        "card": {"number": HIDDEN, "name": "n"},
        "number": 3,
        "password": HIDDEN,
    }
    elsewhere = redactor.show({"card": {"number": 2}}, "result")
    assert elsewhere.is_whole
    state = redactor.show({"result": {"items": [{"pin": 1, "at": 2}]}})
    assert json.loads(state.text) == {"result": {"items": [{"pin": HIDDEN, "at": 2}]}}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        ["x" * 100] * 100_000,
        {str(n): n for n in range(100_000)},
        [[["y" * 50] * 50] * 50] * 50,
        reduce(lambda inner, _: [inner], range(50), [1] * 900 + [[1] * 900] * 3),
    ],
    ids=["text", "array", "object", "nested", "indented"],
)
def test_what_is_too_much_is_cut_and_said_to_be(value: Any):
    shown = PLAIN.show(value)
    assert shown.is_cut
    assert len(shown.text) <= 2 * SHOWN_CHARS_MAX + 1


def test_what_nests_too_deep_is_cut():
    value: Any = "end"
    for _ in range(500):
        value = [value]
    shown = PLAIN.show(value)
    assert shown.is_cut
    assert "end" not in shown.text


def test_every_json_value_can_be_shown():
    value = {"big": 2**80, "lone": "\ud800", "none": None, "no": False, "ü": 1.5}
    shown = PLAIN.show(value)
    assert json.loads(shown.text.encode()) == value
    assert PLAIN.text("\ud800 here").encode() == b"\\ud800 here"


def test_a_webhooks_address_loses_its_query_and_its_user():
    url = "https://me:abc@h.example:8443/hook/1?signature=abc#part"
    assert url_without_query(url) == "https://h.example:8443/hook/1"


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "1 byte"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 * 1024**2, "5.0 MiB")],
)
def test_a_size_is_told_as_people_say_it(count: int, told: str):
    assert size(count) == told
