"""The description of a context binary, in the structs of `QnnSystemContext.h`.

In C these structs belong to a system context and are freed with it. Here each struct knows its
owner. Reading a struct after its owner was freed is an error, as with any other handle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar

from qnnmem.errors import UsageError
from qnnmem.qnn.enums import BinaryInfoVersion, GraphInfoVersion
from qnnmem.qnn.tensor import QnnTensor

T = TypeVar("T")


class Lender(Protocol):
    """A handle that owns the memory of the structs it returns."""

    is_freed: bool

    def check_lent(self, what: str) -> None:
        """Raise an error about reading `what` if the handle was freed."""


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """API version (`Qnn_Version_t`)."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> ApiVersion:
        """Return the version in a text such as `2.27.0`."""
        major, minor, patch = map(int, text.split("."))
        return cls(major, minor, patch)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Lent:
    """A struct whose members cannot be read after its owner was freed.

    Without an owner, the struct is always readable.
    """

    _owner: Lender | None = field(default=None, repr=False, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            owner: Lender | None = object.__getattribute__(self, "_owner")
            if owner is not None:
                owner.check_lent(f"{type(self).__name__}.{name}")
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        names = (member.name for member in fields(self) if member.repr)
        return _shown(self, names, self._owner)


class SystemTensor(QnnTensor):
    """`Qnn_Tensor_t` of a system context; its name and dimensions are in the context's memory.

    `copy.copy` copies the pointers. `copy.deepcopy` copies the memory they point to, and returns a
    tensor that outlives the system context.
    """

    owner: Lender | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("name", "dimensions", "nbytes"):
            owner: Lender | None = object.__getattribute__(self, "owner")
            if owner is not None:
                owner.check_lent(f"QnnTensor.{name}")
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return _shown(self, QnnTensor.__struct_fields__, self.owner)

    def __deepcopy__(self, _memo: dict[int, Any]) -> QnnTensor:
        return QnnTensor(*(getattr(self, name) for name in QnnTensor.__struct_fields__))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphInfo(_Lent):
    """`QnnSystemContext_GraphInfo_t` with the members of version 1, which all versions have."""

    # Which struct of the C union is filled.
    version: ClassVar[GraphInfoVersion] = GraphInfoVersion.VERSION_1
    graph_name: str
    graph_inputs: tuple[QnnTensor, ...] = ()
    graph_outputs: tuple[QnnTensor, ...] = ()

    @property
    def num_graph_inputs(self) -> int:
        """Number of tensors that the application writes."""
        return len(self.graph_inputs)

    @property
    def num_graph_outputs(self) -> int:
        """Number of tensors that the application reads."""
        return len(self.graph_outputs)

    @property
    def graph_info_v1(self) -> GraphInfo:
        """The version 1 struct of the union; UsageError if the union holds another version."""
        return _filled(self, GraphInfo, "graphInfoV1")

    @property
    def graph_info_v2(self) -> GraphInfoV2:
        """The version 2 struct of the union; UsageError if the union holds another version."""
        return _filled(self, GraphInfoV2, "graphInfoV2")

    @property
    def graph_info_v3(self) -> GraphInfoV3:
        """The version 3 struct of the union; UsageError if the union holds another version."""
        return _filled(self, GraphInfoV3, "graphInfoV3")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphInfoV2(GraphInfo):
    """Description of a graph, version 2 (`QnnSystemContext_GraphInfoV2_t`)."""

    version: ClassVar[GraphInfoVersion] = GraphInfoVersion.VERSION_2
    updateable_tensors: tuple[QnnTensor, ...] = ()

    @property
    def num_updateable_tensors(self) -> int:
        """Number of tensors that can be updated after they were created."""
        return len(self.updateable_tensors)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphInfoV3(GraphInfoV2):
    """Description of a graph, version 3 (`QnnSystemContext_GraphInfoV3_t`)."""

    version: ClassVar[GraphInfoVersion] = GraphInfoVersion.VERSION_3
    graph_blob_info: bytes = b""
    start_op_index: int = 0
    end_op_index: int = 0

    @property
    def graph_blob_info_size(self) -> int:
        """Size in bytes of the backend's data about the graph."""
        return len(self.graph_blob_info)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BinaryInfo(_Lent):
    """`QnnSystemContext_BinaryInfo_t` with the members that all versions have."""

    # Which struct of the C union is filled.
    version: ClassVar[BinaryInfoVersion] = BinaryInfoVersion.UNDEFINED
    backend_id: int
    build_id: str
    core_api_version: ApiVersion
    backend_api_version: ApiVersion
    soc_version: str
    context_blob_version: ApiVersion
    context_blob_size: int
    context_tensors: tuple[QnnTensor, ...]
    graphs: tuple[GraphInfo, ...]

    @property
    def num_context_tensors(self) -> int:
        """Number of tensors that belong to the context and not to a graph."""
        return len(self.context_tensors)

    @property
    def num_graphs(self) -> int:
        """Number of graphs in the binary."""
        return len(self.graphs)

    @property
    def context_binary_info_v1(self) -> BinaryInfoV1:
        """The version 1 struct of the union; UsageError if the union holds another version."""
        return _filled(self, BinaryInfoV1, "contextBinaryInfoV1")

    @property
    def context_binary_info_v2(self) -> BinaryInfoV2:
        """The version 2 struct of the union; UsageError if the union holds another version."""
        return _filled(self, BinaryInfoV2, "contextBinaryInfoV2")

    @property
    def context_binary_info_v3(self) -> BinaryInfoV3:
        """The version 3 struct of the union; UsageError if the union holds another version."""
        return _filled(self, BinaryInfoV3, "contextBinaryInfoV3")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BinaryInfoV1(BinaryInfo):
    """Description of a binary, version 1 (`QnnSystemContext_BinaryInfoV1_t`)."""

    version: ClassVar[BinaryInfoVersion] = BinaryInfoVersion.VERSION_1
    hw_info_blob_version: ApiVersion = ApiVersion(0, 0, 0)
    hw_info_blob: bytes = b""

    @property
    def hw_info_blob_size(self) -> int:
        """Size in bytes of the hardware data."""
        return len(self.hw_info_blob)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BinaryInfoV2(BinaryInfoV1):
    """Description of a binary, version 2 (`QnnSystemContext_BinaryInfoV2_t`)."""

    version: ClassVar[BinaryInfoVersion] = BinaryInfoVersion.VERSION_2
    platform_info: object | None = None  # NULL in binaries for LPAI


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BinaryInfoV3(BinaryInfo):
    """Description of a binary, version 3 (`QnnSystemContext_BinaryInfoV3_t`)."""

    version: ClassVar[BinaryInfoVersion] = BinaryInfoVersion.VERSION_3
    platform_info: object | None = None  # NULL in binaries for LPAI
    context_metadata: bytes = b""
    soc_model: int = 0

    @property
    def context_metadata_size(self) -> int:
        """Size in bytes of the backend's data about the context."""
        return len(self.context_metadata)


def _shown(struct: _Lent | SystemTensor, names: Iterable[str], owner: Lender | None) -> str:
    """Return the struct as text, without members if its owner was freed."""
    kind = type(struct).__name__
    if owner is not None and owner.is_freed:
        return f"<{kind} of a system context that was freed>"
    values = (f"{name}={getattr(struct, name)!r}" for name in names)
    return f"{kind}({', '.join(values)})"


def _filled(info: BinaryInfo | GraphInfo, kind: type[T], member: str) -> T:
    """Return the struct if it has the type `kind`; otherwise raise UsageError."""
    if type(info) is not kind:
        raise UsageError(
            f"{member} is not filled in: version is {info.version.c_name}; read `version` first"
        )
    return info
