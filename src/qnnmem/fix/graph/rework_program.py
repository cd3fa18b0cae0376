"""Child program in which onnxruntime's optimiser and onnx's inliner rewrite a model.

Models are untrusted: a crash, a hang or an out-of-memory error ends only this limited process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from qnnmem.child import serve
from qnnmem.loader.onnx.graph import is_op, opset_of
from qnnmem.quiet_onnxruntime import optimised_model
from qnnmem.wire import Done, WireMessage

if TYPE_CHECKING:
    import onnx

# This rule can pad a pooling by more rows than its kernel has; onnxruntime itself refuses the
# result.
_OVERZEALOUS = "Pad_Fusion"


class Optimise(WireMessage, frozen=True):
    """Request to rewrite the model in the payload with onnxruntime's optimiser."""

    doing: ClassVar[str] = "rewriting"
    without: list[str]


class InlineOps(WireMessage, frozen=True):
    """Request to inline operators of the given kinds in the model in the payload."""

    doing: ClassVar[str] = "rewriting"
    kinds: list[str]


def optimise(without: list[str], blob: bytes) -> bytes:
    """Return the model after the optimiser's first level, which adds only standard ops."""
    try:
        return optimised_model(blob, without=without)
    except Exception:  # onnxruntime's exceptions have no common base class
        return optimised_model(blob, without=[*without, _OVERZEALOUS])


def inline(kinds: list[str], blob: bytes) -> bytes:
    """Return the model with operators of the given kinds replaced by their ONNX definitions."""
    import onnx
    import onnx.shape_inference
    from onnx.inliner import inline_selected_functions

    model = onnx.ModelProto.FromString(blob)
    inputs = len(model.graph.input)
    for tensor in model.graph.initializer:  # the inliner knows only the types of inputs
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(info)
    _write_defaults(model, kinds)
    functions = [("", kind) for kind in kinds]
    inlined = inline_selected_functions(model, functions, inline_schema_functions=True)
    inlined = onnx.shape_inference.infer_shapes(inlined)
    _replace_cast_like(inlined.graph)
    del inlined.graph.input[inputs:]
    _check_outputs(model, inlined)
    return bytes(inlined.SerializeToString())


def _write_defaults(model: onnx.ModelProto, kinds: list[str]) -> None:
    """Write default attributes into the nodes, because the inliner drops them."""
    import onnx

    for node in model.graph.node:
        if is_op(node, *kinds):
            present = {item.name for item in node.attribute}
            known = onnx.defs.get_schema(node.op_type, opset_of(model), "").attributes
            defaults = (item.default_value for name, item in known.items() if name not in present)
            node.attribute.extend(item for item in defaults if item.type)


def _replace_cast_like(graph: onnx.GraphProto) -> None:
    """Replace each CastLike by a Cast with an explicit type."""
    import onnx

    infos = (*graph.input, *graph.value_info, *graph.output)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    for node in graph.node:
        if node.op_type == "CastLike" and kinds.get(node.input[1]):
            kind = kinds[node.input.pop()]
            node.op_type = "Cast"
            node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=kind)


def _check_outputs(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Raise ValueError if the outputs of the rewritten model differ from the original's."""
    names = [[item.name for item in model.graph.output] for model in (before, after)]
    if names[0] != names[1]:
        raise ValueError("the outputs of the rewritten model differ from the original outputs")


def main() -> int:
    """Serve requests until the parent closes the pipe."""
    return serve(
        {
            Optimise: lambda request, blob: (Done(), optimise(request.without, blob)),
            InlineOps: lambda request, blob: (Done(), inline(request.kinds, blob)),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
