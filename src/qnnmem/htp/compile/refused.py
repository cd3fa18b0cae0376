"""Nodes that QNN refuses: the reason in the log, their names and types in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import LoadError
from qnnmem.htp.log import LogLine
from qnnmem.qnn.enums import DataType
from qnnmem.results.footprint import OnnxNode
from qnnmem.targets.socs import Soc
from qnnmem.text import lazy_pattern, printable

if TYPE_CHECKING:
    import onnx

# If nodes may not run on the CPU, ONNX Runtime lists them before it compiles.
UNSUPPORTED = b"Unsupported nodes in QNN EP: "
_LISTED = lazy_pattern(r"\{ name: (.{0,2000}?), type: (\w{1,100}) \}")
_NODE = lazy_pattern(r"^Operator type: (\S{1,200}) Node name: (.{0,2000}?) ?Node index: (\d{1,9})$")
_VERDICT = lazy_pattern(r"^Validation (PASSED|FAILED) for \d")
_REASON = "REASON : "


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """A node that QNN refuses, with the reason."""

    name: str  # the name of the first output if the node has no name
    operator: str
    line: str = ""  # the decisive line of the log
    reason: str = ""  # the meaning of that line
    inputs: tuple[str, ...] = ()  # type and shape of each, if known
    outputs: tuple[str, ...] = ()
    index: int | None = None  # in ONNX Runtime's graph, whose order starts as the model's


def refused_nodes(log: Sequence[LogLine]) -> tuple[RefusedNode, ...]:
    """Return the refused nodes in order, each once.

    If ONNX Runtime lists nodes, lines after its first list are ignored. These lines repeat the
    nodes for the graph in another layout, and their number depends on when the process was stopped.
    """
    mark = UNSUPPORTED.decode()
    end = next((index for index, line in enumerate(log) if mark in line.text), None)
    judged = _each_once(_judged(log[:end]))
    if end is None:
        return judged
    listed = [RefusedNode(names[1], names[2]) for names in _LISTED.finditer(log[end].text)]
    return tuple(_with_lines(listed, judged))


def judged_nodes(log: Sequence[LogLine]) -> tuple[RefusedNode, ...]:
    """Return every refused node, including functions that ONNX Runtime expands later."""
    return _each_once(_judged(log))


def _with_lines(
    listed: Iterable[RefusedNode], judged: Sequence[RefusedNode]
) -> Iterator[RefusedNode]:
    left = list(judged)
    for node in listed:
        key = node.name, node.operator
        match = next((other for other in left if (other.name, other.operator) == key), None)
        if match is not None:
            left.remove(match)
        yield match or node


def _judged(log: Iterable[LogLine]) -> Iterator[RefusedNode]:
    """Yield refused nodes, each with the first reason in the log before the node's verdict."""
    nodes: list[RefusedNode] = []
    reason, decisive, failed = "", "", False
    for line in log:
        text = line.text
        if verdict := _VERDICT.match(text):
            nodes, failed = [], verdict[1] == "FAILED"
            decisive, reason = reason, ""
        elif (node := _NODE.match(text)) and failed:
            nodes.append(RefusedNode(node[2], node[1], decisive, index=int(node[3])))
        elif text.startswith(_REASON) and failed:
            own = "" if is_generic(text) else text
            yield from (replace(refused, line=refused.line or own) for refused in nodes)
            nodes, failed = [], False
        elif not reason and _says_why(line):
            reason = text


def _says_why(line: LogLine) -> bool:
    if is_generic(line.text):
        return False
    return "mismatching" in line.text or (line.level == "E" and "onnxruntime" not in line.text)


def _each_once(nodes: Iterable[RefusedNode]) -> tuple[RefusedNode, ...]:
    """Return the nodes without duplicates, each with its first verdict."""
    distinct: dict[tuple[int | None, str, str], RefusedNode] = {}
    for node in nodes:
        distinct.setdefault((node.index, node.name, node.operator), node)
    return tuple(distinct.values())


def decisive_line(log: Sequence[LogLine]) -> str:
    """Return the first line that states why a compile failed.

    Lines up to the last verdict on a single node are skipped.
    """
    last = max((index for index, line in enumerate(log) if _VERDICT.match(line.text)), default=-1)
    for line in log[last + 1 :]:
        if line.level == "E" and not is_generic(line.text):
            return line.text
    return ""


