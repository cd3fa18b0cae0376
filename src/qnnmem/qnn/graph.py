"""Graphs as clients compose them and QNN's compilers see them: tensors, ops, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qnnmem.qnn.enums import DataType, TensorMemType, TensorType

# Types of tensors whose bytes are given with them.
STATIC = frozenset({TensorType.STATIC, TensorType.UPDATEABLE_STATIC})


@dataclass(frozen=True, slots=True)
class Quantization:
    """`Qnn_QuantizeParams_t`: real = (stored + offset) * scale, for the tensor or along an axis.

    `encoding` is QNN's number; those that are read have scales, of the others only it is known.
    """

    encoding: int
    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    axis: int | None = None
    bits: int | None = None  # where fewer count than the type has


@dataclass(frozen=True, slots=True)
class ComposedTensor:
    """A tensor that a client created in a graph."""

    id: int
    name: str
    type: TensorType
    data_type: DataType
    dimensions: tuple[int, ...]
    quantization: Quantization | None = None
    stored_bytes: int = 0  # of one whose values are in the file
    data: bytes | None = None  # them, if they were asked for
    mem_type: TensorMemType = TensorMemType.RAW  # how a client means to hand it over

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        elements = 1
        for size in self.dimensions:
            elements *= size
        return self.data_type.nbytes(elements)


@dataclass(frozen=True, slots=True)
class ComposedOp:
    """`Qnn_OpConfig_t`: an operator with its parameters; tensors are named by their ids."""

    name: str
    package: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: Mapping[str, int | float | bool]
    arrays: Mapping[str, ComposedTensor]  # parameters that are tensors
    scalar_types: Mapping[str, DataType] = field(default_factory=dict)  # where they are known
    origins: tuple[str, ...] = ()  # nodes of the source that it stands for, where that is known


@dataclass(frozen=True, slots=True)
class ComposedGraph:
    """A graph in the order in which it was composed."""

    name: str
    tensors: tuple[ComposedTensor, ...]
    ops: tuple[ComposedOp, ...]
