"""Verb `report`: turn any file into a result, and show several results on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from qnnmem.bounded_file import read_bytes
from qnnmem.errors import LoadError, UsageError
from qnnmem.loader.file_kind import CARRIERS, bundle_config, kind_of_file, wrong_kind
from qnnmem.options.option import Options, typed
from qnnmem.options.plan import PlanFileOptions

if TYPE_CHECKING:
    from qnnmem.options.page import ReportOptions
    from qnnmem.verbs import VerbCall

_LARGEST = 64 << 20  # bytes of a result
_MOST = 50  # files on a page
_LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-qnn")
# By kind of file: the verb that makes a result from it.
_VERB_OF = {
    **dict.fromkeys(("onnx", "tflite", "dlc", "eaix", "csv"), "plan"),
    **dict.fromkeys(("htp", "epcontext", *CARRIERS), "footprint"),
    **dict.fromkeys(("text", "packed"), "doctor"),
    "lpai": "inspect",
    "trace": "watch",
}


class SizedFile(NamedTuple):
    """File, and the planning options if it is a model."""

    path: Path
    options: PlanFileOptions


def verb_of(path: Path) -> str | None:
    """Return the verb that makes a result from a file; None for a result or an unknown file."""
    return _VERB_OF.get(kind_of_file(path).name)


def result_of(file: SizedFile, call: VerbCall, action: str) -> Any:
    """Return the JSON of a result file, or of a verb's result for the file.

    `action` ends the error message about an unsupported file.
    """
    import json

    path, kind = file.path, kind_of_file(file.path)
    if kind.name == "result":
        try:
            return json.loads(read_bytes(path, _LARGEST))
        except (ValueError, RecursionError) as exc:
            raise LoadError(path, "is truncated or is not valid JSON") from exc
    verb = _VERB_OF.get(kind.name)
    if verb is None:
        raise wrong_kind(path, kind, action)
    return json.loads(_made(verb, file, call))


def _made(verb: str, file: SizedFile, call: VerbCall) -> str:
    from qnnmem.options.htp import FootprintOptions
    from qnnmem.verbs.answer import answer

    options: Options = file.options
    if verb != "plan":
        options = FootprintOptions() if verb == "footprint" else Options()
    elif kind_of_file(file.path).name != "onnx":  # all sizes are fixed
        options = replace(file.options, dims=(), shapes=(), values=())
    name = str(file.path)
    text, _code = answer(verb, name, options, call._replace(words=(verb, *typed(options), name)))
    return text


def render_files(files: Sequence[str], options: ReportOptions, call: VerbCall) -> str:
    """Return one HTML page about several files."""
    from qnnmem.report.page.document import origin_section, render_page
    from qnnmem.report.page.sections import sections_of

    if len(files) > _MOST:
        raise UsageError(f"a page shows {_MOST} files at most; name fewer")
    sizes = PlanFileOptions(dims=options.dims, shapes=options.shapes, values=options.values)
    action = "which qnnmem report does not show"
    sections = [
        section
        for file in files
        for section in sections_of(result_of(SizedFile(Path(file), sizes), call, action), file)
    ]
    words = [part for word in typed(sizes) for part in word.split("=", 1)]
    sections.append(origin_section([_origin(file) for file in files], words, _versions()))
    names = ", ".join(Path(file).name for file in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return render_page(sections, options.title or f"{names}{more}", heading=options.title or "")


def _origin(file: str) -> tuple[str, int, str]:
    """Return the name, size and hash of a source file; for a folder, those of its config file."""
    from hashlib import file_digest

    try:
        with Path(file, bundle_config(Path(file))).open("rb") as stream:
            digest = file_digest(stream, "sha256").hexdigest()
            return file, stream.tell(), digest
    except OSError as exc:
        raise LoadError(Path(file), "cannot be read again") from exc


def _versions() -> list[tuple[str, str]]:
    """Return the installed versions of the libraries that can affect the numbers on the page."""
    from importlib.metadata import PackageNotFoundError, version
    from platform import python_version

    versions = [("Python", python_version())]
    for name in _LIBRARIES:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return versions
