"""What a page leaves out of arguments, results and messages: secrets by name, and what is too much.

A setting is a key's name (`api_key`) or a path (`arguments.card.number`, `result.items.*.pin`). A
name is found in any script and spelling (`apiKey`, `API-KEY`, `old_api_keys`), wherever it stands:
as a key, within JSON that a text holds, and before `=` or `:` in any text. It hides too much rather
than too little; who may see the whole is offered it beside.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

ALWAYS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "credential",
    "cookie",
    "header",
)
HIDDEN = "[hidden]"
SHOWN_CHARS_MAX = 40_000  # of one value on a page
TEXT_CHARS_MAX = 8_000  # of one text in it
JSON_CHARS_MAX = 1_000_000  # of a text in it that is JSON, and is looked into
ENTRIES_MAX = 1_000  # of one object or array in it
DEPTH_MAX = 64
SINGULAR_MAX = 3  # characters of a word that is not taken for a plural

# Of a name's shape, see `_shape`: as words are mostly written (`APIKey`), and `APItoken`.
_WORD = re.compile("A+(?!a)|A?a+")
_WORD_AFTER_CAPITALS = re.compile("A{2,}|A?a+")
# Bounded, so that no text takes more than one pass.
_NAME = re.compile(r"(?<![\w-])([\w-]{1,64})[\"'\\]{0,4}\s{0,3}[:=\uff1a\uff1d]\s{0,3}")
_VALUE = re.compile(  # a text in quotes to its end, even where that was cut off
    r"(?:(?:Bearer|Basic)\s{1,3})?"
    r"(?:\\\"(?:(?!\\\").)*(?:\\\")?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^']|'')*'?|[^\s,;&}\]]+)",
    re.DOTALL,
)
_CLOSED_BY = {"{": "}", "[": "]", "(": ")"}
_WITHIN = re.compile(r"[{}\[\]()\\]|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?", re.DOTALL)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s{1,3})[\w.~+/=-]{6,}")
_USER = re.compile(r"(://)[^/@\s]{1,256}@")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """A value as a page may show it. `hidden` counts what was hidden; `is_cut`: there is more."""

    text: str
    hidden: int = 0
    is_cut: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return not (self.hidden or self.is_cut)


class Redactor:
    """Knows the names and paths to hide: those of `ALWAYS`, and those of the settings."""

    def __init__(self, settings: Sequence[str] = ()) -> None:
        self._paths = [tuple(each.split(".")) for each in settings if "." in each]
        names = (*ALWAYS, *(each for each in settings if "." not in each))
        self._names = frozenset(words for name in names for words in _spellings(name))
        self._longest = max(map(len, self._names))

    def show(self, value: Any, root: str | None = None) -> Shown:
        """The value as indented JSON; `root` is where its paths begin, like `arguments`."""
        walk = _Walk(self)
        seen = walk.of(value, () if root is None else (root,))
        text = json.dumps(seen, indent=2, ensure_ascii=False)
        if len(text) > 2 * SHOWN_CHARS_MAX:  # its indents are more than itself
            text, walk.is_cut = text[: 2 * SHOWN_CHARS_MAX] + "…", True
        return Shown(printable(text), walk.hidden, walk.is_cut)

    def text(self, given: str) -> str:
        """A sentence or a message, for a page."""
        return printable(self.cleaned(given[:TEXT_CHARS_MAX])[0])

    def hides(self, path: Words) -> bool:
        """Whether what stands at this path is hidden by its name or its place."""
        if not path:
            return False
        return self.hides_name(path[-1]) or any(_fits(wanted, path) for wanted in self._paths)

    def hides_name(self, name: str) -> bool:
        """Whether a key of this name holds a secret."""
        return any(
            words[begin:end] in self._names
            for words in _spellings(name[:256])
            for begin in range(len(words))
            for end in range(begin + 1, min(begin + self._longest, len(words)) + 1)
        )

    def cleaned(self, text: str) -> tuple[str, int]:
        """The text without what follows a secret's name in it, and how much that was."""
        kept, end = list[str](), 0
        for name in _NAME.finditer(text):  # without its value: another name may be within it
            begin = name.end()
            if begin <= end or not self.hides_name(name[1]):
                continue
            until = _end_of_value(text, begin)
            if until > begin:
                kept += (text[end:begin], HIDDEN)
                end = until
        named = "".join(kept) + text[end:]
        bearer = _BEARER.sub(rf"\1\2{HIDDEN}", named)
        clean = _USER.sub(rf"\1{HIDDEN}@", bearer)
        return clean, max(0, clean.count(HIDDEN) - text.count(HIDDEN))


