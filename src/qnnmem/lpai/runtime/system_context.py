"""`QnnSystemContext`: returns the description of a binary without creating a context."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from qnnmem.contract.leaks import of_process
from qnnmem.contract.regions import ClientBuffer
from qnnmem.contract.rules import finding
from qnnmem.errors import UsageError
from qnnmem.lpai.binary import MALFORMED_BINARY, unpack
from qnnmem.lpai.compiled import CompiledGraph
from qnnmem.lpai.inspect import BLOB_VERSION, CORE_API, LPAI_API
from qnnmem.lpai.inspect import io_tensors as described_tensors
from qnnmem.qnn.binary_info import (
    ApiVersion,
    BinaryInfo,
    BinaryInfoV1,
    BinaryInfoV2,
    BinaryInfoV3,
    GraphInfo,
    GraphInfoV2,
    GraphInfoV3,
    SystemTensor,
)
from qnnmem.qnn.codes import qnn_error
from qnnmem.qnn.enums import BackendId, BinaryInfoVersion
from qnnmem.qnn.tensor import QnnTensor

_ANSWERS: dict[BinaryInfoVersion, tuple[type[BinaryInfo], type[GraphInfo]]] = {
    BinaryInfoVersion.VERSION_1: (BinaryInfoV1, GraphInfo),
    BinaryInfoVersion.VERSION_2: (BinaryInfoV2, GraphInfoV2),
    BinaryInfoVersion.VERSION_3: (BinaryInfoV3, GraphInfoV3),
}
_INVALID_HANDLE = 30000
_FREE = "call QnnSystemContext_free after the last use of its tensors and names"


class SystemContext:
    """Reads descriptions of binaries and owns their memory (`QnnSystemContext_Handle_t`)."""

    def __init__(self, version: int = BinaryInfoVersion.VERSION_1) -> None:
        if not isinstance(version, int) or version not in _ANSWERS:
            raise UsageError("version must be 1, 2 or 3")
        self._version = BinaryInfoVersion(version)
        self.is_freed = False
        self._resource = of_process().part(
            "system context", "L2", "the system context made at {at}", cure=_FREE
        )

    @classmethod
    def create(cls, *, version: int = BinaryInfoVersion.VERSION_1) -> SystemContext:
        """Return a system context (`QnnSystemContext_create`).

        `version` is the version of the structs that this context returns. A real library chooses
        the version itself, so a client must support all versions.
        """
        return cls(version)

    def get_binary_info(self, binary: Any) -> BinaryInfo:
        """Return a binary's description (`QnnSystemContext_getBinaryInfo`); error 30010 if damaged.

        The description contains everything except the weights.
        """
        return self._read(binary, "QnnSystemContext_getBinaryInfo")

    @property
    def binary_info_size(self) -> int:
        """The size in bytes of `QnnSystemContext_BinaryInfo_t` in C (`binaryInfoSize`).

        The structs that its pointers refer to are not included (see choice `binary-info-size`).
        """
        from qnnmem.qnn.abi import BINARY_INFO_BYTES

        return BINARY_INFO_BYTES

    def get_metadata(self, binary: Any) -> BinaryInfo:
        """Return a binary's description, like the newer QNN call `QnnSystemContext_getMetadata`."""
        return self._read(binary, "QnnSystemContext_getMetadata")

    def free(self) -> None:
        """Free the system context (`QnnSystemContext_free`) and all descriptions it returned."""
        self._check_alive("QnnSystemContext_free")
        self.is_freed = True
        self._resource.freed()

    def disown(self) -> None:
        """Do not report the system context as a leak; call this if its owner failed."""
        self._resource.freed()

    def check_lent(self, what: str) -> None:
        """Fail if a description is read after `free`."""
        if self.is_freed:
            sentence = f"{what} was read after its system context was freed"
            cure = "copy the values that you need, or free the system context after their last use"
            found = finding("R16", sentence, call="QnnSystemContext_free", cure=cure)
            raise qnn_error(_INVALID_HANDLE, found)

    def _check_alive(self, call: str) -> None:
        if self.is_freed:
            cure = "free a system context once, after the last call with it"
            found = finding("R16", "the system context was freed", call=call, cure=cure)
            raise qnn_error(_INVALID_HANDLE, found)

    def _read(self, binary: Any, call: str) -> BinaryInfo:
        self._check_alive(call)
        file = ClientBuffer(binary).array.data
        context = unpack(file, MALFORMED_BINARY)
        info_type, graph_type = _ANSWERS[self._version]
        graphs = tuple(
            graph_type(
                graph_name=graph.name,
                graph_inputs=tuple(map(self._lend, inputs)),
                graph_outputs=tuple(map(self._lend, outputs)),
                _owner=self,
            )
            for graph in context.graphs
            for inputs, outputs in (io_tensors(graph),)
        )
        return info_type(
            backend_id=BackendId.LPAI,
            build_id=context.producer,
            core_api_version=ApiVersion.parse(CORE_API),
            backend_api_version=ApiVersion.parse(LPAI_API),
            soc_version="",
            context_blob_version=ApiVersion.parse(BLOB_VERSION),
            context_blob_size=file.nbytes,
            context_tensors=(),
            graphs=graphs,
            _owner=self,
        )

    def _lend(self, tensor: QnnTensor) -> SystemTensor:
        return SystemTensor(**asdict(tensor), owner=self)


def get_binary_info(binary: Any) -> tuple[GraphInfo, ...]:
    """Return a binary's graphs without a system context, so that nothing has to be freed."""
    context = unpack(ClientBuffer(binary).array.data, MALFORMED_BINARY)
    graphs = ((graph.name, *io_tensors(graph)) for graph in context.graphs)
    return tuple(
        GraphInfo(graph_name=name, graph_inputs=inputs, graph_outputs=outputs)
        for name, inputs, outputs in graphs
    )


def io_tensors(graph: CompiledGraph) -> tuple[tuple[QnnTensor, ...], tuple[QnnTensor, ...]]:
    """Return descriptors of inputs and of outputs, without state."""
    inputs, outputs = described_tensors(graph)
    return tuple(map(QnnTensor.of, inputs)), tuple(map(QnnTensor.of, outputs))
