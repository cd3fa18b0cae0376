"""Where many compiles happen: every worker that is named, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import ExitStack

    from qnnmem.htp.library import Library
    from qnnmem.verbs.listener import ProgressListener


def libraries_of_workers(first: Library, listener: ProgressListener) -> list[Library]:
    """The library of each worker that answers; those that do not are noted.

    Workers with another version of it would make a table of two kinds of rows: they are refused.
    """
    from qnnmem.errors import QnnMemError, UsageError
    from qnnmem.htp.library import find_libraries

    refused: list[QnnMemError] = []
    found = list(find_libraries(refused)) or [first]
    for why in refused:
        listener.note(f"{why}; going on without it")
    others = sorted({one.name for one in found} - {first.name})
    if others:
        raise UsageError(f"the workers have different libraries: {first.name} and {others[0]}")
    return found


class ClusterLibrary(NamedTuple):
    """A cluster whose workers have the library."""

    executor: Executor
    library: str  # package and version
    width: int
    answers: Callable[[], bool]


def cluster_library(address: str, stack: ExitStack) -> ClusterLibrary:
    """A cluster, asked for its library; the connection ends with `stack`."""
    from qnnmem.doctor.fleet.executors import answers, cluster_executor, width
    from qnnmem.errors import CannotTell, QnnMemError
    from qnnmem.htp.remote.cluster import library_there_is
    from qnnmem.text import sentence

    executor = stack.enter_context(cluster_executor(address))
    if not answers(executor):
        raise CannotTell(f"the cluster at {address} has no workers")
    try:
        library = executor.submit(library_there_is).result(60)
    except QnnMemError:
        raise
    except Exception as exc:  # of whatever kind the cluster has
        raise CannotTell(f"the cluster at {address} does not work: {sentence(exc)}") from exc
    if library.startswith("!"):
        raise CannotTell(f"the workers of the cluster have no library: {library[1:]}")
    return ClusterLibrary(executor, library, width(executor), lambda: answers(executor))
