"""`qnnmem socs`: the targets, and what the HTP compiler says about each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qnnmem.results.socs import Soc


@click.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Also list SoCs without an HTP.")
@result_options("qnnmem.socs/1")
def socs(name: str | None, everything: bool, as_json: bool, output: str | None, force: bool) -> int:
    """List the SoCs of the HTP backend, or show the one called NAME.

    NAME is a name (SM8650), an id (57) or a marketing name ("Snapdragon 8 Gen 3"); a version of
    Hexagon (v75) lists all that have it.

    Exit codes: 0 listed, 2 no such SoC, 3 NAME has no HTP.
    """
    from pathlib import Path

    from qnnmem.cli.output import write
    from qnnmem.report.socs import render_text
    from qnnmem.results.schema import encode
    from qnnmem.results.socs import SocsResult
    from qnnmem.targets.socs import any_soc, with_hexagon
    from qnnmem.targets.socs import socs as known

    chosen: Sequence[Soc]
    if name is not None:
        chosen = with_hexagon(name) or (any_soc(name),)
    else:
        chosen = tuple(soc for soc in known() if everything or soc.has_htp)
    shown = render_text(chosen)
    text = encode(SocsResult(socs=tuple(chosen))) if as_json else shown
    said = "" if name is None else shown.split("\n", 1)[0]
    write(text, None if output is None else Path(output), force, said)
    return 0 if name is None or any(soc.has_htp for soc in chosen) else 3
