"""Bytes in letters that a URL, a header or a cookie may have (RFC 4648, section 5), unpadded."""

import base64


def encoded(raw: bytes) -> str:
    """The letters of these bytes."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decoded(text: str) -> bytes:
    """The bytes of these letters. Raises ValueError for other letters, and for a length of none.

    Several texts can have the same bytes: the last letter may hold bits to spare, and the two
    letters of the other alphabet (section 4) are taken for theirs.
    """
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
