"""`make screenshots`: every page in both themes and at both widths, into docs/images/.

python tests/browser/screenshots.py [FOLDER]
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from outlast.adapters import migrations
from outlast.adapters.embedded import EmbeddedServer
from outlast.tests.browser.looking import NARROW, THEMES, WIDE, desk
from outlast.tests.browser.site import site
from outlast.tests.browser.tour import Stop, furnished
from outlast.tests.support.databases import database

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BYTES_MAX = 3_000_000  # of all together


async def taken(folder: Path, url: str, into: Path) -> list[Path]:
    """The pictures."""
    await migrations.upgrade(url)
    found: list[Path] = []
    async with site(folder, url) as made, desk(made) as opened:
        stops = await furnished(made)
        for theme in THEMES:
            for width in (NARROW, WIDE):
                for person in dict.fromkeys(stop.person for stop in stops):
                    async with opened.visitor(person, width, theme) as page:
                        for stop in (each for each in stops if each.person == person):
                            await page.goto(stop.path)
                            found.append(into / name_of(stop, theme, width))
                            await page.screenshot(path=found[-1], animations="disabled")
    return found


def name_of(stop: Stop, theme: str, width: int) -> str:
    return f"console-{stop.name}-{theme}-{width}.png"


def main() -> int:
    into = Path(sys.argv[1]) if sys.argv[1:] else IMAGES
    into.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ol-") as folder,
        EmbeddedServer.start(Path(folder) / "pg") as server,
        database(server.url, "pictures") as url,
    ):
        found = asyncio.run(taken(Path(folder), url, into))
    size = sum(each.stat().st_size for each in found)
    print(f"{len(found)} pictures, {size:,} bytes, in {into}")
    return 0 if size <= BYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
