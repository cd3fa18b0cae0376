"""Context binaries that stay loaded beside a model, with their bytes in a process domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qnnmem.errors import CannotTell, LoadError, NotCompiled
from qnnmem.htp.bill.loading import load_binaries
from qnnmem.htp.bill.source import last_estimate
from qnnmem.htp.bill.stored import stored_bill
from qnnmem.htp.bill.value import SizeRange
from qnnmem.htp.place import Resident, resident
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import Soc


def read_resident_contexts(paths: Sequence[Path], soc: Soc, worker: Worker) -> tuple[Resident, ...]:
    """Return each file with the library's estimate; a file named twice is loaded twice."""
    found: list[Resident] = []
    for path in paths:
        same = sum(one == path for one in paths[: len(found)])
        # The model and its parts have names without a suffix.
        name = str(path) if path.suffix else f"{path}."
        name = f"{name} ({same + 1})" if same else name
        found.append(replace(_read(path, soc, worker), name=name))
    return tuple(found)


def _read(path: Path, soc: Soc, worker: Worker) -> Resident:
    try:
        known = resident(str(path), stored_bill(path, soc))
    except NotCompiled as exc:
        raise LoadError(path, "is a model, not a context binary; prepare it first") from exc
    if known is None:
        raise CannotTell(f"{path} does not hold the sizes that its process domain needs")
    if path.suffix.lower() == ".onnx":  # the binary is embedded, or a file beside the model
        return known
    estimate = last_estimate(load_binaries(worker, [path], soc.model_id).log)
    if estimate is None or estimate.total is None:
        return known
    said = Sourced(estimate.total, Origin.MEASURED, "estimate of the library when it loaded it")
    return replace(known, need=SizeRange(said, said))