class _Walk:
    """One value on its way to a page."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._left = redactor, SHOWN_CHARS_MAX
        self.hidden, self.is_cut = 0, False

    def of(self, value: Any, path: Words) -> Any:
        """The value without what is hidden and what is too much."""
        if value is not None and not isinstance(value, bool) and self._redactor.hides(path):
            self.hidden += 1
            return HIDDEN
        if self._left <= 0 or len(path) > DEPTH_MAX:
            self.is_cut = True
            return "…"
        if isinstance(value, Mapping):
            return self._object(cast(Mapping[str, Any], value), path)
        if isinstance(value, list | tuple):
            return self._array(cast(Sequence[Any], value), path)
        if isinstance(value, str):
            return self._text(value, path)
        self._left -= 8
        return value

    def _object(self, given: Mapping[str, Any], path: Words) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for number, (key, value) in enumerate(given.items()):
            if number >= ENTRIES_MAX or self._left <= 0:
                self.is_cut, told["…"] = True, f"{len(given) - number} more"
                break
            self._left -= len(key) + 4
            told[key] = self.of(value, (*path, key))
        return told

    def _array(self, given: Sequence[Any], path: Words) -> list[Any]:
        told: list[Any] = []
        for number, value in enumerate(given):
            if number >= ENTRIES_MAX or self._left <= 0:
                self.is_cut = True
                told.append(f"… {len(given) - number} more")
                break
            self._left -= 2
            told.append(self.of(value, (*path, str(number))))
        return told

    def _text(self, text: str, path: Words) -> str:
        inner = self._json(text, path)
        if inner is not None:
            return inner
        room = max(0, min(TEXT_CHARS_MAX, self._left))
        clean, hidden = self._redactor.cleaned(text[:room])
        self.hidden += hidden
        self._left -= len(clean) + 2
        if len(text) > room:
            self.is_cut = True
            clean += f"… ({len(text):,} characters)"
        return clean

    def _json(self, text: str, path: Words) -> str | None:
        """A text that is JSON, as tools give what they also give in parts; None if all is shown."""
        if text.lstrip()[:1] not in ("{", "["):
            return None
        if len(text) > JSON_CHARS_MAX:  # too much to look into, and so to show any of it
            self.is_cut = True
            return f"… ({len(text):,} characters)"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        before = self.hidden, self.is_cut
        self.hidden, self.is_cut = 0, False
        seen = self.of(value, (*path, "*"))
        # What was not looked at might have been hidden, so it is no text to be shown as it is.
        is_other = bool(self.hidden) or self.is_cut
        self.hidden, self.is_cut = before[0] + self.hidden, before[1] or self.is_cut
        return json.dumps(seen, ensure_ascii=False) if is_other else None


def printable(text: str) -> str:
    """The text with lone surrogates, which no page can carry, as JSON escapes them."""
    return text.encode("utf-8", "backslashreplace").decode()


def size(count: int) -> str:
    """So many bytes, as people say it."""
    if count < 1024:  # noqa: PLR2004 - a kibibyte
        return f"{count} bytes" if count != 1 else "1 byte"
    if count < 1024**2:
        return f"{count / 1024:.1f} KiB"
    return f"{count / 1024**2:.1f} MiB"


def url_without_query(url: str) -> str:
    """Where a webhook goes, without what may be a secret of its own: query, fragment, user."""
    place = re.split(r"[?#]", url, maxsplit=1)[0]
    return _USER.sub(r"\1", place)


def _end_of_value(text: str, begin: int) -> int:
    """Where the value that begins there ends; a list or an object ends with its own bracket."""
    if text[begin : begin + 1] not in _CLOSED_BY:
        value = _VALUE.match(text, begin)
        return begin if value is None else value.end()
    awaited: list[str] = []
    for found in _WITHIN.finditer(text, begin):
        mark = found[0]
        if mark in _CLOSED_BY:
            awaited.append(_CLOSED_BY[mark])
        elif mark[0] in "\"'":
            continue  # a bracket in quotes opens and closes nothing
        elif mark != awaited.pop():
            break  # quotes that are escaped, or brackets that do not pair: its end is not known
        if not awaited:
            return found.end()
    return len(text)


def _spellings(name: str) -> set[Words]:
    """`oldApiKeys`, `old_api_key` and `OLD-API-KEY` are the same. A name of no letter is itself."""
    text = unicodedata.normalize("NFC", name)
    shape = "".join(map(_shape, text))
    found = {
        tuple(_singular(text[word.start() : word.end()]) for word in pattern.finditer(shape))
        for pattern in (_WORD, _WORD_AFTER_CAPITALS)
    }
    return found - {()} or ({(text.casefold(),)} if text.strip() else set())


def _shape(character: str) -> str:
    """`A` and `a` for letters of any script; those without capitals are taken for small ones."""
    if character.isupper():
        return "A"
    is_mark = unicodedata.category(character)[0] == "M"  # a vowel's sign, or an accent by itself
    return "a" if character.isalpha() or is_mark else " "


def _singular(word: str) -> str:
    folded = word.casefold()
    return folded.removesuffix("s") if len(folded) > SINGULAR_MAX else folded


def _fits(wanted: Words, path: Words) -> bool:
    """Whether a path is this one; `*` stands for any one step."""
    return len(wanted) == len(path) and all(
        mine in ("*", given) for mine, given in zip(wanted, path, strict=True)
    )
