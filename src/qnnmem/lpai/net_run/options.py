"""What a run is asked to do, and which platform that makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import UsageError
from qnnmem.lpai.config.read import RunConfig
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.profiles import Mode, Profile, profile
from qnnmem.qnn.enums import MemRegisterType
from qnnmem.text import quote

SKIP = "__"  # in place of an input list: this graph is not executed

_LPAI = re.compile(r"(?:lib)?qnnlpai", re.IGNORECASE)
_OTHERS = re.compile(r"(?:lib)?qnn(htp|cpu|gpu|dsp|hta|saver|ir)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The flags of qnn-net-run that mean something at a desk, and ours."""

    retrieve_context: Path
    input_lists: tuple[str, ...]
    backend: str
    output_dir: Path = Path("output")
    config_file: Path | None = None
    direct: bool = False
    native_inputs: bool = False
    native_names: str = ""
    float_outputs: bool = True
    native_outputs: bool = False
    num_inferences: int | None = None
    duration_s: float | None = None
    keep_num_outputs: int | None = None
    shared: MemRegisterType | None = None  # None: inputs and outputs are plain memory
    asynchronous: bool = False
    use_mmap: bool = False
    profiling: str | None = None  # "basic" or "detailed"
    hw_version: str | None = None
    alignment: str = "default"
    lenient_scratch: bool = False
    sanitize: bool = True
    producer: str = "qnnmem"  # program and version that the files name


def check_backend(library: str) -> None:
    """Refuses a backend library that is not LPAI's; the file itself need not be there."""
    name = re.split(r"[/\\]", library)[-1]
    if _LPAI.match(name):
        return
    other = _OTHERS.match(name)
    what = f"is the {other[1].upper()} backend" if other else "is no LPAI backend library"
    raise UsageError(f"--backend {quote(name)} {what}; this runner is LPAI, pass libQnnLpai.so")


def platform(options: RunOptions, config: RunConfig | None, warn: Line) -> Profile:
    """The platform of a run: who calls QNN, on which hardware, with which alignment."""
    version = options.hw_version
    if version is None and config is not None and config.lpai.file is not None:
        version = config.lpai.hw_version
    return profile(
        _mode(options, config, warn),
        version or "v6",
        options.alignment,
        options.lenient_scratch,
    )


def _mode(options: RunOptions, config: RunConfig | None, warn: Line) -> Mode:
    if options.direct:
        return Mode.ADSP
    if config is None or config.lpai.file is None:
        return Mode.X86
    mode = Mode(config.lpai.target_env)
    if mode is not Mode.ADSP:
        return mode
    warn(
        "the config's target_env is adsp but --direct_mode is not given: the process that calls "
        "QNN is not on the DSP, so this runs as the traditional way over FastRPC (arm) does"
    )
    return Mode.ARM
