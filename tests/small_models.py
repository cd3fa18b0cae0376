"""Models of a few ops with nothing but names and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from qnnmem.ir import DType, Effect, Model, Op, Tensor


def op(
    inputs: str, outputs: str, effect: Effect = Effect.COMPUTE, *bodies: Model, loop: bool = False
) -> Op:
    """Return an op named after its outputs; spaces separate the names."""
    ins, outs = tuple(inputs.split()), tuple(outputs.split())
    return Op(outputs, "any", ins, outs, effect, bodies=bodies, repeats=loop)


def model(
    ops: Sequence[Op],
    inputs: str = "x",
    outputs: str = "y",
    *,
    constants: str = "",
    states: str = "",
    sizes: dict[str, int] | None = None,
    dtype: DType = DType.UINT8,
    elements: int = 64,
) -> Model:
    """Return a model whose tensors have this many elements unless `sizes` states another size."""
    names = {name for o in ops for name in (*o.inputs, *o.outputs)}
    names |= {*inputs.split(), *outputs.split(), *constants.split(), *states.split()}
    return Model(
        "m",
        "onnx",
        {name: Tensor(name, dtype, ((sizes or {}).get(name, elements),)) for name in names},
        tuple(ops),
        tuple(inputs.split()),
        tuple(outputs.split()),
        tuple(constants.split()),
        tuple(states.split()),
    )
