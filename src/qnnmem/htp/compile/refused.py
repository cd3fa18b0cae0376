"""Which nodes the library refuses, and the line of its log that says why, for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qnnmem.htp.compile.reason import is_generic
from qnnmem.htp.log import LogLine

# ONNX Runtime lists the nodes before anything is compiled, when the CPU may not take them.
UNSUPPORTED = b"Unsupported nodes in QNN EP: "
_LISTED = re.compile(r"\{ name: (.{0,2000}?), type: (\w{1,100}) \}")
_NODE = re.compile(r"^Operator type: (\S{1,200}) Node name: (.{0,2000}?) ?Node index: (\d{1,9})$")
_VERDICT = re.compile(r"^Validation (PASSED|FAILED) for \d")
_REASON = "REASON : "


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """A node that QNN cannot take, and why."""

    name: str  # where exporters left it empty, that of its first output
    operator: str
    line: str = ""  # of the log that decides
    reason: str = ""  # what the line means, in words
    inputs: tuple[str, ...] = ()  # type and shape of each, as far as known
    outputs: tuple[str, ...] = ()
    index: int | None = None  # in ONNX Runtime's graph, which begins as the model's


def refused_nodes(log: Sequence[LogLine]) -> tuple[RefusedNode, ...]:
    """The nodes that are refused, in order, each once.

    Up to the first list of ONNX Runtime, if there is one: what follows repeats it for the graph in
    another layout, and how much of that is seen depends on when the process was stopped.
    """
    mark = UNSUPPORTED.decode()
    end = next((at for at, line in enumerate(log) if mark in line.text), None)
    found = _each_once(_judged(log[:end]))
    if end is None:
        return found
    listed = [RefusedNode(names[1], names[2]) for names in _LISTED.finditer(log[end].text)]
    return tuple(_with_lines(listed, found))


def judged_nodes(log: Sequence[LogLine]) -> tuple[RefusedNode, ...]:
    """Every node that is refused at any time, also those that ONNX Runtime then takes apart."""
    return _each_once(_judged(log))


def _with_lines(
    listed: Iterable[RefusedNode], judged: Sequence[RefusedNode]
) -> Iterator[RefusedNode]:
    left = list(judged)
    for node in listed:
        same = (one for one in left if (one.name, one.operator) == (node.name, node.operator))
        found = next(same, None)
        if found is not None:
            left.remove(found)
        yield found or node


def _judged(log: Iterable[LogLine]) -> Iterator[RefusedNode]:
    """Nodes under each verdict, with the first line before it that says something."""
    nodes: list[RefusedNode] = []
    said, decisive, failed = "", "", False
    for line in log:
        text = line.text
        if verdict := _VERDICT.match(text):
            nodes, failed = [], verdict[1] == "FAILED"
            decisive, said = said, ""
        elif (node := _NODE.match(text)) and failed:
            nodes.append(RefusedNode(node[2], node[1], decisive, index=int(node[3])))
        elif text.startswith(_REASON) and failed:
            own = "" if is_generic(text) else text
            yield from (replace(one, line=one.line or own) for one in nodes)
            nodes, failed = [], False
        elif not said and _says_why(line):
            said = text


def _says_why(line: LogLine) -> bool:
    if is_generic(line.text):
        return False
    return "mismatching" in line.text or (line.level == "E" and "onnxruntime" not in line.text)


def _each_once(nodes: Iterable[RefusedNode]) -> tuple[RefusedNode, ...]:
    """Of a node that is judged twice, the first verdict."""
    found: dict[tuple[int | None, str, str], RefusedNode] = {}
    for node in nodes:
        found.setdefault((node.index, node.name, node.operator), node)
    return tuple(found.values())


def decisive_line(log: Sequence[LogLine]) -> str:
    """The first line that says why a compile failed after the nodes were judged."""
    last = max((at for at, line in enumerate(log) if _VERDICT.match(line.text)), default=-1)
    for line in log[last + 1 :]:
        if line.level == "E" and not is_generic(line.text):
            return line.text
    return ""
