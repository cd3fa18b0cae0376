"""A real browser for tests: Debian's Chromium or Chrome, driven by playwright; skipped elsewhere.

`open_page` opens an address as a reader would and fails the test when the page complained on its
console. One browser serves all tests of a file, and a page that a test has left serves the next: no
page of ours keeps anything. It ends with the file: while playwright runs, nothing else in the
process can run an event loop.
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
    "--no-sandbox",  # which root has not, and containers often have not
    "--disable-dev-shm-usage",  # 64 MB in containers
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class OpensPages(Protocol):
    """Opens a file or an address, in a window and with settings of the reader's."""

    def __call__(
        self,
        where: Path | str,
        *,
        width: int = 1000,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """The page, once it has loaded."""
        ...


def found_browser() -> str | None:
    """Where Chromium or Chrome is."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running browser; without one the tests that ask for it are skipped, with the reason."""
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
    """Pages of a browser with scripts or without, and what they complained about."""

    def __init__(self, browser: Browser, *, scripts: bool) -> None:
        # Nothing moves by itself: every frame of it would be drawn by this processor.
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
        """Empty the pages of a test; return what they said."""
        for page in self._used:
            page.goto("about:blank")
        self._free += self._used
        said = [*self.said]
        self._used.clear()
        self.said.clear()
        return said


@pytest.fixture(scope="module")
def kept_pages(browser: Browser) -> dict[bool, _Kept]:
    """Pages with scripts, and pages without."""
    return {scripts: _Kept(browser, scripts=scripts) for scripts in (True, False)}


@pytest.fixture
def open_page(kept_pages: dict[bool, _Kept]) -> Iterator[OpensPages]:
    """Opens pages, which the test leaves at its end; it fails on what they said."""

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
