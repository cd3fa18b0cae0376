"""Files that hold the weights of a model, by the names under which it knows them."""

from __future__ import annotations

from pathlib import Path

from qnnmem.bounded_file import file_below
from qnnmem.errors import Damaged, LoadError
from qnnmem.loader.onnx.passes.guard import decode
from qnnmem.loader.onnx.passes.read import read
from qnnmem.loader.onnx.stored import tensors
from qnnmem.loader.onnx.tensor import EXTERNAL

_KEY = "location"


def weight_files(path: Path, folder: Path) -> dict[str, Path]:
    """Files that tensors of a model point to; each must lie below `folder`, links followed.

    They need not be there.
    """
    model = read(path)
    if _KEY.encode() not in model.blob:
        return {}
    found: dict[str, Path] = {}
    for tensor in tensors(decode(model)):
        for entry in tensor.external_data if tensor.data_location == EXTERNAL else ():
            if entry.key == _KEY and entry.value not in found:
                try:
                    found[entry.value] = file_below(folder, str(entry.value))
                except Damaged as exc:
                    raise LoadError(path, f"a file of weights {exc}") from None
    return found