# Lines of the validator that follow from an earlier line or belong to it.
_GENERIC = lazy_pattern(
    r"^(?:REASON : )?(?:validateNativeOps|QnnBackend_validateOpConfig failed|Failed to validate op"
    r"|Requested I/O|Supported I/O|Please refer|unexpected GraphHtpSettings"
    r"|Failed to (?:add|create)\b.{0,80}\bnode\b)"
)
_NO_TYPE = lazy_pattern(r"Operators of type `(\S{1,100})` are not supported by QNN EP")
_UNKNOWN = (
    lazy_pattern(
        r"Fatal error: (?P<domain>[\w.-]{1,200}):(?P<type>\w{1,100})\(-?\d{1,9}\) is not a reg"
    ),
    lazy_pattern(r"No Op registered for (?P<domain>)(?P<type>\w{1,100}) with domain_version of"),
    lazy_pattern(
        r'In Node, \("[^"]{0,2000}", (?P<type>\w{1,100}), "[^"]{0,200}", -?\d{1,9}\).{0,8000}'
        r"No opset import for domain '(?P<domain>[^']{1,200})'"
    ),
)
_NO_TENSORS = lazy_pattern(r"MLDataType for: tensor\((\w{1,40})\) is not currently registered")
_RANK = lazy_pattern(r"has incorrect Rank (\d{1,3})")
_VALUE = lazy_pattern(r"has incorrect Value (\S{1,40}), expected (?:equal to )?(.{1,60}?)\.?$")
_BOUND = lazy_pattern(r"[<>]")
_ZERO_POINT = lazy_pattern(r"Zero-point ONNX data type `(\d{1,3})` is not supported")
_UNMAPPED = lazy_pattern(r"Failed to map Onnx data type to Qnn data type")
_MISMATCH = lazy_pattern(r"mismatching datatypes\. (0x[0-9a-fA-F]{1,8}) != (0x[0-9a-fA-F]{1,8})")
_TENSOR = lazy_pattern(r"tensor datatype (\d{1,9}) not supported")
_OPSET = lazy_pattern(
    r"Opset (\d{1,9}) is under development.{0,400}"
    r"support for domain (\S{1,100}) is till opset (\d{1,9})"
)
_MEANINGS = (
    (lazy_pattern(r"SocModel doesn't support FP16"), "{soc} does not compute in FP16"),
    (
        lazy_pattern(r"Unsupported FP64 data type in graph IO"),
        "QNN does not support 64-bit floats as inputs or outputs of a graph",
    ),
    (_UNMAPPED, "ONNX Runtime has no QNN data type for one of the tensors"),
    (
        lazy_pattern(r"Unsupported input/output datatypes requested"),
        "HTP does not support the operator with these data types",
    ),
    (lazy_pattern(r"^(?:REASON : )?Cannot get shape"), "the shape is not fixed"),
    (
        lazy_pattern(r"set nodes that cannot (?:all )?be fused together"),
        "QNN chose nodes that cannot be fused: a node that QNN does not support lies between them",
    ),
)
VALIDATOR = "the library's validator rejects the operator without giving a reason (code 3110)"


def is_generic(line: str) -> bool:
    """Return True if a line reports a refusal without its reason."""
    return _GENERIC.search(line) is not None


def has_no_builder(line: str) -> bool:
    """Return True if a line reports an unsupported node type, regardless of shapes."""
    return _NO_TYPE.search(line) is not None or unknown_operator(line) is not None


def unknown_operator(line: str) -> tuple[str, str] | None:
    """Return domain and type of an operator that ONNX Runtime itself does not know."""
    match = next(filter(None, (pattern.search(line) for pattern in _UNKNOWN)), None)
    return None if match is None else (match["domain"].removeprefix("ai.onnx"), match["type"])


def unknown_tensors(line: str) -> str:
    """Return the data type that ONNX Runtime cannot store in tensors, or ""."""
    match = _NO_TENSORS.search(line)
    return "" if match is None else match[1]


