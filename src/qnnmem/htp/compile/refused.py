"""Nodes that QNN refuses: the reason in the log, their names and types in the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.htp.log import LogLine
from qnnmem.qnn.enums import DataType
from qnnmem.results.footprint import OnnxNode
from qnnmem.targets.socs import Soc
from qnnmem.text import printable

if TYPE_CHECKING:
    import onnx

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


# Lines of the validator that follow from an earlier one, or belong to it.
_GENERIC = re.compile(
    r"^(?:REASON : )?(?:validateNativeOps|QnnBackend_validateOpConfig failed|Failed to validate op"
    r"|Requested I/O|Supported I/O|Please refer|unexpected GraphHtpSettings"
    r"|Failed to (?:add|create)\b.{0,80}\bnode\b)"
)
_NO_TYPE = re.compile(r"Operators of type `(\S{1,100})` are not supported by QNN EP")
_UNKNOWN = (
    re.compile(
        r"Fatal error: (?P<domain>[\w.-]{1,200}):(?P<type>\w{1,100})\(-?\d{1,9}\) is not a reg"
    ),
    re.compile(r"No Op registered for (?P<domain>)(?P<type>\w{1,100}) with domain_version of"),
    re.compile(
        r'In Node, \("[^"]{0,2000}", (?P<type>\w{1,100}), "[^"]{0,200}", -?\d{1,9}\).{0,8000}'
        r"No opset import for domain '(?P<domain>[^']{1,200})'"
    ),
)
_NO_TENSORS = re.compile(r"MLDataType for: tensor\((\w{1,40})\) is not currently registered")
_RANK = re.compile(r"has incorrect Rank (\d{1,3})")
_VALUE = re.compile(r"has incorrect Value (\S{1,40}), expected (?:equal to )?(.{1,60}?)\.?$")
_BOUND = re.compile(r"[<>]")
_ZERO_POINT = re.compile(r"Zero-point ONNX data type `(\d{1,3})` is not supported")
_UNMAPPED = re.compile(r"Failed to map Onnx data type to Qnn data type")
_MISMATCH = re.compile(r"mismatching datatypes\. (0x[0-9a-fA-F]{1,8}) != (0x[0-9a-fA-F]{1,8})")
_TENSOR = re.compile(r"tensor datatype (\d{1,9}) not supported")
_OPSET = re.compile(
    r"Opset (\d{1,9}) is under development.{0,400}"
    r"support for domain (\S{1,100}) is till opset (\d{1,9})"
)
_MEANINGS = (
    (re.compile(r"SocModel doesn't support FP16"), "{soc} does not compute in FP16"),
    (
        re.compile(r"Unsupported FP64 data type in graph IO"),
        "64-bit floats cannot be inputs or outputs of a graph for QNN",
    ),
    (_UNMAPPED, "ONNX Runtime has no data type of QNN for one of its tensors"),
    (
        re.compile(r"Unsupported input/output datatypes requested"),
        "HTP does not support it for these data types",
    ),
    (re.compile(r"^(?:REASON : )?Cannot get shape"), "its shape is not fixed"),
    (
        re.compile(r"set nodes that cannot (?:all )?be fused together"),
        "QNN chose nodes that cannot be fused together: a node it does not take lies between them",
    ),
)
VALIDATOR = "the library's validator refuses it without a reason (code 3110)"


def is_generic(line: str) -> bool:
    """Return whether a line says that something was refused, and nothing about why."""
    return _GENERIC.search(line) is not None


def has_no_builder(line: str) -> bool:
    """Return whether a line says that no node of this type can be taken, whatever its shape."""
    return _NO_TYPE.search(line) is not None or unknown_operator(line) is not None


def unknown_operator(line: str) -> tuple[str, str] | None:
    """Domain and type of an operator that ONNX Runtime itself does not know."""
    found = next(filter(None, (pattern.search(line) for pattern in _UNKNOWN)), None)
    return None if found is None else (found["domain"].removeprefix("ai.onnx"), found["type"])


def unknown_tensors(line: str) -> str:
    """The data type that ONNX Runtime itself has no tensors of; empty for other lines."""
    found = _NO_TENSORS.search(line)
    return "" if found is None else found[1]


def is_about_type(line: str) -> bool:
    """Whether a line says that a tensor's type has no counterpart, and not which type that is."""
    return _UNMAPPED.search(line) is not None


