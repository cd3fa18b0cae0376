"""Whether model and IO fit the TCM pool of aDSP direct mode."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qnnmem.provenance import Sourced
from qnnmem.units import Align, Bytes, round_up


@dataclass(frozen=True, slots=True)
class TcmVerdict:
    """The model binary and each IO tensor are one allocation each, rounded to the alignment."""

    need: Bytes
    limit: Sourced
    buffers: int
    max_buffers: Sourced

    @property
    def fits(self) -> bool:
        """Whether both the bytes and the number of allocations are within the pool."""
        return self.need <= self.limit.value and self.buffers <= self.max_buffers.value


def judge_tcm(
    model_bytes: Bytes, io: Iterable[Bytes], align: Align, limit: Sourced, max_buffers: Sourced
) -> TcmVerdict:
    """What the pool must hold, against what it can."""
    sizes = [round_up(size, align) for size in (model_bytes, *io)]
    return TcmVerdict(Bytes(sum(sizes)), limit, len(sizes), max_buffers)