def meaning(line: str, soc: str) -> str:
    """Return a clause with the reason, or the log line itself if its meaning is not known."""
    if not line:
        return VALIDATOR
    if unknown := unknown_operator(line):
        return f"ONNX Runtime has no operator {':'.join(filter(None, unknown))}"
    if match := _NO_TENSORS.search(line):
        return f"ONNX Runtime does not support tensors of {match[1]}"
    if match := _OPSET.search(line):
        opset, domain, last = match.groups()
        return (
            f"the model uses opset {opset} of {domain}; ONNX Runtime supports opsets up to {last}"
        )
    if has_no_builder(line):
        return "QNN has no operator of this type"
    if match := _RANK.search(line):
        problem = f"one of the tensors has {match[1]} dimensions"
        return f"{problem}, which HTP does not support for this operator"
    if match := _VALUE.search(line):
        wanted = f"expects {match[2]}" if _BOUND.search(match[2]) else f"supports {match[2]} only"
        return f"one parameter is {match[1]}, but HTP {wanted}"
    if match := _ZERO_POINT.search(line):
        return f"QNN does not support zero points of {element_name(int(match[1]))}"
    if match := _MISMATCH.search(line):
        first, second = (type_name(int(number, 16)) for number in match.groups())
        return f"the tensors are {first} and {second} in QNN but must have the same type"
    if match := _TENSOR.search(line):
        return f"QNN does not support tensors of {type_name(int(match[1]))}"
    for pattern, words in _MEANINGS:
        if pattern.search(line):
            return words.format(soc=soc)
    return printable(line).removeprefix("REASON : ").rstrip(" .!")