def meaning(line: str, soc: str) -> str:
    """A clause that says why, in words; ONNX Runtime's own where that is a sentence already."""
    if not line:
        return VALIDATOR
    if unknown := unknown_operator(line):
        return f"ONNX Runtime knows no operator {':'.join(filter(None, unknown))}"
    if found := _NO_TENSORS.search(line):
        return f"ONNX Runtime has no tensors of {found[1]}"
    if found := _OPSET.search(line):
        given, domain, last = found.groups()
        return f"the model is of opset {given} of {domain}, ONNX Runtime has them up to {last}"
    if has_no_builder(line):
        return "QNN has no operator of this type"
    if found := _RANK.search(line):
        return f"one of its tensors has {found[1]} dimensions, which HTP does not support there"
    if found := _VALUE.search(line):
        wanted = f"expects {found[2]}" if _BOUND.search(found[2]) else f"takes {found[2]} only"
        return f"one of its parameters is {found[1]}, HTP {wanted}"
    if found := _ZERO_POINT.search(line):
        return f"QNN has no zero points of {element_name(int(found[1]))}"
    if found := _MISMATCH.search(line):
        one, other = (type_name(int(number, 16)) for number in found.groups())
        return f"its tensors are {one} and {other} for QNN, but must have one type"
    if found := _TENSOR.search(line):
        return f"QNN has no tensors of {type_name(int(found[1]))}"
    for pattern, words in _MEANINGS:
        if pattern.search(line):
            return words.format(soc=soc)
    return printable(line).removeprefix("REASON : ").rstrip(" .!")


