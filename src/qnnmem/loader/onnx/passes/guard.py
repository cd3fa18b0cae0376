"""Second pass: decodes bytes into a ModelProto and checks counts, names and stored data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import LoadError
from qnnmem.loader.onnx.graph import ONNX_DOMAINS
from qnnmem.loader.onnx.passes import stage
from qnnmem.loader.onnx.passes.read import ReadModel
from qnnmem.loader.onnx.tensor import check_data
from qnnmem.loader.onnx.well_formed import check_expansion, check_graphs
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

MAX_OUTPUTS = 20_000
MIN_OPSET = 7


@dataclass(frozen=True, slots=True)
class GuardedModel:
    """A checked model, with the nodes of every graph in execution order.

    If the model has functions, the next pass inlines them and then checks names and order.
    """

    path: Path
    proto: onnx.ModelProto


@stage("guard")
def guard(model: ReadModel) -> GuardedModel:
    """Return a decoded and checked model; it is only parsed, never executed."""
    proto = decode(model)
    try:
        _check_model(model.path, proto)
    except UnicodeDecodeError as exc:
        raise LoadError(
            model.path, "contains names that are not text; the file is damaged"
        ) from exc
    return GuardedModel(model.path, proto)


def decode(model: ReadModel) -> onnx.ModelProto:
    """Return the decoded message without further checks."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model.blob)
    except (DecodeError, ValueError, RuntimeError) as exc:
        raise LoadError(model.path, "is truncated or not an ONNX model") from exc
    except MemoryError as exc:
        raise LoadError(model.path, "needs more memory to read than this machine has") from exc
    return proto


def _check_model(path: Path, proto: onnx.ModelProto) -> None:
    """Raise LoadError for an invalid model; sort the nodes of a valid model in place."""
    if not proto.graph.output:
        raise LoadError(path, "is not an ONNX model, or has no outputs")
    if len(proto.graph.output) > MAX_OUTPUTS:
        raise LoadError(path, f"has more than {MAX_OUTPUTS:,} outputs, the limit for planning")
    _check_opset(path, proto)
    if proto.functions:
        check_expansion(path, proto)
    else:
        check_graphs(path, proto.graph)
    check_data(path, proto)
    proto.ClearField("training_info")


def _check_opset(path: Path, proto: onnx.ModelProto) -> None:
    import onnx.defs

    versions = [entry.version for entry in proto.opset_import if entry.domain in ONNX_DOMAINS]
    if not versions and any(node.domain in ONNX_DOMAINS for node in proto.graph.node):
        raise LoadError(path, "does not state its ONNX operator set")
    newest = onnx.defs.onnx_opset_version()
    for version in versions:
        if not MIN_OPSET <= version <= newest:
            rule = f"the newest supported one is {newest}"
            if version < MIN_OPSET:
                rule = f"{MIN_OPSET} or newer is required; convert the model first"
            raise LoadError(path, f"uses ONNX operator set {quote(version)}; {rule}")
    if len(set(versions)) > 1:
        both = " and ".join(map(str, sorted(set(versions))))
        raise LoadError(path, f"states several ONNX operator sets: {both}; a model must state one")
