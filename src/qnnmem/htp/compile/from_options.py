"""A compile as the options ask for it: the one place that turns their values into arguments."""

from __future__ import annotations

from qnnmem.htp.compile.value import CompileOptions, HtpPrecision
from qnnmem.options.htp import CompilerOptions, HtpModelOptions, HtpOptions, SweepOptions


def compile_options(options: CompilerOptions) -> CompileOptions:
    """Return the compile that the options of a verb ask for."""
    return CompileOptions(
        precision=HtpPrecision(options.precision)
        if isinstance(options, HtpOptions)
        else HtpPrecision.FP16,
        vtcm_mb=options.vtcm_mb if isinstance(options, HtpModelOptions) else None,
        memory_limit=options.memory_limit if isinstance(options, SweepOptions) else None,
        time_limit_s=options.time_limit,
        **options.sizes,
    )