def element_name(number: int) -> str:
    """Return the name of an ONNX data type number, e.g. `bfloat16`."""
    from onnx import TensorProto

    try:
        return str(TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type {number}"


def type_name(number: int) -> str:
    """Return a short name of a `Qnn_DataType_t`, e.g. `float64`, or its number if unknown."""
    if number not in set(DataType):
        return f"type 0x{number:x}"
    name = DataType(number).name.lower()
    return name if "fixed" in name else name.replace("_", "")


# --- Refused nodes by their names in the model ----------------------------------------------------


# ONNX Runtime can replace a node with a node in QNN's layout, whose name has this suffix.
_REMADE = lazy_pattern(r"_token_\d{1,9}$")
_SHOWN = 8  # most inputs and most outputs shown for a node
# QNN does not create a graph that consists only of such nodes.
_NO_WORK = ("Constant", "QuantizeLinear", "DequantizeLinear")
_UNTOLD = "?"  # for a type that the file does not state
_UNMAPPED_TYPES = ("bfloat16", "complex64", "complex128", "float8", "string", "uint4", "int4")


def _graph_of(model: Path) -> onnx.GraphProto | None:
    """Return the graph of a model; None if the model cannot be read."""
    from qnnmem.loader.onnx import read_guarded

    try:
        return read_guarded(model).proto.graph
    except LoadError:
        return None


class Described(NamedTuple):
    """Refused nodes with the names that the model uses."""

    nodes: tuple[RefusedNode, ...]
    all_refused: bool = False  # nothing of the model is left to compile


def described(nodes: Sequence[RefusedNode], model: Path, soc: Soc) -> Described:
    """Return the nodes with reasons and, if the model is readable, names, types and shapes."""
    if not nodes:
        return Described(())
    # Without verdicts on nodes, the log is too terse to hold a reason.
    explained = tuple(
        node
        if node.index is None or node.reason
        else replace(node, reason=meaning(node.line, soc.name))
        for node in nodes
    )
    graph = _graph_of(model)
    if graph is None:
        return Described(explained)
    types = _types(graph)
    by_name = {node.name: node for node in graph.node if node.name}
    complete = tuple(_described(node, graph.node, by_name, types) for node in explained)
    working = sum(node.op_type not in _NO_WORK for node in graph.node)
    left = sum(node.operator not in _NO_WORK for node in nodes)
    return Described(complete, left >= working)


def with_origins(
    listed: Sequence[RefusedNode], judged: Sequence[RefusedNode], model: Path
) -> tuple[RefusedNode, ...]:
    """Return refused nodes; a function replaces the nodes into which ONNX Runtime expanded it.

    ONNX Runtime judges a function once as one node, in `judged`. It then expands the function,
    and `listed` has only the nameless nodes of the expansion.
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
    reason = f"QNN has no operator of this type; ONNX Runtime computes it with {shown}, which"
    why = f"{reason} QNN rejects"
    rest = [node for node in listed if node not in parts]
    return (*(replace(origin, reason=why) for origin in origins), *rest)


def _nameless_kinds(model: Path) -> set[str] | None:
    """Return the types of nodes without a name in a model; None if the model cannot be read."""
    graph = _graph_of(model)
    return None if graph is None else {node.op_type for node in graph.node if not node.name}


def named(
    on_cpu: Iterable[Sequence[str]], refused: Iterable[RefusedNode], model: Path, soc: Soc
) -> tuple[OnnxNode, ...]:
    """Return the nodes that stay on the CPU, with QNN's reasons for refusing them."""
    nodes = tuple(refused)
    left = list(zip(nodes, described(nodes, model, soc).nodes, strict=True))
    left_nodes = []
    for name, operator in on_cpu:
        same = (pair for pair in left if (pair[0].name, pair[0].operator) == (name, operator))
        pair = next(same, None)
        if pair is None:
            left_nodes.append(OnnxNode(name, operator))
            continue
        left.remove(pair)
        left_nodes.append(OnnxNode(pair[1].name, operator, pair[1].reason))
    return tuple(left_nodes)


def unknown_nodes(sentence: str, model: Path, soc: Soc) -> Described:
    """Return the nodes that ONNX Runtime itself rejects because of their operator or data type."""
    unknown = unknown_operator(sentence)
    if unknown is None:
        return _of_unknown_type(sentence, model, soc)
    domain, operator = unknown
    graph = _graph_of(model)
    nodes = () if graph is None else graph.node
    rejected = [
        RefusedNode(node.name, operator, sentence, index=index)
        for index, node in enumerate(nodes)
        if node.op_type == operator and (not domain or node.domain == domain)
    ]
    # ONNX Runtime rejects such a model as a whole, before it judges any node.
    rejected = rejected or [RefusedNode("", operator, sentence, index=-1)]
    return Described(described(rejected, model, soc).nodes, all_refused=True)


def _of_unknown_type(sentence: str, model: Path, soc: Soc) -> Described:
    """Return the nodes with inputs or outputs of types that ONNX Runtime does not support."""
    element, graph = unknown_tensors(sentence), _graph_of(model)
    if not element or graph is None:
        return Described(())
    types = _types(graph)
    affected = [
        RefusedNode(node.name, node.op_type, sentence, index=index)
        for index, node in enumerate(graph.node)
        if any(types.get(name, "").startswith(element) for name in (*node.input, *node.output))
    ]
    return Described(described(affected, model, soc).nodes, all_refused=True)


def _described(
    refused: RefusedNode,
    nodes: Sequence[onnx.NodeProto],
    by_name: Mapping[str, onnx.NodeProto],
    types: Mapping[str, str],
) -> RefusedNode:
    name = refused.name
    if name not in by_name:
        name = _REMADE.sub("", name)
    original = by_name.get(name) if name else _at(refused, nodes)
    if original is None:
        return refused
    takes, gives = _typed(original.input, types), _typed(original.output, types)
    if {*takes, *gives} == {_UNTOLD}:
        takes = gives = ()
    reason = refused.reason
    if _UNMAPPED.search(refused.line):  # the line does not name the type
        reason = _with_type(reason, (*takes, *gives))
    name = original.name or next(filter(None, original.output), "")
    return replace(refused, name=name, inputs=takes, outputs=gives, reason=reason)


def _with_type(reason: str, tensors: Iterable[str]) -> str:
    """Return `reason`, or a reason that names the unsupported type if only one is possible."""
    words = {text.split(" ")[0] for text in tensors}
    unmapped = sorted(words & set(_UNMAPPED_TYPES))
    return f"ONNX Runtime has no QNN data type for {unmapped[0]}" if len(unmapped) == 1 else reason


def _at(refused: RefusedNode, nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return a nameless node, found by position, else by its type if that is unique; or None."""
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
    """Return the type and shape of every tensor for which the file states them."""
    from qnnmem.loader.onnx.tensor import type_of

    types = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        known = type_of(info)
        if known is not None and known.elem:
            types[info.name] = _words(_name_of(known.elem), known.shape)
    for tensor in graph.initializer:
        types[tensor.name] = _words(_name_of(tensor.data_type), tuple(tensor.dims))
    return types


def _name_of(element: int) -> str:
    from qnnmem.loader.onnx.tensor import DTYPES

    return DTYPES[element].value if element in DTYPES else element_name(element)


def _words(element: str, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return element
    return f"{element} {'x'.join(map(str, shape))}" if shape else f"{element} scalar"
