"""What the page reads of context binaries of HTP."""

from __future__ import annotations

import msgspec

from qnnmem.report.page.values import Count, Loose


class BinaryTensor(Loose, frozen=True):
    """An input or output, as the vendor's tool names its fields."""

    name: str
    dataType: str
    dimensions: tuple[Count, ...] = ()


class BinaryTensorRecord(Loose, frozen=True):
    """The nesting around it."""

    info: BinaryTensor


class BinaryGraph(Loose, frozen=True):
    """A graph of a context binary."""

    graphName: str
    graphInputs: tuple[BinaryTensorRecord, ...] = ()
    graphOutputs: tuple[BinaryTensorRecord, ...] = ()


class BinaryGraphRecord(Loose, frozen=True):
    """The nesting around it."""

    info: BinaryGraph


class BinaryContents(Loose, frozen=True):
    """What the library wrote into a context binary."""

    buildId: str = ""
    graphs: tuple[BinaryGraphRecord, ...] = ()


class BinaryGraphBytes(Loose, frozen=True):
    """What is ours of a graph."""

    name: str
    vtcm_stored_bytes: Count | None = None
    io_exact_bytes: Count | None = None
    mem_types: tuple[str, ...] = ()


class BinaryPart(Loose, frozen=True):
    """What is ours of the description."""

    file_bytes: Count
    graphs: tuple[BinaryGraphBytes, ...]
    tool: str = ""


class BinaryValues(Loose, frozen=True):
    """`qnnmem.inspect-htp/1`, which has the nesting of a tool of the vendor's."""

    qnnmem: BinaryPart
    info: BinaryContents = msgspec.field(default_factory=BinaryContents)
