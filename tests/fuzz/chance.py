"""Values that nobody sends in good faith, drawn from a seed: the same seed draws the same."""

import json
import random
from typing import Any

STRINGS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "x\udfff\ud800",
    "\u00e9",
    "\U0001d11e",
    "\u202egnp",
    "\ufeff",
    "\x7f\x1b[2J",
    "\r\n\r\n",
    "null",
    "true",
    "0",
    "-1",
    "1e309",
    "NaN",
    "{}",
    "[]",
    "../../../etc/passwd",
    "%00",
    "%s%n{0}",
    "'; DROP TABLE outlast.task_events; --",
    "__proto__",
    "$ref",
    "=?base64?!?=",
    "=?base64?/w==?=",
    "=?base64??=",
    "v1.",
    "v1.AAAA",
    "a" * 255,
    "a" * 257,
    "k" * 1025,
    "\u00e9" * 5_000,
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**30,
    0.5,
    1.0,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
)
NAMES = ("_meta", "id", "params", "name", "taskId", "type", "extensions", "arguments", "", "\0")
DEPTHS = (2, 10, 60, 63, 64, 65, 200)
LEVELS_MAX = 3


class Chance(random.Random):
    """Draws. What it draws depends on its seed and on nothing else."""

    def one_in(self, many: int) -> bool:
        return self.randrange(many) == 0

    def string(self) -> str:
        if self.one_in(4):
            return "".join(chr(self.randrange(0x20, 0x2000)) for _ in range(self.randrange(12)))
        return self.choice(STRINGS)

    def number(self) -> float:
        if self.one_in(4):
            return self.randrange(-(2**70), 2**70)
        return self.choice(NUMBERS)

    def value(self, levels: int = LEVELS_MAX) -> Any:
        """Any JSON value, or one that JSON cannot hold."""
        kind = self.randrange(8 if levels else 6)
        match kind:
            case 0:
                return self.choice((None, True, False))
            case 1 | 2:
                return self.number()
            case 3 | 4:
                return self.string()
            case 5:
                return self.choice(({}, [], nested(self.choice(DEPTHS))))
            case 6:
                return [self.value(levels - 1) for _ in range(self.randrange(4))]
            case _:
                names = [self.choice((self.string(), *NAMES)) for _ in range(self.randrange(4))]
                return {name: self.value(levels - 1) for name in names}

    def mutated(self, value: Any) -> Any:
        """The value with one thing changed, somewhere in it. The value itself stays as it was."""
        is_tree = isinstance(value, dict | list) and bool(value)
        if not is_tree or self.one_in(8):
            return self._replaced(value)
        if isinstance(value, list):
            changed = list(value)
            place = self.randrange(len(changed))
            match self.randrange(6):
                case 0:
                    del changed[place]
                case 1:
                    changed = changed * self.randrange(2, 40)
                case _:
                    changed[place] = self.mutated(changed[place])
            return changed
        members = dict(value)
        name = self.choice(list(members))
        match self.randrange(8):
            case 0:
                del members[name]
            case 1:
                members[self.choice((self.string(), *NAMES))] = self.value()
            case 2:
                members[self.string()] = members.pop(name)
            case _:
                members[name] = self.mutated(members[name])
        return members

    def _replaced(self, value: Any) -> Any:
        match self.randrange(5):
            case 0 if isinstance(value, str):
                return self._spelled(value)
            case 1:
                return [value]
            case 2:
                return {"": value}
            case 3 if isinstance(value, int | float):
                return str(value)
            case _:
                return self.value()

    def _spelled(self, text: str) -> str:
        place = self.randrange(len(text) + 1)
        match self.randrange(4):
            case 0:
                return text[:place]
            case 1:
                return text[:place] + self.string() + text[place:]
            case 2:
                return text.swapcase()
            case _:
                return text * 2

    def encoded(self, value: Any) -> bytes:
        """The value as JSON text, in one of its spellings; not always valid UTF-8."""
        ascii_only = self.one_in(2)
        indent = 1 if self.one_in(6) else None
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        return text.encode("utf-8", "surrogatepass")

    def damaged(self, text: bytes) -> bytes:
        """The bytes with one thing changed that no encoder would write."""
        place = self.randrange(len(text) + 1)
        opening, closing = self.choice(((b"[", b"]"), (b'{"a":', b"}")))
        no_text = self.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80"))
        more = self.choice((b"x", b"{}", b"\0", b" " * 2_000, text))
        return self.choice(
            (
                text[:place],
                text[:place] + self.randbytes(self.randrange(1, 4)) + text[place:],
                text[:place] + bytes([self.randrange(256)]) + text[place + 1 :],
                text[:place] + no_text + text[place:],
                b"\xef\xbb\xbf" + text,
                text.decode(errors="replace").encode("utf-16"),
                text + more,
                self._doubled(text),
                opening * 2_000 + b"1" + closing * 2_000,
                self.randbytes(self.randrange(200)),
            )
        )

    def _doubled(self, text: bytes) -> bytes:
        """A member of some object twice."""
        name = self.choice(("id", "jsonrpc", "method", "params", "_meta", "taskId", "name", "type"))
        member = json.dumps({name: self.value(1)}).encode()[1:-1]
        places = [number for number, byte in enumerate(text) if byte in b"{}"]
        if not places:
            return text
        place = self.choice(places)
        if text[place : place + 1] == b"{":
            return text[: place + 1] + member + b"," + text[place + 1 :]
        return text[:place] + b"," + member + text[place:]


def nested(levels: int) -> Any:
    """Lists within lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
