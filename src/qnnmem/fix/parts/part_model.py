"""One part of a model as an ONNX model of its own.

Its nodes are those that its outputs depend on, back to its inputs. So it computes its outputs from
its inputs as the whole model does.
"""

from __future__ import annotations

from qnnmem.errors import UsageError
from qnnmem.fix.parts.op_sequence import OpSequence, Stretch
from qnnmem.loader.onnx.graph import copied_without, reads
from qnnmem.loader.onnx.passes.read import MAX_FILE
from qnnmem.loader.onnx.tensor import embed
from qnnmem.text import quote

# Beside the weights: nodes, names and types take no more than this in any file that is read.
_ROOM = 1 << 26


def write_part(sequence: OpSequence, stretch: Stretch, number: int) -> bytes:
    """The model of a stretch; weights that lie in other files are brought into it."""
    import onnx

    graph = sequence.proto.graph
    positions, stored = _needed(sequence, stretch)
    part = copied_without(sequence.proto, "graph")
    part.graph.name = f"{graph.name or sequence.model.name}_part{number}"
    part.graph.node.extend(graph.node[at] for at in positions)
    infos = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
    part.graph.input.extend(infos[name] for name in stretch.inputs)
    part.graph.output.extend(infos[name] for name in stretch.outputs)
    own = {name for at in positions for name in graph.node[at].output if name in infos}
    inner = sorted(own - set(stretch.outputs))
    part.graph.value_info.extend(infos[name] for name in inner)
    _check_size(sequence, stored, number)
    for tensor in graph.initializer:
        if tensor.name in stored:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            embed(sequence.path, copy)
            part.graph.initializer.append(copy)
    return bytes(part.SerializeToString(deterministic=True))


def _needed(sequence: OpSequence, stretch: Stretch) -> tuple[list[int], set[str]]:
    """Positions of nodes that a stretch consists of, and the stored tensors they read.

    Nodes come in the order of the ops they stand for, which may not be that of the file.
    """
    graph = sequence.proto.graph
    maker = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    stored = {tensor.name for tensor in graph.initializer}
    seen, used = set(stretch.inputs), set()
    positions: dict[int, None] = {}
    for op in stretch.model.ops:
        found: set[int] = set()
        open_names = list(op.outputs)
        while open_names:
            name = open_names.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in stored:
                used.add(name)
            elif name not in maker:
                raise UsageError(
                    f"a part would need {quote(name)}, which it does not get", where=sequence.path
                )
            elif maker[name] not in found:
                found.add(maker[name])
                open_names.extend(reads(graph.node[maker[name]]))
        positions.update(dict.fromkeys(sorted(found)))
    return list(positions), used


def _check_size(sequence: OpSequence, stored: set[str], number: int) -> None:
    from qnnmem.loader.onnx.tensor import STRING, stored_bytes

    size = sum(
        tensor.ByteSize() if tensor.data_type == STRING else stored_bytes(tensor)
        for tensor in sequence.proto.graph.initializer
        if tensor.name in stored
    )
    if size > MAX_FILE - _ROOM:
        raise UsageError(
            f"part {number} has {size:,} bytes of weights, more than one ONNX file can hold",
            where=sequence.path,
        )
