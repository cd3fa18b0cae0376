"""Verb `validate`: compare a model on the CPU with HTP, or with saved outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import MissingSoc, UsageError
from qnnmem.fix.proof.against_cpu import beside_files, beside_htp
from qnnmem.fix.remedy import self_contained
from qnnmem.htp.compile import CompileOptions
from qnnmem.loader.file_kind import check_kind
from qnnmem.loader.onnx import read_shaped
from qnnmem.targets.socs import find_soc
from qnnmem.verbs.compiler import need_compiler

if TYPE_CHECKING:
    from qnnmem.options.htp import ValidateOptions
    from qnnmem.results.validate import ValidateResult
    from qnnmem.verbs import VerbCall


def validate_model(file: str, options: ValidateOptions, call: VerbCall) -> ValidateResult:
    """Compare a model on the CPU with HTP, or with saved outputs."""
    path = Path(file)
    check_kind(path, "validate", takes=("onnx",))
    if (options.data is None) != (options.results is None):
        raise UsageError(
            "--data and --results must be given together: one has the inputs, the other their "
            "outputs"
        )
    if options.results is None and options.against == "gpu":
        cure = "run the model on the GPU, and pass its inputs and outputs with --data and --results"
        raise UsageError("qnnmem has no GPU to run the model on", where=path, cure=cure)
    if options.results is None and options.soc is None:
        raise MissingSoc(path)
    soc = None if options.soc is None else find_soc(options.soc)
    model = self_contained(read_shaped(path, **options.sizes))
    limits = options.tolerance, options.time_limit
    if options.data is not None and options.results is not None:
        return beside_files(file, model, Path(options.data), Path(options.results), *limits)
    assert soc is not None  # noqa: S101 - for the type checker
    need_compiler(path, (soc,), CompileOptions(time_limit_s=options.time_limit), call)
    return beside_htp(file, model, soc, *limits, call.listener.say)
