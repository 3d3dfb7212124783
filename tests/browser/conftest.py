"""One site and one browser for the tests of a file; skipped where no browser can be had."""

from collections.abc import AsyncIterator

import pytest

from outlast.tests.browser.looking import Desk, desk as opened_on
from outlast.tests.browser.site import Site, site
from outlast.tests.support import chromium, node


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    try:
        chromium.executable()
    except chromium.BrowserMissing as missing:
        pytest.skip(str(missing))
    async with site(tmp_path_factory.mktemp("site"), module_database_url) as served:
        yield served


@pytest.fixture(scope="module")
async def desk(made: Site) -> AsyncIterator[Desk]:
    try:
        async with opened_on(made) as opened:
            yield opened
    except node.NodeMissing as missing:
        pytest.skip(str(missing))
