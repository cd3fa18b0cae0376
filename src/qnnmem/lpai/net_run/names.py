"""Tensor names as qnn-net-run writes them: in input lists, options and file names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

from qnnmem.errors import UsageError
from qnnmem.text import quote

# A file system takes names of 255 bytes; endings and temporary names need some of them.
_LONGEST = 180


def sanitized(name: str) -> str:
    """A name of word characters: runs of others become `_`, and it does not begin with a digit."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"_{word}"


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """A file name without ending for each tensor, different for all of them."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = base = _short(name)
        number = 2
        while taken & {stem, f"{stem}_native"}:
            stem, number = f"{base}_{number}", number + 1
        found[name] = stem
        taken |= {stem, f"{stem}_native"}
    return found


def matching(written: str, names: Sequence[str]) -> str | None:
    """The tensor meant by a name in a list or option, which may be raw or sanitised."""
    if written in names:
        return written
    return next((name for name in names if sanitized(name) == sanitized(written)), None)


def native_tensors(text: str, graphs: dict[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Inputs by graph that `--native_input_tensor_names` means.

    The text is `graph:tensor,tensor;graph:tensor`; without a graph the names are looked for in all.
    """
    found: dict[str, set[str]] = {graph: set() for graph in graphs}
    for group in filter(None, text.split(";")):
        meant, names = _of_graph(group, graphs)
        for written in filter(None, names.split(",")):
            hits = [(g, n) for g in meant if (n := _input(written, g, graphs)) is not None]
            if not hits:
                known = ", ".join(quote(n) for g in meant for n in graphs[g])[:200]
                raise UsageError(
                    f"--native_input_tensor_names: there is no input {quote(written)}; "
                    f"inputs are {known}"
                )
            for graph, name in hits:
                found[graph].add(name)
    return {graph: frozenset(names) for graph, names in found.items()}


def _of_graph(group: str, graphs: dict[str, Sequence[str]]) -> tuple[list[str], str]:
    """Graphs that a group is about, and its names."""
    graph, colon, names = group.partition(":")
    if colon:
        meant = matching(graph, list(graphs))
        if meant is not None:
            return [meant], names
    return list(graphs), group


def _input(written: str, graph: str, graphs: dict[str, Sequence[str]]) -> str | None:
    return matching(written.removeprefix(f"{graph}:"), graphs[graph])


def _short(name: str) -> str:
    word = sanitized(name)
    if len(word) <= _LONGEST:
        return word
    return f"{word[: _LONGEST - 9]}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
