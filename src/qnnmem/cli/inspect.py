"""`qnnmem inspect`: what a context binary holds."""

from __future__ import annotations

import click

_LARGEST = 16 << 30


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON with the nesting of qnn-context-binary-utility.",
)
@click.option(
    "-o", "--output", type=click.Path(), help="Write to this file instead of the terminal."
)
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def inspect(file: str, as_json: bool, output: str | None, force: bool) -> int:
    """Show what the context binary FILE holds: graphs, pools, tensors, places, state.

    FILE is what `qnnmem prepare` writes. Every checksum and every reference in it is checked.

    Exit codes: 0 shown, 2 the binary is damaged, of another version, or cannot be read.
    """
    from pathlib import Path

    from qnnmem.cli.output import check_free, write
    from qnnmem.errors import LoadError
    from qnnmem.load.source import read_bytes
    from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
    from qnnmem.lpai.inspect import binary_info
    from qnnmem.qnn.finding import QnnError

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)  # says so before the work, not after
    # Read, not mapped: a file that shrinks meanwhile must end in a sentence.
    data = read_bytes(Path(file), _LARGEST)
    try:
        info = binary_info(unpack(data, MALFORMED_BINARY), len(data))
    except QnnError as exc:  # the code says which fault it is; to the shell it is bad input
        raise LoadError(file, str(exc)) from exc
    write(_render(info, file, as_json), target, force)
    return 0


def _render(info: dict[str, object], file: str, as_json: bool) -> str:
    import json

    from qnnmem.report import inspect_text

    return json.dumps(info, indent=1) + "\n" if as_json else inspect_text.render(info, file)
