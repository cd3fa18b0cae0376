"""Options shared by several groups; `SOC.but(...)` makes a variant for one group."""

from typing import Annotated

from qnnmem.options import parsers
from qnnmem.options.option import Opt, Options
from qnnmem.units import parse_size

MAX_SECONDS = 86_400.0
MAX_SEED = 1 << 31
MAX_VTCM_MB = 64
PRECISIONS = ("fp16", "int8", "w8a16")
HW_VERSIONS = ("v4", "v5", "v5_1", "v6", "v7")

# Limits, seed, workers and cache.
TIME_LIMIT = Opt(
    "--time-limit",
    "Time limit in seconds for a model or binary, from reading to loading or running it.",
    metavar="S",
    parse=parsers.seconds,
    ge=0.0,
    le=MAX_SECONDS,
    label="Seconds",
    is_folded=True,
)
MEMORY_LIMIT = Opt(
    "--memory-limit",
    "Address space limit of the compiler.",
    metavar="SIZE",
    parse=parse_size,
    default="3/4 of the machine's memory",
    is_local=True,
    is_advanced=True,
)
SEED = Opt(
    "--seed",
    "Seed of the search; the same seed gives the same plan.",
    ge=0,
    le=MAX_SEED,
    label="Seed",
    is_folded=True,
    is_advanced=True,
)
JOBS = Opt(
    "--jobs", "Number of models to process in parallel.", metavar="N", ge=1, le=64, is_local=True
)
CLUSTER = Opt(
    "--cluster",
    "Compile on the workers of a Dask cluster; each worker needs the library.",
    metavar="ADDRESS",
    is_local=True,
)
CACHE = Opt(
    "--cache",
    "Folder for cached results.",
    metavar="DIR",
    default="qnnmem in the user's cache folder",
    is_file=True,
)

# Layout of a model in memory.
INPLACE = Opt(
    "--inplace",
    "Let element-wise ops overwrite an input that no later op uses.",
    label="Element-wise ops in place",
)
REORDER = Opt(
    "--reorder",
    "Search for an operator order that needs less memory.",
    label="Search for a better order",
)
IO = Opt(
    "--io",
    "Place inputs and outputs inside scratch or in the application's buffers.",
    choices=("inside", "outside"),
    label="Inputs and outputs",
    labels=("inside scratch", "in the application's buffers"),
)
ALIGN = Opt(
    "--align",
    "Alignment of buffer starts and sizes in bytes.",
    ge=1,
    le=1 << 20,
    in_bytes=True,
    default="64, or as stated in a CSV",
    label="Alignment",
    for_buffers=True,
)
BITS = Opt(
    "--bits",
    "Bit width that floating-point elements get when the model is quantized.",
    choices=(8, 16, 32),
    default="as in the model",
    label="Bits",
)
BUDGETS = Opt(
    "--budget",
    "Limit of scratch, persistent, io, constants or tcm, e.g. scratch=256K.",
    metavar="POOL=SIZE",
    parse=parsers.budgets,
    parses_many=True,
    item=parsers.size_item,
    show=parsers.show_pair,
    key="budget",
    label="Budgets",
    example="scratch=256K",
    for_buffers=True,
)

# Compile options for HTP.
SOC = Opt(
    "--soc",
    "SoC by name, id or marketing name, as listed by `qnnmem socs`.",
    metavar="SOC",
    label="SoC",
    is_soc=True,
)
ALL_SOCS = Opt("--all-socs", "Add a table of every SoC with an HTP.", is_local=True)
PRECISION = Opt(
    "--precision",
    "Data type that float tensors are converted to; int8 and w8a16 quantize.",
    choices=PRECISIONS,
    label="Precision",
)
VTCM_MB = Opt(
    "--vtcm-mb",
    "VTCM for each graph, in MiB.",
    metavar="N",
    ge=1,
    le=MAX_VTCM_MB,
    default="all of the SoC's VTCM",
    label="VTCM in MiB",
    is_folded=True,
)
OPT_LEVEL = Opt(
    "--opt-level",
    "Optimisation level 1 to 3.",
    metavar="N",
    ge=1,
    le=3,
    default="the library's default",
    label="Optimisation level",
    is_folded=True,
)
QUANTIZE = Opt("--quantize", "Quantize a float model first.", choices=("int8", "int16"))
CONCURRENT = Opt(
    "--concurrent",
    "With --together: names of models that can execute at the same time; other models never do.",
    metavar="A,B",
    parse=parsers.names,
    show=",".join,
    is_local=True,
)
TRUST = Opt(
    "--trust",
    "Accept a model library (.so) made by QNN's tools. Its code runs in a child process with "
    "limits, which is not a sandbox.",
    is_local=True,  # neither a project's file nor the network may run native code
    is_advanced=True,
)


KB = Opt(
    "--kb",
    "File or folder with your own knowledge base entries; may be repeated.",
    metavar="PATH",
    is_file=True,
)

# Output of a result.
OUTPUT = Opt(
    "--output",
    "Write to this file instead of the terminal.",
    short="-o",
    is_file=True,
    writes="text",
)
FORCE = Opt("--force", "Replace the output file if it exists.", is_local=True)


class FormatOptions(Options, frozen=True, kw_only=True):
    """Format of a result; each verb has its own formats and schema."""

    form: Annotated[str | None, Opt("--format", "Format of the result.", is_local=True)] = None
    as_json: Annotated[
        bool, Opt("--json", "Short for --format json; its schema is {schema}.", is_local=True)
    ] = False


class ResultOptions(FormatOptions, frozen=True, kw_only=True):
    """Format and output file of a result."""

    output: Annotated[str | None, OUTPUT] = None
    force: Annotated[bool, FORCE] = False


class DetailedOptions(ResultOptions, frozen=True, kw_only=True):
    """Format, output file and level of detail of a result."""

    verbose: Annotated[
        bool,
        Opt("--verbose", "Show more detail.", short="-v", is_local=True, leads=True),
    ] = False
