"""What a compile is given, and what becomes of it: a context binary or a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from qnnmem.errors import UsageError, Words, join_words
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.compile.partition import PartitionRun
from qnnmem.htp.compile.refused import UNSUPPORTED, RefusedNode
from qnnmem.htp.log import CompileLog, Refusal
from qnnmem.htp.worker import TIME_LIMIT_S, RequestOutcome
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.options.htp import CompilerOptions, HtpModelOptions, HtpOptions, SweepOptions
from qnnmem.qnn.codes import code_name
from qnnmem.results.footprint import MissingOutput, OnnxNode
from qnnmem.targets.socs import Soc

Progress = Callable[[str], None]  # takes what is being done, in a few words

_EVIDENCE = 6  # lines


def no_progress(_text: str) -> None:
    """Progress that is not shown."""


class HtpPrecision(Enum):
    """What floating-point values of the model become."""

    FP16 = "fp16"  # as HTP computes floats; a quantized model stays as it is
    INT8 = "int8"  # activations and weights of 8 bits
    W8A16 = "w8a16"  # activations of 16 bits, weights of 8


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Everything that changes the binary, and the limits of the work."""

    precision: HtpPrecision = HtpPrecision.FP16
    vtcm_mb: int | None = None  # None: the SoC's largest
    opt_level: int | None = None  # 1 to 3; None: the library's own, which is 2
    memhandle: bool = False  # inputs and outputs carry the Qmem hint
    trust: bool = False  # the model is a library, whose code is executed
    partition: bool = False  # leave nodes that QNN cannot take to the CPU
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)
    calibration: Path | None = None
    samples: int = 10  # of random calibration data
    seed: int = 0
    log_level: str = "verbose"  # info costs less and leaves out VTCM and limit
    log_file: Path | None = None
    time_limit_s: float = TIME_LIMIT_S  # for all of it: reading, quantizing, compiling, loading
    memory_limit: int | None = None  # None: three quarters of the machine


@dataclass(frozen=True, slots=True)
class Compiled:
    """A context binary and everything known about its making."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str  # package and version
    context: HtpContext
    log: CompileLog
    outcome: RequestOutcome
    epcontext: bytes | None  # ONNX model that stands for the binary, which it names `binary_name`
    binary_name: str
    on_htp: int  # nodes: of a DLC QNN's, else as ONNX Runtime counts after its optimisations
    on_cpu: tuple[OnnxNode, ...] = ()
    path: Path | None = None  # of the binary
    binary: bytes | None = None  # the binary itself, where no path was given
    notes: tuple[str, ...] = ()
    missing_outputs: tuple[MissingOutput, ...] = ()  # of the model, not in the binary
    model_outputs: int = 0  # how many the model has, where some are missing
    run: PartitionRun | None = None  # where nodes stay on the CPU


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why there is no binary."""

    model: Path
    soc: Soc
    options: CompileOptions
    library: str
    stage: str  # quantize, partition or compile
    why: Words  # one sentence with what to try
    outcome: RequestOutcome
    log: CompileLog
    code: int | None = None  # of QNN
    refusal: Refusal | None = None  # the line of the log that decides
    unsupported: tuple[RefusedNode, ...] = ()
    line: str = ""  # of the log: the first that decides
    all_refused: bool = True  # no node is left that could be compiled

    @property
    def evidence(self) -> tuple[str, ...]:
        """The line that decides, those after it, and the one that ends the attempt."""
        texts = [line.text for line in self.outcome.log]
        at = texts.index(self.line) if self.line in texts else len(texts)
        mark = UNSUPPORTED.decode()
        last = next((text for text in texts if mark in text), self.outcome.sentence)
        known = texts[at : at + _EVIDENCE] or [self.line]
        return tuple(filter(None, dict.fromkeys((*known, last))))

    @property
    def sentence(self) -> str:
        """Why, with settings by their Python names."""
        return join_words(self.why)

    @property
    def code_name(self) -> str:
        """QNN's name of the code."""
        return "" if self.code is None else code_name(self.code)


def for_a_cluster(options: CompileOptions) -> CompileOptions:
    """Options that mean the same on another machine; UsageError where they name files of this."""
    if any(isinstance(value, Path) for value in options.values.values()):
        raise UsageError("values of inputs in files do not go to a cluster; give them as numbers")
    return replace(options, log_file=None)


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
