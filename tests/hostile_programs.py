"""Changes the program inside a prepared binary so that it asks for more than it may.

The checksums stay correct, so that the damage reaches the reader of the program. A changed program
names files in `PLACES`, in the working directory or on every Linux machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import onnx
from damage import NUMBERS, TEXTS, Damage, flip_bits, set_bytes, stream
from damage_binaries import seal, sections
from google.protobuf.message import Message  # type: ignore[import-untyped]  # no stubs
from onnx import helper

CANARY = "canary"
PLACES = (
    *(CANARY, f"./{CANARY}", f"sub/{CANARY}", f"sub/../{CANARY}", "constants", "", ".", "sub"),
    *("/etc/passwd", "../../../../../../../../etc/passwd", "/proc/self/environ", "/dev/zero"),
    *("*/_ORT_MEM_ADDR_/*", f"file://{CANARY}", f"{CANARY}\0", "é" * 300),
)
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "stranger")
_OPERATORS = (
    *("EPContext", "Snpe", "Constant", "If", "Loop", "Scan", "Identity", "Relu", "NoSuchOp"),
    *("BeamSearch", "Tokenizer", "TensorRTEngine", "PyOp", "ImageDecoder", "Optional", "Gradient"),
)
_UNKNOWN = b"\xda\x3f\x06canary"  # field 1019, which no ONNX message has

Program = onnx.ModelProto
Change = Callable[[random.Random, Program], None]


def outside(rng: random.Random, like: onnx.TensorProto | None = None) -> onnx.TensorProto:
    """Return a tensor whose data is in another file."""
    tensor = onnx.TensorProto(data_type=rng.choice((1, 2, 3, 7)), dims=[rng.choice((1, 4, 8))])
    if like is not None:
        tensor.CopyFrom(like)
    if rng.random() < 0.8:
        for field in ("raw_data", "float_data", "int32_data", "int64_data"):
            tensor.ClearField(field)
    if rng.random() < 0.9:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", rng.choice(PLACES)), ("offset", "0"), ("length", "32")):
        if key == "location" or rng.random() < 0.5:
            tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(rng: random.Random, name: str = "") -> onnx.SparseTensorProto:
    """Return a sparse tensor whose values or indices are in another file."""
    made = onnx.SparseTensorProto(dims=[rng.choice((4, 8, 32))])
    made.values.CopyFrom(outside(rng))
    made.values.name = name
    made.indices.CopyFrom(outside(rng))
    made.indices.data_type = onnx.TensorProto.INT64
    if rng.random() < 0.5:
        plain = helper.make_tensor("", onnx.TensorProto.INT64, [4], range(4))
        made.indices.CopyFrom(plain)
    return made


def messages(message: Any, kind: type[Message] | None = None) -> Iterator[Any]:
    """Yield a message and all messages inside it, or only those of one type."""
    if kind is None or isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from messages(inner, kind)


def _graph(rng: random.Random, program: Program) -> Any:
    return rng.choice(list(messages(program, onnx.GraphProto)))


def _node(rng: random.Random, program: Program) -> Any:
    graphs = [graph for graph in messages(program, onnx.GraphProto) if graph.node]
    return rng.choice(rng.choice(graphs).node) if graphs else program.graph.node.add()


# Where a program can name a file.


def tensor_outside(rng: random.Random, program: Program) -> None:
    """Move a tensor of the program to another file, or add such a tensor."""
    known = list(messages(program, onnx.TensorProto))
    if known and rng.random() < 0.6:
        tensor = rng.choice(known)
        tensor.CopyFrom(outside(rng, tensor))
        return
    graph = _graph(rng, program)
    tensor = graph.initializer.add()
    tensor.CopyFrom(outside(rng))
    names = [name for node in graph.node for name in node.input]
    tensor.name = rng.choice(names or ["new"])


def constant_outside(rng: random.Random, program: Program) -> None:
    """Turn a node into a Constant whose value, dense or sparse, is in another file."""
    node = _node(rng, program)
    outputs = list(node.output) or ["new"]
    node.Clear()
    node.op_type, node.name = "Constant", "node:0"
    node.output.extend(outputs[:1])
    kind = rng.choice(("value", "sparse_value", "value", "sparse_value", "other"))
    found = node.attribute.add(name=kind)
    if kind == "sparse_value":
        found.type = onnx.AttributeProto.SPARSE_TENSOR
        found.sparse_tensor.CopyFrom(sparse(rng))
    else:
        found.type = onnx.AttributeProto.TENSOR
        found.t.CopyFrom(outside(rng))


def attribute_outside(rng: random.Random, program: Program) -> None:
    """Add an attribute of any type that holds a tensor in another file."""
    node = _node(rng, program)
    words = ("value", "body", "then_branch", "ep_cache_context", "new")
    found = node.attribute.add(name=rng.choice(words), type=rng.randrange(15))
    kind = rng.randrange(7)
    if kind == 0:
        found.t.CopyFrom(outside(rng))
    elif kind == 1:
        found.tensors.add().CopyFrom(outside(rng))
    elif kind == 2:
        found.sparse_tensor.CopyFrom(sparse(rng))
    elif kind == 3:
        found.sparse_tensors.add().CopyFrom(sparse(rng))
    elif kind == 4:
        found.s = rng.choice(PLACES).encode()
    else:
        graph = found.g if kind == 5 else found.graphs.add()
        graph.name = "inner"
        graph.initializer.add().CopyFrom(outside(rng))
        graph.sparse_initializer.add().CopyFrom(sparse(rng, "inner"))
        graph.output.add(name="inner")


def sparse_initializer(rng: random.Random, program: Program) -> None:
    """Add a sparse initializer, possibly under the name of a used tensor."""
    graph = _graph(rng, program)
    names = [name for node in graph.node for name in node.input]
    graph.sparse_initializer.add().CopyFrom(sparse(rng, rng.choice(names or ["new"])))


def function(rng: random.Random, program: Program) -> None:
    """Add a function with a constant in another file, and a node that calls it."""
    node = _node(rng, program)
    domain = rng.choice((*_DOMAINS, "own"))
    body = program.functions.add(name=rng.choice(("Own", node.op_type)), domain=domain)
    body.opset_import.extend(program.opset_import)
    body.output.append("made")
    made = body.node.add(op_type="Constant", output=["made"])
    found = made.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    found.t.CopyFrom(outside(rng))
    program.opset_import.add(domain=domain, version=1)
    node.op_type, node.domain = body.name, domain
    if rng.random() < 0.3:
        node.overload = rng.choice(("", "other"))


def training(rng: random.Random, program: Program) -> None:
    """Add training information with its own graph."""
    about = program.training_info.add()
    for graph in (about.initialization, about.algorithm):
        graph.initializer.add().CopyFrom(outside(rng))
        graph.node.add(op_type="Identity", input=["a"], output=["b"])


def operator(rng: random.Random, program: Program) -> None:
    """Change a node to an operator of another domain, with attributes that name a file."""
    node = _node(rng, program)
    node.op_type, node.domain = rng.choice(_OPERATORS), rng.choice(_DOMAINS)
    for name in rng.sample(("ep_cache_context", "DLC", "embed_mode", "source", "notes"), 2):
        value: Any = 0 if name == "embed_mode" else rng.choice(PLACES)
        node.attribute.append(helper.make_attribute(name, value))
    program.opset_import.add(domain=node.domain, version=rng.choice((1, 1, 18)))


def note(rng: random.Random, program: Program) -> None:
    """Add metadata that states where data is."""
    holders = [m for m in messages(program) if "metadata_props" in m.DESCRIPTOR.fields_by_name]
    for holder in rng.sample(holders, min(3, len(holders))):
        key = rng.choice(("location", "ort_config", "external_data", "ep_context_file", "x"))
        holder.metadata_props.add(key=key, value=rng.choice((*PLACES, *_shown_texts())))
    if rng.random() < 0.5:
        annotation = program.graph.quantization_annotation.add(tensor_name="x")
        annotation.quant_parameter_tensor_names.add(key="location", value=CANARY)


def any_field(rng: random.Random, program: Program) -> None:
    """Set any field of any message to any value."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        message = rng.choice(list(messages(program)))
        _set(rng, message, rng.choice(message.DESCRIPTOR.fields))


