"""Runs the example client with every mistake it can make.

Each mistake must be reported with its rule, at the line marked `line:` in the source. For freed
memory, the line of the free must be reported too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.lpai.profiles import profile
from qnnmem.programs.check.client_run import ClientOptions, check_client
from qnnmem.results.programs import ClientResult

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "lpai_client.c"


@dataclass(frozen=True, slots=True)
class Expected:
    """The rule that a mistake breaks, the line that breaks it, and a related line."""

    rule: str
    line: str
    other: str = ""


MISTAKES = {
    "alignment-not-asked": Expected("R1", "setConfig"),
    "async-freed": Expected("R9", "async", "free"),
    "backend-freed-first": Expected("L1", "backendFirst", "contextCreate"),
    "backend-leaked": Expected("L1", "backendCreate"),
    "binary-changed": Expected("R10", "execute"),
    "binary-freed-early": Expected("R10", "execute", "free"),
    "binary-truncated": Expected("B1", "contextCreate"),
    "closed-early": Expected("C2", "dlclose"),
    "config-code-ignored": Expected("C3", "finalize", "setConfig"),
    "context-code-ignored": Expected("C3", "graphRetrieve", "contextCreate"),
    "context-freed-twice": Expected("R16", "contextAgain", "contextFree"),
    "context-handle-wrong": Expected("C6", "wrongHandle"),
    "context-leaked": Expected("L1", "backendFree", "contextCreate"),
    "crash": Expected("C7", "crash"),
    "execute-code-ignored": Expected("C3", "execute"),
    "executed-after-free": Expected("R16", "execute", "contextFree"),
    "finalize-code-ignored": Expected("C3", "execute", "finalize"),
    "finalize-missing": Expected("R5", "execute"),
    "forked-child": Expected("C1", "child"),
    "graph-unknown": Expected("R12", "graphRetrieve"),
    "input-freed": Expected("R9", "execute", "free"),
    "input-misaligned": Expected("R3", "execute"),
    "input-missing": Expected("R9", "execute"),
    "memory-not-deregistered": Expected("L3", "contextFree", "memRegister"),
    "memory-registered-twice": Expected("M1", "memRegister"),
    "memory-used-after": Expected("M2", "execute", "memDeRegister"),
    "memtype-unknown": Expected("R9", "execute"),
    "option-unknown": Expected("R14", "setConfig"),
    "output-on-persistent": Expected("R9", "execute"),
    "output-on-scratch": Expected("X8", "execute"),
    "output-too-small": Expected("R4", "execute"),
    "output-wild": Expected("C4", "execute"),
    "persistent-after-finalize": Expected("R6", "setConfig"),
    "persistent-freed-early": Expected("R8", "execute", "free"),
    "persistent-overwritten": Expected("X6", "execute"),
    "persistent-reallocated": Expected("R8", "execute", "realloc"),
    "pointer-wild": Expected("C4", "wild"),
    "pools-overlap": Expected("X6", "setConfig"),
    "scratch-block-too-small": Expected("R4", "setConfig"),
    "scratch-freed-before": Expected("R7", "setConfig", "free"),
    "scratch-freed-early": Expected("R7", "execute", "free"),
    "scratch-misaligned": Expected("R3", "setConfig"),
    "scratch-missing": Expected("R2", "finalize"),
    "scratch-null": Expected("R7", "setConfig"),
    "scratch-odd-size": Expected("R3", "setConfig"),
    "scratch-on-stack": Expected("C5", "setConfig"),
    "scratch-too-small": Expected("R4", "setConfig"),
    "signal-leaked": Expected("L1", "backendFree", "signalCreate"),
    "turn-missing": Expected("X8", "execute", "execute"),
    "system-leaked": Expected("L2", "systemCreate"),
}


def build(target: Path, compiler: str, flags: Sequence[str] = ()) -> Path:
    """Compile the client and return its path."""
    command = [compiler, "-g", "-w", *flags, str(SOURCE), "-o", str(target), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)  # the compiler
    return target


def one_graph(name: str = "counter") -> bytes:
    """Return a binary with one of the self-test's graphs."""
    from qnnmem.lpai.binary import pack
    from qnnmem.lpai.selftest.models import context

    graphs = tuple(graph for graph in context().graphs if graph.name == name)
    return b"".join(pack(replace(context(), graphs=graphs)))


def run(program: Path, binary: Path, *words: str) -> ClientResult:
    """Return the report on one run of the client."""
    command = (str(program), str(binary), *words)
    return check_client(ClientOptions(command, profile(), time_limit_s=600))


def lines() -> dict[str, int]:
    """Return the marked lines of the client by name."""
    found = {}
    for number, line in enumerate(SOURCE.read_text("utf-8").splitlines(), 1):
        mark = re.search(r"/\* line: (\w+) \*/", line)
        if mark:
            found[mark[1]] = number
    return found


def problems(report: ClientResult, wanted: Expected) -> Iterator[str]:
    """Yield what a run failed to report."""
    places = lines()
    same = [one for one in report.findings if one.rule == wanted.rule]
    if not same:
        said = ", ".join(one.rule for one in report.findings) or "nothing"
        yield f"found {said}, not {wanted.rule}"
        return
    seen = [(_line(one.place), _line(one.other.place if one.other else "")) for one in same]
    first, second = places.get(wanted.line, 0), places.get(wanted.other, 0)
    if not any(a == first and (not second or b == second) for a, b in seen):
        yield f"{wanted.rule} at lines {seen}, not at {first} and {second}"


def _line(place: str) -> int:
    number = place.rpartition(":")[2]
    return int(number) if number.isdigit() and SOURCE.name in place else 0
