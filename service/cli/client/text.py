"""What a server says, made safe to show: nothing in it may move a cursor, colour a line or lie.

Escape sequences go as a whole, other control characters one by one, and so do the characters that
turn the reading direction round, with which one text can be shown as another.
"""

import re
from typing import Any

SHOWN_CHARS_MAX = 100_000  # of one text; a terminal is no pager

_ESCAPES = re.compile(
    r"""
    (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]                      # CSI: colours, cursor, modes
    | (?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])             # OSC, DCS, SOS, PM, APC, to their end:
      [^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)              # titles, links, the clipboard
    | \x1b[ -/]*[0-~]                                     # the short ones
    """,
    re.VERBOSE,
)
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def plain(value: Any) -> str:
    """The text without anything that a terminal would obey. Lines and tabs stay."""
    text = _ESCAPES.sub("", str(value)[: SHOWN_CHARS_MAX + 1])
    text = _CONTROLS.sub("", text.replace("\r\n", "\n"))
    if len(text) > SHOWN_CHARS_MAX:
        return f"{text[:SHOWN_CHARS_MAX]}\n… cut off; --json shows all of it"
    return text


def line(value: Any, chars_max: int = 500) -> str:
    """The same as one line, for a status or a name."""
    text = " ".join(plain(value).split())
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
