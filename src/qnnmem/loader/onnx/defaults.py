"""Defaults of attributes that shape inference takes for something else, written out.

The standard says that an STFT is one-sided unless told otherwise. onnx's inference takes it for
two-sided; onnxruntime does as the standard says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from qnnmem.loader.onnx.graph import attribute, bodies, is_op

if TYPE_CHECKING:
    import onnx

_INT = 2  # of onnx.AttributeProto.AttributeType
_DEFAULTS: Mapping[str, Mapping[str, int]] = MappingProxyType({"STFT": {"onesided": 1}})


def lacks_defaults(node: onnx.NodeProto) -> bool:
    """Whether a node, or one inside of it, leaves out what inference would get wrong."""
    return bool(_missing(node)) or any(lacks_defaults(n) for b in bodies(node) for n in b.node)


def write_defaults(node: onnx.NodeProto) -> None:
    """Write what is left out into a node that only the caller holds, and into its bodies."""
    for name, value in _missing(node).items():
        node.attribute.add(name=name, type=_INT, i=value)
    for body in bodies(node):
        for inner in body.node:
            write_defaults(inner)


def _missing(node: onnx.NodeProto) -> dict[str, int]:
    if not is_op(node, *_DEFAULTS):
        return {}
    found = _DEFAULTS[node.op_type]
    return {name: value for name, value in found.items() if attribute(node, name) is None}
