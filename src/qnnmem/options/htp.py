"""Options of the HTP verbs: fit, footprint, qmem, sweep, place, llm, provoke."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import parsers, shared
from qnnmem.options.option import Opt, Options
from qnnmem.options.plan import ShapeOptions
from qnnmem.units import Bytes, parse_size

_WEEK_S = 86_400 * 7
_LOAD = Opt(
    "--load",
    "Load the binary with the real library to get the exact size in the process domain.",
    leads=True,
    is_local=True,
)
_COMPILED_SOC = shared.SOC.but(default="the SoC that the binary was compiled for", leads=True)


class CompilerOptions(ShapeOptions, frozen=True, kw_only=True):
    """Time limit of the compiler."""

    time_limit: Annotated[float, shared.TIME_LIMIT] = 600.0


class HtpOptions(CompilerOptions, frozen=True, kw_only=True):
    """Options for compiling a model."""

    precision: Annotated[str, shared.PRECISION.but(of_model=True)] = "fp16"


class HtpModelOptions(HtpOptions, frozen=True, kw_only=True):
    """Options for compiling a model, with its VTCM size."""

    vtcm_mb: Annotated[int | None, shared.VTCM_MB.but(of_model=True)] = None


class FitOptions(HtpModelOptions, frozen=True, kw_only=True):
    """SoCs and limits to check a file against, and where models are compiled."""

    soc: Annotated[
        tuple[str, ...],
        shared.SOC.but(
            "SoC by name, id or marketing name; may be repeated.",
            leads=True,
            default="the SoC that the binary was compiled for",
            key="socs",
        ),
    ] = ()
    all_socs: Annotated[bool, shared.ALL_SOCS.but("Check every SoC with an HTP.", leads=True)] = (
        False
    )
    budgets: Annotated[
        tuple[tuple[str, Bytes], ...],
        shared.BUDGETS.but(
            "Limit of compile, pd, vtcm, ram, weights, io, spill-fill or host-ram.",
            leads=True,
            example="pd=256M or vtcm=2M",
        ),
    ] = ()
    load: Annotated[
        bool,
        _LOAD.but(
            "For a binary: load it with the real library to get its exact size in the process "
            "domain."
        ),
    ] = False
    tries: Annotated[
        int,
        Opt(
            "--try",
            "For a model that does not fit: number of other settings to compile.",
            metavar="N",
            ge=0,
            le=20,
            is_local=True,
        ),
    ] = 3
    cluster: Annotated[str | None, shared.CLUSTER.but(of_model=True)] = None


class FootprintOptions(HtpModelOptions, frozen=True, kw_only=True):
    """SoC of a memory bill, and how the bill is computed."""

    soc: Annotated[str | None, _COMPILED_SOC] = None
    load: Annotated[bool, _LOAD] = False
    cache: Annotated[str | None, shared.CACHE] = None


class ValidateOptions(CompilerOptions, frozen=True, kw_only=True):
    """Reference outputs for a model's tensors, and the tolerance of the comparison."""

    against: Annotated[
        str,
        Opt(
            "--against",
            "cpu: ONNX Runtime's CPU provider. gpu: requires a GPU's saved outputs (--results).",
            choices=("cpu", "gpu"),
        ),
    ] = "cpu"
    soc: Annotated[
        str | None,
        shared.SOC.but("Compile and run the model for this SoC with the real library.", leads=True),
    ] = None
    results: Annotated[
        str | None,
        Opt(
            "--results",
            "Saved outputs instead of HTP's: .npy, .npz or .raw files, or a folder of samples.",
            metavar="PATH",
            leads=True,
            is_file=True,
        ),
    ] = None
    data: Annotated[
        str | None,
        Opt(
            "--data",
            "With --results: the inputs that produced the saved outputs, in the same order.",
            metavar="PATH",
            leads=True,
            is_file=True,
        ),
    ] = None
    tolerance: Annotated[
        float | None,
        Opt(
            "--tolerance",
            "Largest allowed difference, as a share of the tensor's largest value.",
            default="0.02 for HTP, because of FP16; 0.00001 for saved outputs",
            ge=0.0,
            le=1.0,
        ),
    ] = None


