"""The HTML file with its styles, drawing code and data; its security policy forbids fetching."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from qnnmem.report.page.markup import Html, details, lines, table, tag, text
from qnnmem.report.shell import shell_line
from qnnmem.results.result import TOOL


@dataclass(frozen=True, slots=True)
class PageSection:
    """Part of a page for one result."""

    title: str
    body: Html
    has_map: bool = False
    is_folded: bool = False  # collapsed, e.g. the provenance


def render_page(sections: Sequence[PageSection], title: str, *, heading: str = "") -> str:
    """Return the HTML file; the default heading is the title of the only section, else `title`."""
    style, script = page_style(), page_script()
    rules = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {source_of(style)}; script-src {source_of(script)}"
    )
    named = [(f"part-{number}", section) for number, section in enumerate(sections, start=1)]
    shown = [(name, section) for name, section in named if not section.is_folded]
    links = (tag("a", section.title, href=f"#{name}") for name, section in shown)
    alone = len(shown) == 1 and not heading
    parts = (_part(name, section, is_headed=not alone) for name, section in named)
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{text(shown[0][1].title if alone else heading or title)}</h1>"
        + (f'<nav aria-label="Parts">{lines(links)}</nav>' if len(shown) > 1 else "")
        + f"</header>\n<main>\n{lines(parts)}\n</main>\n"
        f"<footer>Written by {text(TOOL)}. Not affiliated with Qualcomm.</footer>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _part(name: str, section: PageSection, *, is_headed: bool) -> Html:
    if section.is_folded:
        return tag("section", details(section.title, section.body), id=name)
    if not is_headed:
        return tag("section", section.body, id=name, aria_label=section.title, class_="alone")
    heading = tag("h2", section.title, id=f"{name}-title")
    return tag("section", heading, section.body, id=name, aria_labelledby=f"{name}-title")


def page_style() -> str:
    """Return the styles of all sections, for use on another page."""
    return _file("page.css")


def page_script() -> str:
    """Return the script that draws maps and copies commands.

    A page that inserts maps later calls `qnnmemDraw()` to draw them.
    """
    return _file("map.js")


def source_of(content: str) -> str:
    """Return the Content-Security-Policy source that allows an inline element."""
    return f"'sha256-{_hash(content)}'"


def _file(name: str) -> str:
    return files("qnnmem.report.page").joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


_MEANING = (
    ("measured", "printed by a real library or seen in a real run"),
    ("computed", "computed by qnnmem"),
    ("documented", "stated in the vendor's documentation"),
    ("reported", "stated by users or in a log"),
    ("given", "given by the user"),
)


def origin_section(
    files: Sequence[tuple[str, int, str]],
    options: Sequence[str],
    versions: Sequence[tuple[str, str]],
) -> PageSection:
    """Return a section with source files (name, size, hash), options and tool versions."""
    tools = [("qnnmem", TOOL.removeprefix("qnnmem ")), *versions]
    return PageSection(
        "Where this page comes from",
        lines(
            [
                table(("file", "bytes", "SHA-256"), files),
                tag("p", f"Options: {shell_line(options)}") if options else tag("p", "No options."),
                table(("software on the machine that wrote this page", "version"), tools),
                table(("word next to a number", "means"), _MEANING),
            ]
        ),
        is_folded=True,
    )
