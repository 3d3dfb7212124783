"""A person at the console, without a browser: pages are fetched, forms are filled in and sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

import httpx2

FORM_TYPE = "application/x-www-form-urlencoded"
SKIPPED = ("submit", "button", "checkbox", "radio")


@dataclass
class HtmlForm:
    """One form of a page: where it goes, what it holds as it stands, and its buttons."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    attributes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    buttons: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class _Reader(HTMLParser):
    """Finds the forms of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[HtmlForm] = []
        self.links: list[dict[str, str]] = []
        self.texts: list[str] = []
        self._within: HtmlForm | None = None
        self._select = self._area = ""
        self._skip = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._skip = tag in {"script", "style"}
        if tag == "a":
            self.links.append(given)
        if tag == "form":
            self._within = HtmlForm(given.get("action", ""), given.get("method", "get"))
            self.forms.append(self._within)
        if self._within is not None:
            self._control(tag, given, self._within)

    def _control(self, tag: str, given: dict[str, str], form: HtmlForm) -> None:
        name, kind = given.get("name", ""), given.get("type", "text")
        if tag in {"input", "select", "textarea"} and name:
            form.kinds[name] = kind if tag == "input" else tag
            form.attributes[name] = given
            form.fields.setdefault(name, [])
        if tag == "input" and name and (kind not in SKIPPED or "checked" in given):
            form.fields[name].append(given.get("value", ""))
        elif tag == "select":
            self._select = name
        elif tag == "textarea":
            self._area = name
            form.fields[name] = [""]
        elif tag == "option":
            if "selected" in given or not form.fields[self._select]:
                form.fields[self._select] = [given.get("value", "")]
        elif tag == "button":
            form.buttons.append((name, given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._within is not None and self._area:
            known = self._within.fields[self._area]
            known[0] += data if known[0] else data.removeprefix("\n")
        elif not self._skip:
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._skip = False
        if tag == "form":
            self._within = None
        if tag == "textarea":
            self._area = ""


@dataclass(frozen=True)
class Seen:
    """A page as it came."""

    status: int
    url: str
    html: str
    forms: Sequence[HtmlForm]
    links: Sequence[Mapping[str, str]]
    text: str

    def form(self, action: str) -> HtmlForm:
        """The form that goes there."""
        found = [form for form in self.forms if form.action.endswith(action)]
        assert len(found) == 1, (action, [form.action for form in self.forms])
        return found[0]


@dataclass
class Visitor:
    """Somebody with cookies of their own."""

    base_url: str
    http: httpx2.AsyncClient

    async def get(self, path: str) -> Seen:
        """A page, wherever that leads."""
        return _seen(await self.http.get(self.base_url + path, follow_redirects=True))

    async def send(self, form: HtmlForm, button: str = "", /, **given: str | list[str]) -> Seen:
        """The form with these fields, `f__x` for `f.x`, sent by this button's value."""
        fields = {name: list(values) for name, values in form.fields.items()}
        for name, value in given.items():
            named = name.replace("__", ".")
            fields[named] = [value] if isinstance(value, str) else list(value)
        pressed = [(name, value) for name, value in form.buttons if value == button and name]
        pairs = [(name, text) for name, texts in fields.items() for text in texts] + pressed
        headers = {
            "content-type": FORM_TYPE,
            "origin": self.base_url,
            "sec-fetch-site": "same-origin",
        }
        reply = await self.http.post(
            self.base_url + form.action,
            content=urlencode(pairs).encode(),
            headers=headers,
            follow_redirects=True,
        )
        return _seen(reply)

    async def sign_in(self, token: str) -> None:
        """By a token, as the page asks for it."""
        page = await self.get("/console/sign-in")
        form = page.form("/console/sign-in")
        (name,) = [name for name, kind in form.kinds.items() if kind not in {"hidden", "submit"}]
        seen = await self.send(form, **{name: token})
        assert seen.status == httpx2.codes.OK, seen.text
        assert "sign-in" not in seen.url, seen.text


def _seen(reply: httpx2.Response) -> Seen:
    reader = _Reader()
    reader.feed(reply.text)
    text = " ".join(" ".join(reader.texts).split())
    return Seen(reply.status_code, str(reply.url), reply.text, reader.forms, reader.links, text)
