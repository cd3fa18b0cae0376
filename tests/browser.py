"""Runs pages in Chromium or Chrome through playwright; without a browser the tests are skipped.

`open_page` opens an address and fails the test if the page logs an error or a warning. One browser
and its pages serve all tests of a file, since the pages store nothing. The browser closes at the
end of the file, because playwright occupies the event loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_COMPLAINTS = ("error", "warning")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",  # root and many containers have no sandbox
    "--disable-dev-shm-usage",  # has only 64 MB in containers
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class OpensPages(Protocol):
    """Opens a file or an address in a window with these settings."""

    def __call__(
        self,
        where: Path | str,
        *,
        width: int = 1000,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """Return the page after it has loaded."""
        ...


def found_browser() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a running browser; skip the test if playwright or the browser is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = found_browser()
    if program is None:
        pytest.skip("no Chromium or Chrome found: install one to test pages")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


class _Kept:
    """Reusable pages, with or without scripts, and their console errors."""

    def __init__(self, browser: Browser, *, scripts: bool) -> None:
        # Animations are off: drawing every frame would cost processor time.
        self._context = browser.new_context(java_script_enabled=scripts, reduced_motion="reduce")
        self.said: list[str] = []
        self._free: list[Page] = []
        self._used: list[Page] = []

    def take(self) -> Page:
        """Return an empty page."""
        page = self._free.pop() if self._free else self._made()
        self._used.append(page)
        return page

    def _made(self) -> Page:
        page = self._context.new_page()
        page.on("console", lambda m: self.said.append(m.text) if m.type in _COMPLAINTS else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        return page

    def leave(self) -> list[str]:
        """Empty the pages of a test and return their console errors."""
        for page in self._used:
            page.goto("about:blank")
        self._free += self._used
        said = [*self.said]
        self._used.clear()
        self.said.clear()
        return said


@pytest.fixture(scope="module")
def kept_pages(browser: Browser) -> dict[bool, _Kept]:
    """Return reusable pages, with scripts and without."""
    return {scripts: _Kept(browser, scripts=scripts) for scripts in (True, False)}


@pytest.fixture
def open_page(kept_pages: dict[bool, _Kept]) -> Iterator[OpensPages]:
    """Yield a function that opens pages; fail the test if a page logs an error."""

    def opened(
        where: Path | str,
        *,
        width: int = 1000,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        page = kept_pages[scripts].take()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        return page

    yield opened
    said = [line for kept in kept_pages.values() for line in kept.leave()]
    assert said == [], f"the page complained on its console: {said[:5]}"
