"""Options of a run, the platform that they select, and the configs for QNN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qnnmem.errors import UsageError
from qnnmem.lpai.config.settings import RunConfig
from qnnmem.lpai.net_run.log import Line
from qnnmem.lpai.profiles import Mode, Profile, profile
from qnnmem.lpai.runtime.descriptors import Config, CoreAffinityCfg, PerfCfg, custom
from qnnmem.qnn.enums import (
    BinaryCompatibility,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    CoreAffinity,
    GraphConfigOption,
    GraphOption,
    MemRegisterType,
    MemType,
    Priority,
)
from qnnmem.text import quote

SKIP = "__"  # in place of an input list: the graph is not executed
LIBRARY = "libQnnLpai.so"

_LPAI = re.compile(r"(?:lib)?qnnlpai", re.IGNORECASE)
_OTHERS = re.compile(r"(?:lib)?qnn(htp|cpu|gpu|dsp|hta|saver|ir)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RandomInputs:
    """Random inputs for a number of inferences per graph; the seed determines the values."""

    count: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """Sample inputs for inferences (see `qnnmem.calibration`): a path or `SKIP` for each graph."""

    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of qnn-net-run that work without a device, and qnnmem's own options."""

    retrieve_context: Path
    input_lists: tuple[str, ...] = ()  # empty if inputs are generated
    backend: str = LIBRARY
    made_inputs: RandomInputs | SampleInputs | None = None
    force: bool = False  # generated inputs may replace files
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
    one_scratch: bool = False  # for all graphs, which run one after the other
    producer: str = "qnnmem"  # program and version named in the files


def check_backend(library: str) -> None:
    """Raise UsageError for a backend library other than LPAI's; the file need not exist."""
    name = re.split(r"[/\\]", library)[-1]
    if _LPAI.match(name):
        return
    other = _OTHERS.match(name)
    what = f"is the backend for {other[1].upper()}" if other else "is not an LPAI backend library"
    raise UsageError(f"--backend {quote(name)} {what}; pass {LIBRARY} or libQnnHtp.so")


def platform(options: RunOptions, config: RunConfig | None, warn: Line) -> Profile:
    """Return the platform of a run: the processor that calls QNN, hardware, and alignment."""
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
    stated = None if config is None or config.lpai.file is None else Mode(config.lpai.target_env)
    if options.direct:
        if stated not in (None, Mode.ADSP):
            why = f"the config's target_env {stated.value} is ignored"
            warn(f"{why}: --direct_mode runs the model on the aDSP")
        return Mode.ADSP
    if stated is not Mode.ADSP:
        return stated or Mode.X86
    warn(
        "the config's target_env is adsp, but without --direct_mode the process that calls "
        "QNN is not on the DSP; this run simulates the traditional path over FastRPC (arm)"
    )
    return Mode.ARM


def context_configs(config: RunConfig | None, mem_type: MemType) -> list[Config]:
    """Return configs for `QnnContext_createFromBinary`."""
    configs: list[Config] = []
    if config is not None:
        settings = config.context
        check = BinaryCompatibility[settings.cache_compatibility_mode.upper()]
        configs = [
            Config(ContextOption.PERSISTENT_BINARY, settings.is_persistent_binary),
            Config(ContextOption.PRIORITY, _priority(settings.context_priority)),
            Config(ContextOption.BINARY_COMPATIBILITY, check),
            Config(ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, settings.async_execute_queue_depth),
            Config(ContextOption.MEMORY_LIMIT_HINT, settings.memory_limit_hint),
        ]
        if settings.enable_graphs is not None:
            configs.append(Config(ContextOption.ENABLE_GRAPHS, settings.enable_graphs))
    if mem_type is MemType.TCM:
        configs.append(custom(ContextCustomOption.MODEL_BUFFER_MEM_TYPE, mem_type))
    return configs


def graph_configs(config: RunConfig | None, name: str) -> list[Config]:
    """Return configs for `QnnGraph_setConfig`: performance, cores and priority."""
    if config is None:
        return []
    configs = [
        Config(GraphConfigOption.PRIORITY, _priority(entry.graph_priority))
        for entry in config.graphs
        if entry.graph_name == name
    ]
    if config.lpai.file is None:
        return configs
    run = config.lpai.execute
    perf = PerfCfg(run.fps, run.ftrt_ratio, ClientPerfType[run.client_type.upper()])
    cores = CoreAffinityCfg(CoreAffinity[run.affinity.upper()], run.core_selection)
    return [
        *configs,
        custom(GraphOption.SET_CFG_PERF_CFG, perf),
        custom(GraphOption.SET_CFG_CORE_AFFINITY, cores),
    ]


def _priority(word: str) -> Priority:
    return Priority[word.upper()]
