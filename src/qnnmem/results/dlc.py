"""The graphs of a DLC."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from qnnmem.results.result import Count, Difference, Result, describe
from qnnmem.text import counted


class DlcQuantization(Struct, frozen=True, kw_only=True):
    """How stored numbers become real ones: (stored + offset) * scale."""

    encoding: Annotated[Count, describe("QNN's number of the encoding.")]
    axis: Annotated[Difference | None, describe("Axis of the scales; null: one for all.")] = None
    bits: Annotated[Count | None, describe("Bits that count, where fewer than the type has.")] = (
        None
    )
    scales: tuple[float, ...] = ()
    offsets: tuple[Difference, ...] = ()


class DlcTensor(Struct, frozen=True, kw_only=True):
    """A tensor of a graph."""

    id: Count = 0
    name: str
    type: Annotated[str, describe("As QNN names it: QNN_TENSOR_TYPE_APP_WRITE is an input.")]
    data_type: str
    dimensions: tuple[Count, ...]
    bytes: Annotated[Count, describe("Bytes of its elements.")]
    stored_bytes: Annotated[Count, describe("Bytes of its values in the file.")] = 0
    quantization: DlcQuantization | None = None


class DlcOp(Struct, frozen=True, kw_only=True):
    """An operator; tensors are named by their ids."""

    name: str
    package: str = ""
    type: str
    inputs: tuple[Count, ...] = ()
    outputs: tuple[Count, ...] = ()
    scalars: dict[str, int | float | bool] = field(default_factory=dict)
    arrays: Annotated[dict[str, DlcTensor], describe("Parameters that are tensors.")] = field(
        default_factory=dict
    )
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
