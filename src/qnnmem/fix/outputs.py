"""The files that a change becomes: one model or parts, context binaries where there are some."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from qnnmem.fix.htp import HtpFixResult
from qnnmem.fix.parts.manifest import MANIFEST, describe_chain, part_models
from qnnmem.fix.parts.partition import Partition
from qnnmem.fix.parts.partition_htp import HtpParts
from qnnmem.fix.remedy import self_contained
from qnnmem.fix.run import FixResult
from qnnmem.loader.onnx.backend_mark import mark_backend
from qnnmem.results.fix import FixDeployment
from qnnmem.results.schema import encode


def outputs_of(result: FixResult, stem: str, *, always: bool = False) -> dict[str, bytes]:
    """Return the files of a result by name, in the order they are reported; none if unchanged.

    With `always`, an unchanged model is included with its shapes fixed.
    """
    best = result.best
    binaries = result.binaries if isinstance(result, HtpFixResult) else ()
    blobs = [path.read_bytes() for path in binaries]
    if isinstance(result, HtpFixResult) and not best.is_enough:
        return {}
    if best.change.parts is not None:
        parts = result.parts if isinstance(result, HtpFixResult) else None
        deployment = best.need.deployment
        told = None if deployment is None else deployment.result(best.before.total)
        return _chain(best.change.parts, parts, blobs, told)
    found = {}
    if always or best.change.model is not result.case.model:
        model = self_contained(best.change.model)
        if best.change.model is not result.case.model:
            mark_backend(model, result.backend)
        found[f"{stem}.onnx"] = model.SerializeToString(deterministic=True)
    return {**found, **{f"{stem}.bin": blob for blob in blobs}}


def _chain(
    cut: Partition,
    parts: HtpParts | None,
    binaries: Sequence[bytes],
    deployment: FixDeployment | None,
) -> dict[str, bytes]:
    from qnnmem.fix.parts.chain_htp import describe_htp

    models = tuple(_marked(blob, "lpai" if parts is None else "htp") for blob in part_models(cut))
    htp = None if parts is None else describe_htp(parts, binaries)
    chain = replace(describe_chain(cut, models), deployment=deployment, htp=htp)
    names = [name for name, _digest in chain.files]
    named = dict(zip(names, (*models, *binaries), strict=True))
    return {**named, MANIFEST: encode(chain).encode()}


def _marked(blob: bytes, backend: str) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(blob)
    mark_backend(model, backend)
    return bytes(model.SerializeToString(deterministic=True))
