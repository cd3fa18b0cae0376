"""Options of the verbs that make pages: report and serve."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt, Options
from qnnmem.options.plan import ShapeOptions


class ReportOptions(ShapeOptions, frozen=True, kw_only=True):
    """Title and output file of a page, and sizes for the open dimensions of its models."""

    title: Annotated[
        str | None,
        Opt(
            "--title",
            "Title of the page.",
            metavar="TEXT",
            default="the file names",
            leads=True,
        ),
    ] = None
    output: Annotated[
        str | None,
        shared.OUTPUT.but("HTML file to write, e.g. report.html.", metavar="FILE", required=True),
    ] = None
    force: Annotated[bool, shared.FORCE] = False


class ServeOptions(Options, frozen=True, kw_only=True):
    """Address, access token and folder of the workbench."""

    host: Annotated[
        str,
        Opt(
            "--host",
            "Address to listen on; other machines need --token.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Opt(
            "--port",
            "Port to listen on; 0 selects a free port.",
            metavar="N",
            ge=0,
            le=65_535,
        ),
    ] = 8765
    token: Annotated[
        str | None,
        Opt(
            "--token",
            "Access token that visitors must enter, at least 16 characters.",
            metavar="TEXT",
            envvar="QNNMEM_TOKEN",
            default="$QNNMEM_TOKEN",
        ),
    ] = None
    data: Annotated[
        str | None,
        Opt(
            "--data",
            "Folder for files and results.",
            metavar="DIR",
            default="workbench in the user's cache folder",
            is_file=True,
        ),
    ] = None
    no_browser: Annotated[bool, Opt("--no-browser", "Do not open the browser.")] = False
