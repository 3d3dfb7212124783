"""Bytes in letters for URLs, and back."""

import pytest
from hypothesis import given, strategies as st

from outlast.domain import base64url


@given(st.binary(max_size=70))
def test_what_was_encoded_is_decoded_and_has_no_other_letters(raw: bytes):
    text = base64url.encoded(raw)
    assert base64url.decoded(text) == raw
    assert all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in text)


def test_the_other_alphabet_is_read_too():
    assert base64url.decoded("ab+/") == base64url.decoded("ab-_")


@pytest.mark.parametrize("text", ["a", "a b", "ab\n", "é", "=", "a=b=", "\ud800"])
def test_what_is_none_is_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        base64url.decoded(text)
