"""What every page of the console has around it: templates, static files, headers, messages."""

import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...domain.owner import Scope
from .session import Visit, drop, keep
from .signing import Seal

HERE = Path(__file__).parent
ROOT = "/console"
STATIC = f"{ROOT}/static"
SAID = "outlast_console_said"
SAID_S = 60.0  # a message that no page has shown within this is not shown
SAID_CHARS_MAX = 500
SEE_OTHER, NOT_MODIFIED, NOT_FOUND = 303, 304, 404
A_YEAR_S = 31_536_000

MEDIA = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
# Title, place, and what it takes to see it; None for every visitor.
NAV: tuple[tuple[str, str, Scope | None], ...] = (
    ("Overview", ROOT, None),
    ("Tasks", f"{ROOT}/tasks", Scope.WATCH),
    ("Inbox", f"{ROOT}/inbox", Scope.WATCH),
    ("Webhooks", f"{ROOT}/webhooks", Scope.OPERATE),
    ("Workers", f"{ROOT}/workers", Scope.OPERATE),
    ("Proofs", f"{ROOT}/proofs", Scope.OPERATE),
)

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Frame:
    """Renders pages. `said` in a page is what the action before it has to tell."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self.static = StaticFiles(HERE / "static")
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        known: Any = self._templates
        known.globals.update(static=self.static.url, moment=moment, ago=ago)

    def page(
        self,
        request: Request,
        visit: Visit | None,
        template: str,
        status: int = 200,
        **context: Any,
    ) -> Response:
        """A whole page."""
        said = self._seal.open(SAID, request.cookies.get(SAID))
        around = {
            "visit": visit,
            "nav": _nav(request.url.path, visit),
            "said": None if said is None else said["text"],
        }
        response = self._rendered(template, status, around | context)
        if SAID in request.cookies:
            drop(request, response, SAID)
        return response

    def part(self, visit: Visit, template: str, **context: Any) -> Response:
        """A piece of a page, to be put in the place of an older one."""
        return self._rendered(template, 200, {"visit": visit, **context})

    def back(self, request: Request, url: str, said: str) -> Response:
        """After an action: on to a page of ours, which says what was done."""
        response = RedirectResponse(own_path(url), SEE_OTHER, {"Cache-Control": "no-store"})
        sealed = self._seal.seal(SAID, {"text": said[:SAID_CHARS_MAX]}, time.time() + SAID_S)
        keep(request, response, SAID, sealed, SAID_S)
        return response

    def error(
        self, request: Request, visit: Visit | None, status: int, title: str, hint: str
    ) -> Response:
        """A page for what went wrong."""
        return self.page(request, visit, "error.html", status, title=title, hint=hint)

    def _rendered(self, template: str, status: int, context: Mapping[str, Any]) -> Response:
        text = self._templates.get_template(template).render(context)
        headers = {"Cache-Control": "no-store"}
        return Response(text, status, headers, "text/html; charset=utf-8")


class StaticFiles:
    """Our own files, read once. An address with the right digest may be kept for ever."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for path in sorted(folder.iterdir()):
            media = MEDIA.get(path.suffix)
            if media is not None:
                content = path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:16]
                self._files[path.name] = (content, media, digest)

    def url(self, name: str) -> str:
        """Where a page finds the file. Raises KeyError."""
        return f"{STATIC}/{name}?v={self._files[name][2]}"

    async def get(self, request: Request) -> Response:
        """One file. A module that another one imports comes without a digest, and is asked for."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("Not found", NOT_FOUND, HEADERS, "text/plain")
        content, media, digest = found
        is_exact = request.query_params.get("v") == digest
        kept = f"public, max-age={A_YEAR_S}, immutable" if is_exact else "no-cache"
        headers = {**HEADERS, "Cache-Control": kept, "ETag": f'"{digest}"'}
        if request.headers.get("if-none-match") == f'"{digest}"':
            return Response(status_code=NOT_MODIFIED, headers=headers)
        return Response(content, 200, headers, media)


def own_path(given: str | None) -> str:
    """A place in the console, whatever was asked for: never another server."""
    is_ours = (
        given is not None
        and (given == ROOT or given.startswith((f"{ROOT}/", f"{ROOT}?")))
        and given.isprintable()
        and "\\" not in given
        and ".." not in given
    )
    return given if is_ours and given is not None else ROOT


def moment(given: datetime | str) -> datetime:
    """An instant, from what pages have of one."""
    when = datetime.fromisoformat(given) if isinstance(given, str) else given
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def ago(given: datetime, now: datetime | None = None) -> str:
    """How far away an instant is, in words."""
    seconds = ((now or datetime.now(UTC)) - given).total_seconds()
    far = abs(seconds)
    for unit_s, most_s, unit in ((1, 60, "s"), (60, 3600, "min"), (3600, 86_400, "h")):
        if far < most_s:
            count = f"{int(far // unit_s)} {unit}"
            break
    else:
        days = int(far // 86_400)
        count = f"{days} day{'' if days == 1 else 's'}"
    if far < 1:
        return "just now"
    return f"{count} ago" if seconds > 0 else f"in {count}"


def places_of(visit: Visit) -> list[tuple[str, str]]:
    """Title and address of every page that the visitor may see."""
    held = visit.caller.scopes
    return [(title, href) for title, href, scope in NAV if scope in {None, *held} or visit.operates]


def _nav(path: str, visit: Visit | None) -> list[dict[str, Any]]:
    if visit is None:
        return []
    return [
        {"title": title, "href": href, "is_current": _is_at(path, href)}
        for title, href in places_of(visit)
    ]


def _is_at(path: str, href: str) -> bool:
    return path == href or (href != ROOT and path.startswith(f"{href}/"))
