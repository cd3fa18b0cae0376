"""What a model is: tensors, ops, lifetimes; no file formats."""

from qnnmem.ir.lifetime import Lifetime, Role, lifetimes
from qnnmem.ir.model import Effect, FixedBuffer, Model, Op
from qnnmem.ir.span import Span
from qnnmem.ir.tensor import DType, Tensor

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
