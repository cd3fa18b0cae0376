"""Elements of a graph's inputs and outputs as NumPy has them."""

from __future__ import annotations

from qnnmem.errors import CannotTell
from qnnmem.htp.binary.context import HtpTensor
from qnnmem.text import quote

_FLOATS = {16: "float16", 32: "float32"}
_WHOLE = (8, 16, 32, 64)


def numpy_type(tensor: HtpTensor) -> str:
    """NumPy's name of a tensor's element type; quantized values are plain integers."""
    name, bits = tensor.data_type.name, tensor.data_type.bits
    family = name.split("_")[0].removesuffix("FIXED").removesuffix("INT") or "S"
    if family == "FLOAT" and bits in _FLOATS:
        return _FLOATS[bits]
    if family in ("S", "U") and bits in _WHOLE:
        return f"{'u' if family == 'U' else ''}int{bits}"
    if family == "BOOL" and bits == 8:
        return "bool"
    raise CannotTell(f"tensor {quote(tensor.name)} is {name}, which NumPy does not have")
