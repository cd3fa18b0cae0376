"""Constants of the graph that is compiled which FP16 cannot hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed, LoadError, UsageError
from qnnmem.htp.compile.compiled import CompileOptions
from qnnmem.loader.onnx.graph import attribute, bodies, is_op
from qnnmem.text import counted, quote

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from qnnmem.loader.onnx.passes.guard import GuardedModel

LARGEST_FP16 = 65504.0
_MOST_BYTES = 256 << 20  # of constants that are folded and looked at
_FOLDING_S = 30.0  # a warning is not worth more
_NAMED = 3
_FLOATS = (1, 11)  # TensorProto.FLOAT, DOUBLE
# Inputs that do not become tensors of FP16. Of a Clip this was tried: limits of 3.4e38 do no harm.
_PARAMETERS = {
    "Clip": (1, 2),
    "DequantizeLinear": (0, 1, 2),
    "QuantizeLinear": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}
_FACTORS = ("alpha", "beta", "gamma")


@dataclass(frozen=True, slots=True)
class _Large:
    """A constant with values beyond FP16."""

    name: str
    operator: str  # that reads it
    over: int
    size: int
    most: float


def may_overflow(path: Path, model: GuardedModel, options: CompileOptions) -> Iterator[str]:
    """One warning that names the constants of the compiled graph beyond FP16, if there are any."""
    folded = _folded(path, model, options)
    search = _Search(path)
    found = {one.name: one for one in search.large(folded or model.proto.graph, {})}
    if found:
        named = [
            f"{quote(one.name)} of {one.operator} ({one.over:,} of {one.size:,} values, up to "
            f"{one.most:.3g})"
            for one in list(found.values())[:_NAMED]
        ]
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield (
            f"{counted(len(found), 'constant')} may overflow: HTP computes in FP16, which ends at "
            f"{LARGEST_FP16:,.0f}: {', '.join(named)}{more}"
        )


def _folded(path: Path, model: GuardedModel, options: CompileOptions) -> onnx.GraphProto | None:
    """The graph as the compiler gets it: ONNX Runtime has folded it. None where that fails."""
    from qnnmem.loader.onnx.inputs import Fixed
    from qnnmem.loader.onnx.passes.resolve import open_model, resolve
    from qnnmem.loader.onnx.tensor import stored_bytes, tensors
    from qnnmem.loader.onnx.trial import TrialChild

    if sum(map(stored_bytes, tensors(model.proto))) > _MOST_BYTES:
        return None
    given = Fixed(options.dims, options.shapes, options.values)
    try:
        with TrialChild(path, min(_FOLDING_S, options.time_limit_s)) as child:
            return child.optimise(resolve(open_model(model, child), given).proto()).graph
    except (LoadError, UsageError, ChildFailed):  # the compile will say why
        return None


class _Search:
    """Looks at constants that nodes read, within a budget of bytes."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, _MOST_BYTES

    def large(
        self, graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
    ) -> Iterator[_Large]:
        """Constants beyond FP16 of a graph and of every body in it: each may run."""
        known = {**outer, **{item.name: item for item in _constants(graph)}}
        for node in graph.node:
            for body in bodies(node):
                yield from self.large(body, known)
            if is_op(node, "BatchNormalization") and all(name in known for name in node.input[1:]):
                yield from self._batch_norm(node, known)
                continue
            yield from _attributes(node)
            skipped = _PARAMETERS.get(node.op_type, ())
            for at, name in enumerate(node.input):
                if name in known and at not in skipped:
                    yield from _beyond(name, node, self._values(known[name]))

    def _batch_norm(
        self, node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]
    ) -> Iterator[_Large]:
        """The factor and the summand that the library makes of the four constants."""
        import numpy

        values = [self._values(known[name]) for name in node.input[1:5]]
        if any(one is None for one in values):
            return
        scale, bias, mean, variance = (numpy.asarray(one, "f8") for one in values)
        found = attribute(node, "epsilon")
        epsilon = 1e-5 if found is None else found.f
        with numpy.errstate(all="ignore"):
            factor = scale / numpy.sqrt(variance + epsilon)
            for name, one in ((node.input[1], factor), (node.input[2], bias - mean * factor)):
                yield from _beyond(name, node, one)

    def _values(self, tensor: onnx.TensorProto) -> NDArray[Any] | None:
        """The numbers of a constant of floats, wherever they lie; else None."""
        import numpy

        from qnnmem.loader.onnx.tensor import embed, stored_bytes

        if tensor.data_type not in _FLOATS or stored_bytes(tensor) > self._left:
            return None
        if tensor.data_location:
            outside, tensor = tensor, type(tensor)()
            tensor.CopyFrom(outside)
            try:
                embed(self._path, tensor)
            except LoadError:  # which the compile will say
                return None
        self._left -= stored_bytes(tensor)
        kind = "<f4" if tensor.data_type == _FLOATS[0] else "<f8"
        if tensor.raw_data:
            return numpy.frombuffer(tensor.raw_data, kind)
        return numpy.array(tensor.float_data or tensor.double_data, kind)


def _beyond(name: str, node: onnx.NodeProto, values: NDArray[Any] | None) -> Iterator[_Large]:
    """A constant with finite values beyond FP16; infinity is meant as such."""
    import numpy

    if values is None:
        return
    size = numpy.abs(values[numpy.isfinite(values)])
    over = int((size > LARGEST_FP16).sum())
    if over:
        who = f"{node.op_type} {quote(node.name)}" if node.name else node.op_type
        yield _Large(name, who, over, int(values.size), float(size.max()))


def _attributes(node: onnx.NodeProto) -> Iterator[_Large]:
    """Factors that are attributes, say of a LeakyRelu."""
    import numpy

    for found in node.attribute:
        if found.name in _FACTORS:
            yield from _beyond(found.name, node, numpy.array([found.f]))


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Stored tensors of a graph by the names under which nodes read them."""
    import onnx

    yield from graph.initializer
    for node in graph.node:
        for found in node.attribute if is_op(node, "Constant") else ():
            floats = [found.f] if found.name == "value_float" else list(found.floats)
            if found.name == "value":
                tensor = onnx.TensorProto()
                tensor.CopyFrom(found.t)
            elif floats:
                tensor = onnx.TensorProto(data_type=1, dims=[len(floats)], float_data=floats)
            else:
                continue
            tensor.name = next(iter(node.output), "")
            yield tensor
