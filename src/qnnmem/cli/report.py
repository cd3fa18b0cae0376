"""`qnnmem report`: results, models, binaries and logs as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from qnnmem.cli import options as texts
from qnnmem.errors import LoadError, UsageError

_LARGEST = 64 << 20  # bytes of a result
_MOST = 50  # files
_LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-qnn")
# Which verb makes the result of a file that is none yet.
_VERB_OF = {
    **dict.fromkeys(("onnx", "tflite", "dlc", "eaix", "csv"), "plan"),
    **dict.fromkeys(("htp", "epcontext"), "footprint"),
    **dict.fromkeys(("text", "packed"), "doctor"),
    "lpai": "inspect",
    "trace": "watch --read",
}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--title", metavar="TEXT", help="Of the page.  [default: the names of the files]")
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=N",
    help="Model: fix a named free dimension, e.g. batch=1.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="TENSOR=AxB",
    help="Model: fix a tensor's shape, e.g. x=1x3x224x224.",
)
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="INPUT=V",
    help="Model: make an input a constant, e.g. sr=16000.",
)
@click.option(
    "-o",
    "--output",
    type=texts.OutputPath(),
    required=True,
    metavar="FILE",
    help="The page, e.g. report.html.",
)
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def report(
    files: tuple[str, ...],
    title: str | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    output: str,
    force: bool,
) -> int:
    """Show FILE as one HTML page that needs no network and opens from disk.

    FILE is a result in JSON (of plan, footprint, fit, sweep, place, qmem, doctor, fix, inspect,
    lint, check, diff, check-client or watch), a model, which is planned, a context binary of HTP,
    whose bill is shown, one of LPAI, which is inspected, a trace of watch, or a log, which the
    doctor reads. Several files become parts of one page.

    Exit codes: 0 written, 2 bad usage or a file that cannot be shown.
    """
    from qnnmem.cli.output import check_free, write
    from qnnmem.report.page.document import origin_section, render_page
    from qnnmem.report.page.sections import sections_of

    target = Path(output)
    check_free(target, force)
    if len(files) > _MOST:
        raise UsageError(f"a page shows {_MOST} files at most; name fewer")
    words = [*_each("--dim", dims), *_each("--shape", shapes), *_each("--value", values)]
    sections = [one for file in files for one in sections_of(result_of(Path(file), words), file)]
    sections.append(origin_section([_origin(file) for file in files], words, _versions()))
    names = ", ".join(Path(file).name for file in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    write(render_page(sections, title or f"{names}{more}"), target, force)
    return 0


def _origin(file: str) -> tuple[str, int, str]:
    """Name, bytes and hash of a file that a page was made from."""
    from hashlib import file_digest

    try:
        with Path(file).open("rb") as stream:
            digest = file_digest(stream, "sha256").hexdigest()
            return file, stream.tell(), digest
    except OSError as exc:
        raise LoadError(Path(file), "cannot be read again") from exc


def _versions() -> list[tuple[str, str]]:
    """Libraries that numbers may come from, as they are installed."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    found = [("Python", python_version())]
    for name in _LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def _each(option: str, values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (option, value)


def result_of(
    path: Path,
    words: Sequence[str],
    action: str = "which qnnmem report does not show",
    more: Mapping[str, str] | None = None,
    planning: Sequence[str] = (),
) -> Any:
    """A result that is there, or that a verb makes; `more` are kinds of files and their verbs.

    `words` are for what an ONNX model leaves open, `planning` for everything that is planned.
    """
    import json

    from qnnmem.bounded_file import read_bytes
    from qnnmem.loader.file_kind import kind_of_file, wrong_kind

    kind = kind_of_file(path)
    if kind.name != "result":
        verb = {**_VERB_OF, **(more or {})}.get(kind.name)
        if verb is None:
            raise wrong_kind(path, kind, action)
        given = [*(words if kind.name == "onnx" else ()), *(planning if verb == "plan" else ())]
        return json.loads(_said(*verb.split(), str(path), *given))
    try:
        return json.loads(read_bytes(path, _LARGEST))
    except (ValueError, RecursionError) as exc:
        raise LoadError(path, "is not whole: its JSON does not end as it should") from exc


def is_planned(path: Path) -> bool:
    """Whether a file is one that `plan` makes the result of."""
    from qnnmem.loader.file_kind import kind_of_file

    return _VERB_OF.get(kind_of_file(path).name) == "plan"


def _said(*words: str) -> str:
    """What a verb prints as JSON: a page shows the same numbers as the verb does."""
    from contextlib import redirect_stdout
    from io import StringIO

    from qnnmem.cli.verbs import qnnmem

    said = StringIO()
    with redirect_stdout(said):
        qnnmem.main([*words, "--json"], prog_name="qnnmem", standalone_mode=False)
    return said.getvalue()
