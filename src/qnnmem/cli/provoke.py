"""`qnnmem provoke`: real failures of the real library, on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli import options as texts

if TYPE_CHECKING:
    from pathlib import Path

    from qnnmem.htp.provoke import Provoked

_KINDS = ("graph-limit", "op-over-vtcm", "pd-full", "host-memory", "bad-binary")


@click.command(no_args_is_help=True)
@click.argument("kind", type=click.Choice(_KINDS), metavar="KIND")
@click.option("--soc", metavar="SOC", help="As in `qnnmem socs`, e.g. SM8650.  [required]")
@click.option(
    "-o",
    "--output",
    required=True,
    type=texts.OutputPath(is_text=False),
    metavar="DIR",
    help="Folder for record, log and input; it is made if needed.",
)
@texts.seconds_option(120.0, "Seconds that each attempt may take.")
@texts.form_options("qnnmem.provoked/1")
@click.option("--force", is_flag=True, help="Replace files of an earlier run.")
def provoke(
    kind: str, soc: str | None, output: str, time_limit: float, as_json: bool, force: bool
) -> int:
    """Make the real HTP library fail on a small crafted input, and store what it says.

    \b
    KIND          cost             what happens
    graph-limit   2 s, 130 MiB     inputs just above the SoC's limit for one graph
    op-over-vtcm  1 s, 130 MiB     a softmax longer than VTCM
    pd-full       2 s, 130 MiB     contexts of 1 GiB until the domain is full
    host-memory   5 s, 130 MiB     a compile in too little address space
    bad-binary    2 s, 130 MiB     damaged context binaries are loaded

    Nothing is invented: if the library does not fail, this says so. Needs the
    extra `htp` on Linux x86-64.

    Exit codes: 0 it failed as announced, 1 it did not fail (nothing is stored), 2 bad usage, 3 it
    failed for another reason (stored), or the library is missing.
    """  # noqa: D301  click wants the character itself
    from pathlib import Path

    from qnnmem.errors import MissingSoc

    if soc is None:
        raise MissingSoc(what="the library fails for a SoC")
    from qnnmem.atomic_file import folder_for_output
    from qnnmem.cli.output import check_free, write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.htp.provoke import FailureKind
    from qnnmem.htp.provoke import provoke as provoke_failure
    from qnnmem.report.provoke import render_text
    from qnnmem.results.schema import encode
    from qnnmem.targets.socs import find_soc

    chosen, wanted, folder = find_soc(soc), FailureKind(kind), Path(output)
    stem = f"{kind}-{chosen.name}"
    with folder_for_output(folder):
        for ending in ("json", "log", "onnx", "bin"):
            check_free(folder / f"{stem}.{ending}", force)
        with ProgressBar(f"provoking {kind}") as bar:
            found = provoke_failure(wanted, chosen, time_limit_s=time_limit, progress=bar.say)
        record = found.record
        if record.failed:
            _store(found, folder / f"{stem}.json", force)
    write(encode(record) if as_json else render_text(record), None, force=False)
    if not record.failed:
        return 1
    return 0 if record.as_expected else 3


def _store(found: Provoked, place: Path, force: bool) -> None:
    """Record, log and input: all of them or none."""
    from qnnmem.atomic_file import shown, write_together
    from qnnmem.cli.stderr import note
    from qnnmem.results.schema import encode

    record, folder = found.record, place.parent
    contents = {
        folder / record.log_file: found.log_text,
        folder / record.input_file: found.input_bytes,
        place: encode(record).encode("utf-8", "backslashreplace"),
    }
    write_together(contents, force=force)
    note(f"Wrote {shown(place)}")
