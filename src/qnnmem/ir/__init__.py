"""The intermediate representation of models: tensors, ops, lifetimes; no file formats."""

from qnnmem.ir.lifetime import Lifetime, Role, lifetimes
from qnnmem.ir.model import DType, Effect, FixedBuffer, Model, Op, Span, Tensor

__all__ = [
    "DType",
    "Effect",
    "FixedBuffer",
    "Lifetime",
    "Model",
    "Op",
    "Role",
    "Span",
    "Tensor",
    "lifetimes",
]