def _set(rng: random.Random, message: Any, field: Any) -> None:
    several = isinstance(getattr(message, field.name), Iterable) and not isinstance(
        getattr(message, field.name), str | bytes
    )
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner = inner.add() if several else inner
        inner.SetInParent()
        if inner.DESCRIPTOR.fields:
            _set(rng, inner, rng.choice(inner.DESCRIPTOR.fields))
    else:
        value = _value(rng, field)
        if several:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _value(rng: random.Random, field: Any) -> Any:
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        text = rng.choice((*PLACES, *_shown_texts()))
        return text if field.type == field.TYPE_STRING else text.encode()
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    number = rng.choice((*NUMBERS, -1, -(2**31)))
    bits = 32 if field.type == field.TYPE_INT32 else 64
    if field.type == field.TYPE_UINT64:
        return number % (1 << 64)
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _shown_texts() -> list[str]:
    return [text for text in TEXTS if text.isascii()]


CHANGES: tuple[Change, ...] = (
    *(tensor_outside, constant_outside, constant_outside, attribute_outside, attribute_outside),
    *(sparse_initializer, function, training, operator, operator, note, any_field, any_field),
)


def _sealed(rng: random.Random, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    parts = sections(data)
    programs = [bytes(program) for program in parts.programs]
    at = rng.choice([at for at, program in enumerate(programs) if program])
    programs[at] = change(programs[at])
    return seal(parts.meta, programs, parts.constants)


def changed_program(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return the binary with its program changed as ONNX, at times in several ways."""

    def change(content: bytes) -> bytes:
        program = Program.FromString(content)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice(CHANGES)(rng, program)
        if rng.random() < 0.05:
            program.graph.name = "\x1b[31m" + "n" * 300
        out = bytes(program.SerializeToString())
        return out + _UNKNOWN if rng.random() < 0.05 else out

    return _sealed(rng, data, change)


def damaged_program(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return the binary with the bytes of its program damaged."""
    damage = rng.choice((flip_bits, set_bytes))
    return _sealed(rng, data, lambda content: damage(rng, content, others))


_CHANGED: tuple[Damage, ...] = (*(changed_program,) * 9, damaged_program)


def hostile_binaries(count: int, seed: int, binaries: Sequence[bytes]) -> Iterator[bytes]:
    """Yield binaries with hostile programs; the same seed yields the same binaries."""
    for index in range(count):
        rng = stream(seed, index)
        yield rng.choice(_CHANGED)(rng, rng.choice(binaries), binaries)
