"""`QnnMem` of LPAI: what a descriptor of shared memory must say, and the code when it does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from qnnmem.contract.rules import finding
from qnnmem.errors import Fault
from qnnmem.lpai.runtime.backend import Backend, shown
from qnnmem.lpai.runtime.descriptors import MemDescriptor, MemInfoCustom
from qnnmem.qnn.enums import MemRegisterType
from qnnmem.qnn.shared_memory import (
    MemHandle,
    RegisteredMemory,
    SharedFile,
    SharedRange,
    shared_file,
    tensor_bytes,
)


class SharedMemory:
    """What a context has registered."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._memory = RegisteredMemory()

    def __contains__(self, handle: object) -> bool:
        return handle in self._memory

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[MemHandle]:
        """All descriptors or none."""
        if not isinstance(descriptors, list | tuple):
            self._fail(8000, "M2", "a list of memory descriptors is expected")
        try:
            return self._memory.register(descriptors, self._check)
        except Fault as exc:
            self._fail(8003, "M2", str(exc))

    def deregister(self, handles: Iterable[MemHandle]) -> None:
        """Every valid handle goes, even if another is invalid."""
        if not isinstance(handles, list | tuple):
            self._fail(8000, "M2", "a list of handles is expected", "QnnMem_deRegister")
        unknown = self._memory.deregister(handles)
        if unknown:
            self._fail(
                8001, "M2", f"{unknown} handles are not registered here", "QnnMem_deRegister"
            )

    def _check(self, descriptor: MemDescriptor) -> SharedRange:
        if not isinstance(descriptor, MemDescriptor):
            self._fail(8000, "M2", "a memory descriptor is expected")
        self._check_type(descriptor.mem_type)
        info, size = descriptor.custom_info, self._size(descriptor)
        is_place = isinstance(info, MemInfoCustom) and isinstance(info.fd, int)
        if not (is_place and _whole(info.offset)):
            self._fail(8000, "M2", "the descriptor does not say which fd and offset")
        try:
            file = shared_file(info.fd)
        except Fault as exc:
            self._fail(8003, "M2", f"fd {shown(info.fd)} {exc}")
        self._check_range(info, size, file)
        return SharedRange(file, info.offset, size)

    def _check_type(self, kind: int) -> None:
        if not isinstance(kind, int):
            self._fail(8000, "M2", f"{shown(kind)} is not a kind of memory")
        if kind not in self._backend.profile.register_types:
            name = MemRegisterType(kind).name if kind in set(MemRegisterType) else f"{kind:#x}"
            mode = self._backend.profile.mode.value
            self._fail(8005, "M4", f"memory of type {name} cannot be registered in {mode} mode")

    def _size(self, descriptor: MemDescriptor) -> int:
        dimensions = descriptor.dimensions
        if not (isinstance(dimensions, list | tuple) and _whole(*dimensions)):
            self._fail(8000, "M2", "the dimensions of the descriptor are not sizes")
        if not isinstance(descriptor.data_type, int):
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} is not a number")
        size = tensor_bytes(dimensions, descriptor.data_type)
        if size is None:
            self._fail(8000, "M2", f"data type {shown(descriptor.data_type)} has no size")
        return size

    def _check_range(self, info: MemInfoCustom, size: int, file: SharedFile) -> None:
        end, room = info.offset + size, file.size
        if end > room:
            sentence = (
                f"bytes {info.offset:,} to {end:,} of fd {info.fd} are {end - room:,} past its end"
            )
            self._fail(8003, "M2", sentence, need=end, given=room)
        align = self._backend.profile.start_alignment
        if info.offset % align:
            off = info.offset % align
            sentence = f"offset {info.offset:,} is {off} past a multiple of {align}"
            self._fail(8004, "M3", sentence, need=align, given=off)
        for other in self._memory.in_file(file):
            if other.offset == info.offset and other.size == size:
                sentence = (
                    f"bytes {info.offset:,} to {end:,} of fd {info.fd} are registered already"
                )
                self._fail(8002, "M1", sentence)

    def _fail(
        self,
        code: int,
        rule: str,
        sentence: str,
        call: str = "QnnMem_register",
        need: int | None = None,
        given: int | None = None,
    ) -> NoReturn:
        self._backend.fail(code, finding(rule, sentence, call=call, need=need, given=given))


def _whole(*values: object) -> bool:
    return all(type(v) is int and 0 <= v < 1 << 63 for v in values)
