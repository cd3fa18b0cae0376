"""A real browser for tests: Debian's Chromium or Chrome, driven by playwright; skipped elsewhere.

`open_page` opens an address as a reader would and fails the test when the page complained on its
console. One browser serves all tests of a file, with a fresh profile for every page. It ends with
the file: while playwright runs, nothing else in the process can run an event loop.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

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


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpensPages]:
    """Opens pages; those still open are closed after the test, which fails on what they said."""
    contexts, said = [], []

    def opened(
        where: Path | str,
        *,
        width: int = 1000,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in _COMPLAINTS else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == [], f"the page complained on its console: {said[:5]}"
