"""Find the HTP compilers for a verb: the library of this machine, of workers, or of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import CannotTell, MissingSoc, NoCompiler, QnnMemError, UsageError
from qnnmem.loader.file_kind import kind_of_file

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import ExitStack

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.htp.installed import Library
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import ProgressListener, VerbCall


def need_soc(path: Path, soc: str | None) -> None:
    """Raise MissingSoc for a model without a SoC, before slow imports and reads."""
    if soc is None and kind_of_file(path).name in ("onnx", "dlc") and not _may_hold_context(path):
        raise MissingSoc(path)


def _may_hold_context(path: Path) -> bool:
    """Return True if an ONNX file might contain a context binary, which names its SoC."""
    import mmap

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"EPContext") >= 0


def need_compiler(
    path: Path, socs: Sequence[Soc], options: CompileOptions, call: VerbCall, settings: str = ""
) -> Library:
    """Return the library to compile with; raise NoCompiler with notes if no library is found.

    The notes list the numbers that are known without a compile, and where to get a compiler. `at`
    names the settings that the numbers are for, if there are several.
    """
    from qnnmem.htp.library import find_library

    try:
        library = find_library()
    except NoCompiler as missing:
        from qnnmem.htp.compile.preflight import known_uncompiled
        from qnnmem.report import bill as report

        for line in report.facts(known_uncompiled(path, socs, options), settings):
            missing.add_note(line)
        for line in _ways(path, call.words):
            missing.add_note(line)
        raise
    warn(path, options, call.listener)
    return library


def warn(path: Path, options: CompileOptions, listener: ProgressListener) -> None:
    """Print warnings about a file before a compile that can take long."""
    from qnnmem.htp.compile.preflight import preflight_warnings
    from qnnmem.loader.onnx import other_backend_note

    if other := other_backend_note(path, "htp"):
        listener.note(f"note: {other}")
    for sentence in preflight_warnings(path, options):
        listener.note(f"warning: {sentence}")


def _ways(path: Path, typed: Sequence[str]) -> tuple[str, ...]:
    from qnnmem.htp.installed import compiler_exists
    from qnnmem.installation import sources
    from qnnmem.report import bill as report

    # A container sees only the folder it is started in, and folders below.
    is_below = not path.is_absolute() and ".." not in path.parts
    words = list(typed) if is_below else []
    return tuple(report.ways(sources(), words, elsewhere=not compiler_exists()))


def libraries_of_workers(first: Library, listener: ProgressListener) -> list[Library]:
    """Return the library of each worker that answers; note the workers that do not.

    Raise UsageError if the workers have different library versions, because their results would not
    be comparable.
    """
    from qnnmem.htp.library import find_libraries

    refused: list[QnnMemError] = []
    libraries = list(find_libraries(refused)) or [first]
    for why in refused:
        listener.note(f"{why}; continuing without this worker")
    others = sorted({library.name for library in libraries} - {first.name})
    if others:
        raise UsageError(f"the workers have different libraries: {first.name} and {others[0]}")
    return libraries


class ClusterLibrary(NamedTuple):
    """Cluster whose workers all have the library."""

    executor: Executor
    library: str  # package and version
    width: int
    answers: Callable[[], bool]


def cluster_library(address: str, stack: ExitStack) -> ClusterLibrary:
    """Connect to a cluster and ask for its library; `stack` closes the connection."""
    from qnnmem.doctor.fleet.executors import answers, cluster_executor, width
    from qnnmem.htp.remote.cluster import cluster_library_name
    from qnnmem.text import sentence

    executor = stack.enter_context(cluster_executor(address))
    if not answers(executor):
        raise CannotTell(f"the cluster at {address} has no workers")
    try:
        library = executor.submit(cluster_library_name).result(60)
    except QnnMemError:
        raise
    except Exception as exc:  # each cluster has its own exceptions
        raise CannotTell(f"the cluster at {address} failed: {sentence(exc)}") from exc
    if library.startswith("!"):
        raise CannotTell(f"the workers of the cluster have no library: {library[1:]}")
    return ClusterLibrary(executor, library, width(executor), lambda: answers(executor))
