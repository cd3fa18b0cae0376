"""Compare the shapes that qnnmem derives for TFLite models with those of TFLite's own interpreter.

    python tools/tflite_shapes.py FOLDER

Needs `pip install ai-edge-litert` beside qnnmem. Every `.tflite` file below FOLDER is read as it is
and, where it leaves sizes open, with each open size of its inputs set to 2, 3, 100 and 1000; each
tensor of the main graph is compared. Prints one line for each model and size, and differences. In a
model that computes sizes of sizes, the interpreter settles shapes while it runs: for large inputs,
which are not run, such tensors differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qnnmem.errors import QnnMemError
from qnnmem.loader.tflite import decode_file, read
from qnnmem.loader.tflite.schema import RawGraph

SIZES = (2, 3, 100, 1000)
_FEW = 10


def interpreted(path: Path, shapes: dict[str, tuple[int, ...]]) -> list[tuple[int, ...]] | str:
    """Shapes of the main graph's tensors as the interpreter sees them, or why it refuses."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        one = Interpreter(
            str(path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        for detail in one.get_input_details():
            if detail["name"] in shapes:
                one.resize_tensor_input(detail["index"], shapes[detail["name"]], strict=True)
        one.allocate_tensors()
        if all(size < _FEW for shape in shapes.values() for size in shape[:1]):
            one.invoke()  # some shapes are only settled then
        details = sorted(one.get_tensor_details(), key=lambda detail: detail["index"])
    except (RuntimeError, ValueError) as exc:
        return str(exc).splitlines()[0]
    return [tuple(map(int, detail["shape"])) for detail in details]


def compare(path: Path, graph: RawGraph, shapes: dict[str, tuple[int, ...]]) -> None:
    """Prints what one set of input shapes gives."""
    theirs = interpreted(path, shapes)
    try:
        model = read(path, shapes=shapes)
    except QnnMemError as exc:
        print(f"{path.name} {shapes}: refused here ({exc}); interpreter: {_short(theirs)}")
        return
    if isinstance(theirs, str):
        print(f"{path.name} {shapes}: read here, refused by the interpreter: {theirs[:150]}")
        return
    compared = wrong = 0
    for index, tensor in enumerate(graph.tensors):
        ours = model.tensors.get(tensor.name)
        if ours is None or tensor.stored or index >= len(theirs):
            continue
        compared += 1
        if ours.shape != theirs[index]:
            wrong += 1
            if wrong <= 5:
                print(f"  {tensor.name}: {ours.shape} here, {theirs[index]} there")
    print(f"{path.name} {shapes}: {compared} tensors compared, {wrong} differ")


def _short(theirs: list[tuple[int, ...]] | str) -> str:
    return theirs[:150] if isinstance(theirs, str) else f"{len(theirs)} tensors"


def main() -> None:
    """Compares every model below a folder."""
    for path in sorted(Path(sys.argv[1]).rglob("*.tflite")):
        graph = decode_file(path)[0]
        inputs = [graph.tensors[index] for index in graph.inputs]
        compare(path, graph, {})
        for size in SIZES if any(-1 in tensor.signature for tensor in inputs) else ():
            wanted = {
                t.name: tuple(size if s == -1 else s for s in t.signature)
                for t in inputs
                if -1 in t.signature
            }
            compare(path, graph, wanted)


if __name__ == "__main__":
    main()