class QmemOptions(HtpOptions, frozen=True, kw_only=True):
    """SoC for the comparison of raw and memhandle IO, and the experiments to run."""

    soc: Annotated[str | None, _COMPILED_SOC] = None
    run: Annotated[
        bool,
        Opt(
            "--run",
            "Execute all four combinations in the real library and compare their results bit by "
            "bit.",
            leads=True,
            is_local=True,
        ),
    ] = False
    misuse: Annotated[
        bool,
        Opt(
            "--misuse",
            "Make typical mistakes with shared memory on purpose; show whether the emulation and "
            "the library notice them.",
            leads=True,
            is_local=True,
        ),
    ] = False


class SweepOptions(CompilerOptions, frozen=True, kw_only=True):
    """Settings to vary, a condition to search for, and the machines that compile the models."""

    time_limit: Annotated[
        float,
        shared.TIME_LIMIT.but(
            "Time limit in seconds for compiling and loading one combination of settings."
        ),
    ] = 600.0

    soc: Annotated[
        str | None, shared.SOC.but("SoC by name, id or marketing name.  [required]", leads=True)
    ] = None
    vary: Annotated[
        tuple[str, ...],
        Opt(
            "--vary",
            "Values of precision, vtcm_mb, opt_level or a free dimension: batch=1,2,4 or "
            "batch=1..64.",
            leads=True,
            metavar="NAME=A,B",
            required=True,
            label="What varies",
            example="vtcm_mb=2,4,8 or batch=1,2,4",
        ),
    ] = ()
    searched: Annotated[
        str | None,
        Opt(
            "--max",
            "Find the largest value of NAME: predict it from small values, then compile.",
            leads=True,
            metavar="NAME",
            is_local=True,
        ),
    ] = None
    until: Annotated[
        str | None,
        Opt(
            "--until",
            "With --max: search for the largest value that fits all limits, or that compiles.",
            leads=True,
            choices=("fits", "compiles"),
            default="fits",
            is_local=True,
        ),
    ] = None
    jobs: Annotated[int, shared.JOBS.but("Number of parallel compiles on each worker.")] = 1
    cluster: Annotated[str | None, shared.CLUSTER] = None
    cache: Annotated[str | None, shared.CACHE] = None
    memory_limit: Annotated[
        Bytes | None,
        shared.MEMORY_LIMIT.but(
            "Address space limit of each compiler.",
            default="3/4 of the machine's memory, divided by the number of jobs",
            is_advanced=False,
        ),
    ] = None


class PlaceOptions(Options, frozen=True, kw_only=True):
    """SoC, size of a process domain, and whether the real library verifies the placed contexts."""

    soc: Annotated[
        str | None,
        shared.SOC.but("SoC by name, id or marketing name.", default="each context's own SoC"),
    ] = None
    budget: Annotated[
        Bytes | None,
        Opt(
            "--budget",
            "Size of one process domain in bytes.",
            metavar="SIZE",
            parse=parse_size,
            default="as measured",
        ),
    ] = None
    verify: Annotated[
        bool,
        Opt(
            "--verify",
            "Load all contexts with the real library, and compare its sizes with the prediction.",
            is_local=True,
        ),
    ] = False
    concurrent: Annotated[
        tuple[tuple[str, ...], ...],
        shared.CONCURRENT.but(
            "For LPAI: names of graphs that can execute at the same time; graphs not named "
            "together never do."
        ),
    ] = ()


