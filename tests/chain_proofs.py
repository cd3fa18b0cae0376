"""Compares chains with the whole model, and writes chains with HTP binaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from msgspec import structs

from qnnmem.atomic_file import folder_for_output, write_together
from qnnmem.calibration import Sample
from qnnmem.fix.library.trials import HtpParts, describe_htp
from qnnmem.fix.parts.chain import MANIFEST, describe_chain
from qnnmem.fix.parts.op_sequence import OpSequence
from qnnmem.fix.parts.partition import Partition
from qnnmem.fix.proof.program import Proof
from qnnmem.fix.proof.prove import prove
from qnnmem.loader.onnx import read_guarded
from qnnmem.loader.onnx.tensor import embed, tensors
from qnnmem.results.chain import Chain
from qnnmem.results.schema import encode


def check_parts(models: Sequence[bytes]) -> None:
    """Check every part with ONNX's own checker."""
    for blob in models:
        onnx.checker.check_model(blob)


def prove_partition(found: Partition, *, samples: Sequence[Sample] = (), seed: int = 0) -> Proof:
    """Compare every output of a model with that of its parts, bit for bit."""
    parts = (onnx.ModelProto.FromString(blob) for blob in found.models())
    return prove(whole_model(found.sequence), *parts, samples=samples, seed=seed)


def whole_model(sequence: OpSequence) -> onnx.ModelProto:
    """Return the model of the file with fixed input shapes and embedded data.

    Inputs with a given value become constants.
    """
    fixed = {item.name: item for item in sequence.proto.graph.input}
    whole = read_guarded(sequence.path).proto
    stored = {tensor.name for tensor in whole.graph.initializer}
    wanted = [item.name for item in whole.graph.input if item.name not in stored]
    if set(wanted) != set(fixed):
        whole.CopyFrom(sequence.proto)
    else:
        del whole.graph.input[:]
        whole.graph.input.extend(fixed[name] for name in wanted)
        # Older versions require initializers among the inputs.
        whole.ir_version = max(whole.ir_version, sequence.proto.ir_version)
    for tensor in tensors(whole):
        embed(sequence.path, tensor)
    return whole


def write_htp_chain(found: HtpParts, folder: Path) -> Chain:
    """Write the parts, their context binaries and the manifest; return the chain."""
    blobs = found.partition.models()
    binaries = [path.read_bytes() for path in found.binaries]
    described = describe_chain(found.partition, blobs)
    chain = structs.replace(described, htp=describe_htp(found, binaries))
    contents = zip(chain.files, (*blobs, *binaries), strict=True)
    with folder_for_output(folder):
        named = {folder / name: content for (name, _), content in contents}
        write_together({**named, folder / MANIFEST: encode(chain).encode()}, force=False)
    return chain
