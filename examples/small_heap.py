"""Run a prepared model with one heap for scratch and persistent memory.

    qnnmem prepare model.onnx --float -o model.bin
    python examples/small_heap.py model.bin 64K 40K     a heap of 64 KiB, 40 of them in use
    python examples/small_heap.py model.bin

A failure is printed like a line of a log.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from qnnmem import lpai
from qnnmem.errors import QnnError
from qnnmem.qnn.enums import MemType
from qnnmem.units import parse_size


def run(path: Path, room: int, taken: int) -> None:
    """Allocate the memory that the graph needs, then execute it once."""
    heap = lpai.Heap(MemType.DDR, capacity=room)
    others = heap.allocate(taken, name="other models")
    with lpai.open(path) as session:
        graph = session.compiled
        pools = {"scratch": graph.scratch_bytes, "persistent": graph.persistent_bytes}
        mine = [heap.allocate(size, name=name) for name, size in pools.items() if size]
        tensors = graph.model.tensors
        inputs = {name: np.zeros(tensors[name].shape, np.float32) for name in graph.inputs}
        session.feed(inputs)
        print(f"executed with {heap.used - taken:,} bytes of its own")
    for buffer in (*mine, others):
        buffer.free()


def main(binary: str = "", room: str = "1M", taken: str = "0") -> None:
    """Run the named binary, or print what failed."""
    path = Path(binary) if binary else Path(__file__).with_name("small_lpai.bin")
    try:
        run(path, parse_size(room), parse_size(taken))
    except QnnError as error:
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:4])
