"""What is known of the tensors of one graph: shapes, and numbers that are sizes of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qnnmem.errors import Damaged, UsageError
from qnnmem.loader.tflite.derive.call import Call, Operand, Shape, Unknown, written
from qnnmem.loader.tflite.derive.shape import derive
from qnnmem.loader.tflite.derive.value import compute, stored_value
from qnnmem.loader.tflite.file import TfliteFile
from qnnmem.loader.tflite.schema import RawGraph, RawOp, RawTensor

_CONVERT = "convert the model again with the shapes wanted"
# Operators whose output converters store with the sizes of the input; the interpreter resizes it.
_MISSTATED = ("RFFT2D",)


class KnownShapes:
    """Derives shapes operator by operator; `inputs` are those of the graph's inputs.

    Without shapes of the user's own a shape that cannot be derived stays as stored.
    """

    def __init__(self, file: TfliteFile, graph: RawGraph, inputs: Mapping[int, Operand]) -> None:
        self._file, self._graph = file, graph
        self._derived = {index: operand.shape for index, operand in inputs.items()}
        self._values: dict[int, Any] = {index: operand.value for index, operand in inputs.items()}
        self._misstated: set[int] = set()

    def derived(self, index: int) -> Shape | None:
        """Shape that a tensor has in this run; None for the stored one."""
        return self._derived.get(index)

    def operand(self, index: int) -> Operand:
        """What is known of a tensor."""
        raw = self._graph.tensors[index]
        shape = self._derived.get(index, raw.shape)
        if index not in self._values:
            self._values[index] = stored_value(raw.type, raw.shape, raw.data)
        return Operand(shape, self._values[index])

    def run(self, op: RawOp, where: str) -> None:
        """Find the shapes that an operator returns."""
        if not self._file.is_open:
            return
        operands = [None if index == -1 else self.operand(index) for index in op.inputs]
        call = Call(op, operands, [self._graph.tensors[index] for index in op.outputs])
        try:
            shapes = derive(call)
            if op.type in _MISSTATED or not self._misstated.isdisjoint(op.inputs):
                self._correct(op.outputs, shapes)
            self.returns(op.outputs, shapes)
        except Unknown:
            self._keep(op, where, "")
        except Damaged as exc:
            self._keep(op, where, str(exc))
        else:
            self._values.update(zip(op.outputs, compute(call, shapes), strict=True))

    def returns(self, outputs: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Set what an operator returns; Damaged where the file says otherwise."""
        for index, shape in zip(outputs, shapes, strict=True):
            if index not in self._misstated and not _agrees(self._graph.tensors[index], shape):
                stored = written(self._graph.tensors[index].shape)
                raise Damaged(f"returns {written(shape)} where the file has {stored}")
        self._derived.update(zip(outputs, shapes, strict=True))

    def _correct(self, outputs: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Note outputs of as many dimensions as stored whose sizes the file has wrong."""
        for index, shape in zip(outputs, shapes, strict=True):
            raw = self._graph.tensors[index]
            if len(raw.shape) == len(shape) and not _agrees(raw, shape):
                self._misstated.add(index)

    def _keep(self, op: RawOp, where: str, fault: str) -> None:
        """Leave shapes as stored, unless that would be a wrong answer."""
        same = all(
            self._derived.get(index, stored := self._graph.tensors[index].shape) == stored
            for index in op.inputs
            if index != -1
        )
        if fault and not self._file.given:
            self._file.cannot_run = self._file.cannot_run or f"{where} {fault}"
        elif fault:
            raise UsageError(f"with these shapes {where} {fault}", where=self._file.path)
        elif self._file.given and not same:
            what = f"what {where} returns cannot be derived for these shapes"
            raise UsageError(what, where=self._file.path, cure=_CONVERT)


def _agrees(raw: RawTensor, shape: Shape) -> bool:
    stored = raw.signature if len(raw.signature) == len(raw.shape) else raw.shape
    if len(stored) != len(shape):
        return False
    return all(have in (-1, size) for have, size in zip(stored, shape, strict=True))
