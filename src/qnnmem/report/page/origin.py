"""Where a page comes from: its files with their hashes, the options, the versions of libraries."""

from __future__ import annotations

from collections.abc import Sequence

from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import lines, table, tag
from qnnmem.report.shell import shell_line
from qnnmem.results.result import TOOL

_MEANING = (
    ("measured", "a real library printed it, or a real run showed it"),
    ("computed", "qnnmem derived it"),
    ("documented", "a page of the vendor states it"),
    ("reported", "users state it, or a log does"),
    ("given", "it was asked for"),
)


def origin_section(
    files: Sequence[tuple[str, int, str]],
    options: Sequence[str],
    versions: Sequence[tuple[str, str]],
) -> PageSection:
    """What was read for a page, and by what; of files the name, the bytes and the hash."""
    tools = [("qnnmem", TOOL.removeprefix("qnnmem ")), *versions]
    return PageSection(
        "Where this page comes from",
        lines(
            [
                table(("file", "bytes", "SHA-256"), files),
                tag("p", f"Options: {shell_line(options)}") if options else tag("p", "No options."),
                table(("library on the machine that wrote the page", "version"), tools),
                table(("word beside a number", "means"), _MEANING),
            ]
        ),
    )
