"""What a page shows of arguments and results: no secret, and not too much."""

import json
import time
import unicodedata
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
        "APItoken",
        "DBpasswords",
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


CREDENTIALS = {"passwords": ["open", SECRET], "credentials": {"user": "u", "value": SECRET}}


@pytest.mark.parametrize(
    "value",
    [
        [*[0] * 1_001, CREDENTIALS],
        {**{f"k{n}": 0 for n in range(1_001)}, **CREDENTIALS},
        {"a": ["x" * 8_100] * 6, **CREDENTIALS},
        reduce(lambda inner, _: [inner], range(70), CREDENTIALS),
        {"pad": "x" * 8_100, **{f"k{n}": 0 for n in range(1_001)}, **CREDENTIALS},
    ],
    ids=["array", "object", "budget", "depth", "text"],
)
@pytest.mark.promise("console-hides-secrets")
def test_of_json_in_a_text_that_was_not_looked_at_whole_the_rest_is_not_shown(value: Any):
    shown = PLAIN.show({"content": [{"type": "text", "text": json.dumps(value)}]}, "result")
    assert SECRET not in shown.text
    assert shown.is_cut


@pytest.mark.promise("console-hides-secrets")
def test_a_path_into_json_in_a_text_is_hidden_however_late_it_comes():
    redactor = Redactor(["result.*.*.pin"])
    for before in ([], [0] * 1_001):
        text = json.dumps([*before, {"pin": SECRET}])
        for written in (text, " " * 70 + text):
            assert SECRET not in redactor.show(written, "result").text


def test_of_json_in_a_text_that_takes_all_the_room_nothing_is_shown():
    shown = PLAIN.show(json.dumps({"k" * (SHOWN_CHARS_MAX - 10): 1}))
    assert shown.is_cut
    assert "k" not in shown.text


@pytest.mark.parametrize(
    "text",
    [
        f"Result: {json.dumps(CREDENTIALS)} and more",
        f"Result: {json.dumps(CREDENTIALS, indent=2)}",
        f'{{"a": 1}}\n{json.dumps(CREDENTIALS)}\n{{"b": 2}}',
        " " * 70 + json.dumps(CREDENTIALS),
        "Escaped: " + json.dumps(json.dumps(CREDENTIALS)),
        "Twice: " + json.dumps(json.dumps(json.dumps(CREDENTIALS))),
        f"Written: {CREDENTIALS}",
        f'cut off: {{"tokens": ["a]", "{SECRET}"',
        f"tokens: [one, two {SECRET}",
        f"tokens: ['a]', '{SECRET}']",
        f"tokens: [[one], {{two: [three]}}, {SECRET}]",
        "password: 'one''two s3cr3t'",
    ],
)
@pytest.mark.promise("console-hides-secrets")
def test_a_list_or_an_object_after_a_secrets_name_is_hidden_whole(text: str):
    for shown in (PLAIN.show({"message": text}).text, PLAIN.text(text)):
        assert "s3cr3t" not in shown
        assert HIDDEN in shown


def test_what_follows_a_hidden_list_is_shown():
    text = 'Made: {"tokens": ["a]", {"b": "}"}], "kept": [1]} in 3 s'
    assert PLAIN.text(text) == f'Made: {{"tokens": {HIDDEN}, "kept": [1]}} in 3 s'


@pytest.mark.parametrize(
    "part", ["token: [", "token: ['", 'token: ["', "token: ]", 'token: \\"', "[{", "token-", "'\\"]
)
def test_no_text_takes_long_to_clean(part: str):
    began = time.process_time()
    PLAIN.cleaned(part * (500_000 // len(part)))
    assert time.process_time() - began < 5.0  # a square of it takes hours


@pytest.mark.parametrize("name", ["пароль", "密码", "Größe", "größe", "naïve_key", "4711", "№"])
@pytest.mark.promise("console-hides-secrets")
def test_a_name_in_any_script_can_be_hidden(name: str):
    redactor = Redactor([name])
    for spelled in (name, name.upper(), unicodedata.normalize("NFD", name)):
        assert json.loads(redactor.show({spelled: SECRET, "kept": "x"}).text) == {
            spelled: HIDDEN,
            "kept": "x",
        }


@pytest.mark.promise("console-hides-secrets")
def test_a_name_in_any_script_hides_what_follows_it_in_a_text():
    redactor = Redactor(["пароль", "密码"])
    wide = "\uff1a"  # the colon that is typed beside such a name
    assert redactor.text(f"Пароль: a, 密码{wide}b") == f"Пароль: {HIDDEN}, 密码{wide}{HIDDEN}"


@pytest.mark.promise("console-hides-secrets")
def test_a_name_of_many_words_is_hidden():
    redactor = Redactor(["number_of_the_old_card_of_mine"])
    assert SECRET not in redactor.show({"numberOfTheOldCardOfMine": SECRET}).text


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"run --password={SECRET}",
        f"_token={SECRET}",
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
        "password: token: abcdefgh.ijk",
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
