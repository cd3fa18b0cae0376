"""Memory types of graph inputs and outputs: as prepared, and as passed to the first execution.

Composed graphs set the type in each call; context binaries store it in the file. Unreadable
binaries are skipped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from qnnmem.errors import QnnMemError
from qnnmem.programs.layout import dimensions, tensor_bytes, tensors
from qnnmem.programs.process_memory import ProcessMemory, Unreadable
from qnnmem.programs.watch.trace import TensorUse
from qnnmem.qnn.enums import TensorMemType
from qnnmem.qnn.shared_memory import tensor_bytes as bytes_of
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.text import shorten

BinaryReader = Callable[[bytes], Mapping[str, Iterable[TensorInfo]]]  # returns tensors by graph
_LARGEST = 256 << 20  # bytes of a binary
_CHUNK = 1 << 20
_MOST = 50_000  # stored tensors
_NAME = 200
_Key = tuple[int, int, int]  # process, slot and handle


@dataclass(frozen=True, slots=True)
class _Prepared:
    name: str
    mem_type: int
    size: int


class PreparedTensors:
    """Prepared tensors of all graphs of one run; safe for several threads."""

    def __init__(self, read_binary: BinaryReader | None) -> None:
        self._read_binary = read_binary
        self._graphs: dict[_Key, dict[int, _Prepared]] = {}
        self._contexts: dict[_Key, dict[str, dict[int, _Prepared]]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def compose(self, memory: ProcessMemory, graph: _Key, tensor: int) -> None:
        """Record a tensor that was added to a graph; its descriptor already has an id."""
        given = tensors(tensor_bytes(memory, tensor, 1))[0]
        (data_type,) = memory.unpack("<I", tensor + 32)
        (rank,) = memory.unpack("<I", tensor + 80)
        size = bytes_of(dimensions(memory, given.dimensions, rank), data_type) or 0
        name = shorten(memory.text(given.name), _NAME) if given.name else ""
        prepared = _Prepared(name, given.mem_type, min(size, (1 << 63) - 1))
        with self._lock:
            self._count += 1
            if self._count < _MOST:
                self._graphs.setdefault(graph, {})[given.id] = prepared

    def restore(self, memory: ProcessMemory, context: _Key, address: int, size: int) -> None:
        """Record the tensors of a context that was created from a binary."""
        if self._read_binary is None or size > _LARGEST:
            return
        pieces = (
            memory.read(address + at, min(_CHUNK, size - at)) for at in range(0, size, _CHUNK)
        )
        with contextlib.suppress(QnnMemError):  # the tensors of an unreadable binary stay unknown
            found = {
                graph: {
                    one.id: _Prepared(shorten(one.name, _NAME), int(one.mem_type), one.nbytes)
                    for one in listed
                }
                for graph, listed in self._read_binary(b"".join(pieces)).items()
            }
            with self._lock:
                self._count += sum(map(len, found.values()))
                if self._count < _MOST:
                    self._contexts[context] = found

    def retrieve(self, context: _Key, name: str, graph: _Key) -> None:
        """Record the handle of a graph that the program retrieved from a context by name."""
        with self._lock:
            known = self._contexts.get(context, {}).get(name)
            if known is not None:
                self._graphs[graph] = known
            else:
                self._graphs.pop(graph, None)  # an earlier graph may have had this handle

    def uses(
        self, memory: ProcessMemory, graph: _Key, lists: tuple[int, ...]
    ) -> tuple[TensorUse, ...]:
        """Return the tensors of an execution.

        `lists` has the address and count of the inputs, then of the outputs.
        """
        with self._lock:
            known = dict(self._graphs.get(graph, {}))
        used = []
        for at in (0, 2):
            for tensor in tensors(tensor_bytes(memory, lists[at], lists[at + 1] & 0xFFFF_FFFF)):
                before = known.get(tensor.id)
                name = before.name if before else ""
                if not name and tensor.name:
                    with contextlib.suppress(Unreadable):
                        name = shorten(memory.text(tensor.name), _NAME)
                is_shared = tensor.mem_type == TensorMemType.MEMHANDLE
                used.append(
                    TensorUse(
                        name,
                        tensor.mem_type,
                        before.mem_type if before else None,
                        before.size if before else 0,
                        tensor.data if is_shared else 0,
                    )
                )
        return tuple(used)
