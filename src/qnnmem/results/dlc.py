"""The graphs of a DLC."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from qnnmem.qnn.graph import OpDescription
from qnnmem.qnn.tensor import DataTypeName, Quantization, TensorDescription, TensorTypeName
from qnnmem.results.result import Count, Result, describe
from qnnmem.text import counted


class DlcTensor(  # type: ignore[misc]
    TensorDescription[TensorTypeName, DataTypeName], frozen=True, kw_only=True
):
    """A tensor of a graph; its type QNN_TENSOR_TYPE_APP_WRITE is an input."""

    bytes: Annotated[Count, describe("Bytes of its elements.")]
    stored_bytes: Annotated[Count, describe("Bytes of its values in the file.")] = 0
    quantization: Quantization | None = None


class DlcOp(OpDescription[DlcTensor], frozen=True, kw_only=True):
    """An operator; tensors are named by their ids."""

    origins: Annotated[
        tuple[str, ...], describe("Nodes of the source that it stands for, where known.")
    ] = field(default=(), name="from")


class DlcGraph(Struct, frozen=True, kw_only=True):
    """A graph in the order in which it was composed."""

    name: str
    tensors: tuple[DlcTensor, ...]
    ops: tuple[DlcOp, ...]


class DlcResult(Result, frozen=True, kw_only=True, tag="qnnmem.inspect-dlc/1"):
    """What a DLC holds."""

    file: str
    graphs: tuple[DlcGraph, ...]

    @property
    def summary(self) -> str:
        """One line for a history of results."""
        return counted(len(self.graphs), "graph")