def element_name(number: int) -> str:
    """A data type of ONNX by its number, `bfloat16` for example."""
    from onnx import TensorProto

    try:
        return str(TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type {number}"


def type_name(number: int) -> str:
    """A `Qnn_DataType_t` in short, `float64` for example, or its number where it is not known."""
    if number not in set(DataType):
        return f"type 0x{number:x}"
    name = DataType(number).name.lower()
    return name if "fixed" in name else name.replace("_", "")


# --- Refused nodes as the model has them ----------------------------------------------------------


# ONNX Runtime makes a node anew in the layout that QNN wants, under a name of its own.
_REMADE = re.compile(r"_token_\d{1,9}$")
_SHOWN = 8  # tensors of a node, each
# Of these alone QNN makes no graph.
_NO_WORK = ("Constant", "QuantizeLinear", "DequantizeLinear")
_UNTOLD = "?"  # the type of a tensor that the file does not tell
_UNMAPPED_TYPES = ("bfloat16", "complex64", "complex128", "float8", "string", "uint4", "int4")


class Described(NamedTuple):
    """Refused nodes in the model's own words."""

    nodes: tuple[RefusedNode, ...]
    all_refused: bool = False  # nothing of the model is left to compile


def described(nodes: Sequence[RefusedNode], model: Path, soc: Soc) -> Described:
    """The nodes with names, types, shapes and reasons, as far as the model is readable."""
    from qnnmem.loader.onnx import read_guarded

    if not nodes:
        return Described(())
    # Without a verdict on the node the log is too terse to hold a reason.
    said = tuple(
        node
        if node.index is None or node.reason
        else replace(node, reason=meaning(node.line, soc.name))
        for node in nodes
    )
    try:
        graph = read_guarded(model).proto.graph
    except LoadError:
        return Described(said)
    types = _types(graph)
    by_name = {node.name: node for node in graph.node if node.name}
    found = tuple(_described(node, graph.node, by_name, types) for node in said)
    working = sum(node.op_type not in _NO_WORK for node in graph.node)
    left = sum(node.operator not in _NO_WORK for node in nodes)
    return Described(found, left >= working)


def with_origins(
    listed: Sequence[RefusedNode], judged: Sequence[RefusedNode], model: Path
) -> tuple[RefusedNode, ...]:
    """Refused nodes of which the model knows: ONNX Runtime puts functions in the place of some.

    Such a function is `judged` first, as one node, and is not `listed`: its parts are, without
    names.
    """
    names = {(node.name, node.operator) for node in listed}
    origins = [n for n in judged if (n.name, n.operator) not in names and has_no_builder(n.line)]
    kinds = _nameless_kinds(model) if origins else None
    if kinds is None:
        return tuple(listed)
    parts = [node for node in listed if not node.name and node.operator not in kinds]
    if not parts:
        return tuple(listed)
    shown = ", ".join(sorted({node.operator for node in parts}))
    what = f"QNN has no operator of this type, and ONNX Runtime computes it by {shown}, which"
    why = f"{what} QNN refuses"
    rest = [node for node in listed if node not in parts]
    return (*(replace(one, reason=why) for one in origins), *rest)


def _nameless_kinds(model: Path) -> set[str] | None:
    """Types of the nodes of a model that have no names; None where it cannot be read."""
    from qnnmem.loader.onnx import read_guarded

    try:
        nodes = read_guarded(model).proto.graph.node
    except LoadError:
        return None
    return {node.op_type for node in nodes if not node.name}


def named(
    on_cpu: Iterable[Sequence[str]], refused: Iterable[RefusedNode], model: Path, soc: Soc
) -> tuple[OnnxNode, ...]:
    """Nodes that stay on the CPU, with the reasons why they were refused."""
    nodes = tuple(refused)
    left = list(zip(nodes, described(nodes, model, soc).nodes, strict=True))
    found = []
    for name, operator in on_cpu:
        same = (pair for pair in left if (pair[0].name, pair[0].operator) == (name, operator))
        pair = next(same, None)
        if pair is None:
            found.append(OnnxNode(name, operator))
            continue
        left.remove(pair)
        found.append(OnnxNode(pair[1].name, operator, pair[1].reason))
    return tuple(found)


def unknown_nodes(sentence: str, model: Path, soc: Soc) -> Described:
    """The nodes of an operator that ONNX Runtime itself does not know."""
    from qnnmem.loader.onnx import read_guarded

    unknown = unknown_operator(sentence)
    if unknown is None:
        return _of_unknown_type(sentence, model, soc)
    domain, operator = unknown
    try:
        nodes = read_guarded(model).proto.graph.node
    except LoadError:
        nodes = ()
    found = [
        RefusedNode(node.name, operator, sentence, index=at)
        for at, node in enumerate(nodes)
        if node.op_type == operator and (not domain or node.domain == domain)
    ]
    # Such a model is refused as a whole, before any node is judged.
    nodes_ = described(found or [RefusedNode("", operator, sentence, index=-1)], model, soc).nodes
    return Described(nodes_, all_refused=True)


def _of_unknown_type(sentence: str, model: Path, soc: Soc) -> Described:
    """The nodes that take or give tensors which ONNX Runtime itself does not have."""
    from qnnmem.loader.onnx import read_guarded

    element = unknown_tensors(sentence)
    if not element:
        return Described(())
    try:
        graph = read_guarded(model).proto.graph
    except LoadError:
        return Described(())
    types = _types(graph)
    found = [
        RefusedNode(node.name, node.op_type, sentence, index=at)
        for at, node in enumerate(graph.node)
        if any(types.get(name, "").startswith(element) for name in (*node.input, *node.output))
    ]
    return Described(described(found, model, soc).nodes, all_refused=True)


def _described(
    refused: RefusedNode,
    nodes: Sequence[onnx.NodeProto],
    by_name: Mapping[str, onnx.NodeProto],
    types: Mapping[str, str],
) -> RefusedNode:
    name = refused.name
    if name not in by_name:
        name = _REMADE.sub("", name)
    found = by_name.get(name) if name else _at(refused, nodes)
    if found is None:
        return refused
    takes, gives = _typed(found.input, types), _typed(found.output, types)
    if {*takes, *gives} == {_UNTOLD}:
        takes = gives = ()
    reason = refused.reason
    if is_about_type(refused.line):
        reason = _with_type(reason, (*takes, *gives))
    name = found.name or next(filter(None, found.output), "")
    return replace(refused, name=name, inputs=takes, outputs=gives, reason=reason)


def _with_type(reason: str, tensors: Iterable[str]) -> str:
    """A reason that names the type which has no counterpart, where it can only be one."""
    words = {text.split(" ")[0] for text in tensors}
    found = sorted(words & set(_UNMAPPED_TYPES))
    return f"ONNX Runtime has no data type of QNN for {found[0]}" if len(found) == 1 else reason


def _at(refused: RefusedNode, nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    """A node without a name, by its place; by its type where only one such is there."""
    index = refused.index
    if index is not None and 0 <= index < len(nodes):
        node = nodes[index]
        if node.op_type == refused.operator and not node.name:
            return node
    alike = [node for node in nodes if node.op_type == refused.operator and not node.name]
    return alike[0] if len(alike) == 1 else None


def _typed(names: Iterable[str], types: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(types.get(name, _UNTOLD) for name in names if name)[:_SHOWN]


def _types(graph: onnx.GraphProto) -> dict[str, str]:
    """Type and shape of every tensor that the file tells."""
    from qnnmem.loader.onnx.tensor import type_of

    found = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        known = type_of(info)
        if known is not None and known.elem:
            found[info.name] = _words(_name_of(known.elem), known.shape)
    for tensor in graph.initializer:
        found[tensor.name] = _words(_name_of(tensor.data_type), tuple(tensor.dims))
    return found


def _name_of(element: int) -> str:
    from qnnmem.htp.compile.refused import element_name
    from qnnmem.loader.onnx.tensor import DTYPES

    return DTYPES[element].value if element in DTYPES else element_name(element)


def _words(element: str, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return element
    return f"{element} {'x'.join(map(str, shape))}" if shape else f"{element} scalar"