class LlmOptions(Options, frozen=True, kw_only=True):
    """SoC, bit widths, graphs and shards of a language model."""

    soc: Annotated[str | None, shared.SOC.but("SoC by name, id or marketing name.")] = None
    all_socs: Annotated[bool, shared.ALL_SOCS] = False
    context: Annotated[
        int,
        Opt("--context", "Length of the KV cache in tokens.", metavar="N", ge=2, le=1 << 20),
    ] = 4096
    ar: Annotated[
        tuple[int, ...],
        Opt(
            "--ar",
            "Number of tokens that each graph processes at a time.",
            metavar="N,N",
            parse=parsers.counts,
            parses_many=True,
            default="128,1",
            is_local=True,
        ),
    ] = ()
    recipe: Annotated[
        str,
        Opt(
            "--recipe",
            "Bit widths of the model's parts.",
            choices=("genie-w4a16", "executorch-16a4w", "w4a16", "w8a16", "fp16"),
        ),
    ] = "genie-w4a16"
    bits: Annotated[
        tuple[tuple[str, int], ...],
        Opt(
            "--bits",
            "Bit width of layers, embedding, head, kv or a matrix (q, k, v, o, gate, up, down), "
            "e.g. head=4. block=N: N weights share one scale.",
            metavar="PART=N",
            parse=parsers.part_bits,
            parses_many=True,
            show=parsers.show_pair,
            is_local=True,
        ),
    ] = ()
    shards: Annotated[
        tuple[int, ...],
        Opt(
            "--shards",
            "Number of shards (4), or number of layers in each (9,9,9,5), without an embedding "
            "shard.",
            metavar="N,N",
            parse=parsers.counts,
            parses_many=True,
            default="the fewest shards that fit",
            is_local=True,
        ),
    ] = ()
    vary: Annotated[
        tuple[str, ...],
        Opt(
            "--vary",
            "Also try values of context, ar, shards or kv: context=1024,4096. A..B means A, 2A, "
            "4A and so on up to B.",
            metavar="NAME=A,B",
            is_local=True,
        ),
    ] = ()
    beside: Annotated[
        str | None,
        Opt(
            "--beside",
            "Compare with exported files: a .pte, a Genie or GenAI folder, or a context binary.",
            metavar="PATH",
            is_file=True,
        ),
    ] = None
    compile: Annotated[
        bool,
        Opt(
            "--compile",
            "Compute sizes by compiling one layer and two layers with the real library, not by "
            "rule.",
            is_local=True,
        ),
    ] = False
    check: Annotated[
        bool,
        Opt(
            "--check",
            "Also compile four layers, and show the error of the prediction.",
            is_local=True,
        ),
    ] = False
    exact: Annotated[
        bool,
        Opt(
            "--exact",
            "Also compile all layers of the largest shard (slow).",
            is_local=True,
            is_advanced=True,
        ),
    ] = False
    jobs: Annotated[
        int,
        shared.JOBS.but("Number of parallel compiles on each worker."),
    ] = 2
    cluster: Annotated[str | None, shared.CLUSTER] = None
    time_limit: Annotated[
        float, shared.TIME_LIMIT.but("Time limit for each compile in seconds.", is_advanced=True)
    ] = 1800.0
    cache: Annotated[str | None, shared.CACHE.but(is_advanced=True)] = None


class SocsOptions(Options, frozen=True, kw_only=True):
    """Filter for the list of SoCs."""

    everything: Annotated[bool, Opt("--all", "Also list SoCs without an HTP.")] = False


class ProvokeOptions(Options, frozen=True, kw_only=True):
    """SoC to provoke a failure for, and the output folder."""

    soc: Annotated[
        str | None, shared.SOC.but("SoC as listed by `qnnmem socs`, e.g. SM8650.  [required]")
    ] = None
    output: Annotated[
        str,
        shared.OUTPUT.but(
            "Folder for the record, log and input of the failure; created if needed.",
            metavar="DIR",
            required=True,
            writes="file",
        ),
    ] = ""
    time_limit: Annotated[
        float, shared.TIME_LIMIT.but("Time limit of each attempt in seconds.")
    ] = 120.0
    force: Annotated[bool, shared.FORCE.but("Replace files of an earlier run.")] = False


class WorkerOptions(Options, frozen=True, kw_only=True):
    """Cache size and time limits of a worker."""

    cache: Annotated[str | None, shared.CACHE.but("Folder for received files.")] = None
    cache_size: Annotated[
        Bytes,
        Opt(
            "--cache-size",
            "Size of the cache; the least recently used files are deleted first.",
            metavar="SIZE",
            parse=parse_size,
            default="8 GiB",
            is_local=True,
        ),
    ] = Bytes(8 << 30)
    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Time limit of one request.",
            metavar="SECONDS",
            ge=1,
            le=_WEEK_S,
            is_local=True,
        ),
    ] = 86_400.0
    memory_limit: Annotated[
        Bytes | None,
        shared.MEMORY_LIMIT.but("Address space limit of one request.", is_advanced=False),
    ] = None
