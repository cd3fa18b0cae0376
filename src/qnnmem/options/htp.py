"""Options of the verbs that ask the HTP library: fit, footprint, qmem and sweep."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import parsers
from qnnmem.options.option import Opt
from qnnmem.options.plan import MAX_SECONDS, ShapeOptions
from qnnmem.units import Bytes, parse_size

PRECISIONS = ("fp16", "int8", "w8a16")
MAX_VTCM_MB = 64


class CompilerOptions(ShapeOptions, frozen=True, kw_only=True):
    """How long the compiler may take."""

    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Seconds that one answer may take: reading, compiling and loading a model, running it.",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
            label="Seconds",
            is_folded=True,
        ),
    ] = 600.0


class HtpOptions(CompilerOptions, frozen=True, kw_only=True):
    """How one model is compiled."""

    precision: Annotated[
        str,
        Opt(
            "--precision",
            "Model: what floats become; int8 and w8a16 quantize on the way.",
            choices=PRECISIONS,
            label="Precision",
        ),
    ] = "fp16"


class HtpModelOptions(HtpOptions, frozen=True, kw_only=True):
    """How one model is compiled, and how much VTCM its graph gets."""

    vtcm_mb: Annotated[
        int | None,
        Opt(
            "--vtcm-mb",
            "Model: VTCM of the graph in MiB.",
            metavar="N",
            ge=1,
            le=MAX_VTCM_MB,
            default="all that the SoC has",
            label="VTCM in MiB",
            is_folded=True,
        ),
    ] = None


class FitOptions(HtpModelOptions, frozen=True, kw_only=True):
    """For which SoCs a file is judged, against which limits, and where it is compiled."""

    soc: Annotated[
        tuple[str, ...],
        Opt(
            "--soc",
            "Name, id or marketing name; may be repeated.",
            leads=True,
            metavar="SOC",
            default="the one it was made for",
            key="socs",
            label="SoC",
            is_soc=True,
        ),
    ] = ()
    all_socs: Annotated[
        bool, Opt("--all-socs", "Ask for every SoC with an HTP.", leads=True, is_local=True)
    ] = False
    budgets: Annotated[
        tuple[tuple[str, Bytes], ...],
        Opt(
            "--budget",
            "Set a limit of compile, pd, vtcm, ram, weights, io, spill-fill or host-ram.",
            leads=True,
            metavar="POOL=SIZE",
            parse=parsers.budgets,
            parses_many=True,
            item=parsers.size_item,
            show=parsers.show_pair,
            key="budget",
            label="Budgets",
            example="pd=256M or vtcm=2M",
        ),
    ] = ()
    load: Annotated[
        bool,
        Opt(
            "--load",
            "Binary: let the real library say its exact estimate.",
            leads=True,
            is_local=True,
        ),
    ] = False
    tries: Annotated[
        int,
        Opt(
            "--try",
            "Model: nearby settings that are really compiled when it does not fit.",
            metavar="N",
            ge=0,
            le=20,
            is_local=True,
        ),
    ] = 3
    cluster: Annotated[
        str | None,
        Opt(
            "--cluster",
            "Model: compile on the workers of a Dask cluster, each of which has the library.",
            metavar="ADDRESS",
            is_local=True,
        ),
    ] = None


class FootprintOptions(HtpModelOptions, frozen=True, kw_only=True):
    """For which SoC a file is billed."""

    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "Name, id or marketing name as in `qnnmem socs`.",
            leads=True,
            metavar="SOC",
            default="the SoC it was made for",
            label="SoC",
            is_soc=True,
        ),
    ] = None
    load: Annotated[
        bool,
        Opt(
            "--load",
            "Let the real library load the binary, for the exact process-domain estimate.",
            leads=True,
            is_local=True,
        ),
    ] = False
    cache: Annotated[
        str | None,
        Opt(
            "--cache",
            "Folder of finished results.",
            metavar="DIR",
            default="qnnmem in the user's cache folder",
            is_file=True,
        ),
    ] = None


class QmemOptions(HtpOptions, frozen=True, kw_only=True):
    """For which SoC inputs and outputs are compared, and what is carried out."""

    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "Name, id or marketing name as in `qnnmem socs`.",
            leads=True,
            metavar="SOC",
            default="the SoC it was made for",
            label="SoC",
            is_soc=True,
        ),
    ] = None
    run: Annotated[
        bool,
        Opt(
            "--run",
            "Carry out the four rows with the real library and compare the results bit by bit.",
            leads=True,
            is_local=True,
        ),
    ] = False
    misuse: Annotated[
        bool,
        Opt(
            "--misuse",
            "Make every mistake with shared memory, and show who notices: the contract, the "
            "library.",
            leads=True,
            is_local=True,
        ),
    ] = False


class SweepOptions(CompilerOptions, frozen=True, kw_only=True):
    """What is varied, what is searched for, and where the compiles happen."""

    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "Name, id or marketing name.  [required]",
            leads=True,
            metavar="SOC",
            label="SoC",
            is_soc=True,
        ),
    ] = None
    vary: Annotated[
        tuple[str, ...],
        Opt(
            "--vary",
            "precision, vtcm_mb, opt_level or a free dimension: batch=1,2,4 or batch=1..64.",
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
            "Find the largest value of a varied name: predicted from small ones, then compiled.",
            leads=True,
            metavar="NAME",
            is_local=True,
        ),
    ] = None
    until: Annotated[
        str | None,
        Opt(
            "--until",
            "With --max: the largest that fits all limits, or that compiles.",
            leads=True,
            choices=("fits", "compiles"),
            default="fits",
            is_local=True,
        ),
    ] = None
    jobs: Annotated[
        int,
        Opt(
            "--jobs",
            "Compiles at the same time, on each worker where there are several.",
            metavar="N",
            ge=1,
            le=64,
            is_local=True,
        ),
    ] = 1
    cluster: Annotated[
        str | None,
        Opt(
            "--cluster",
            "Compile on the workers of a Dask cluster, each of which has the library.",
            metavar="ADDRESS",
            is_local=True,
        ),
    ] = None
    cache: Annotated[
        str | None,
        Opt(
            "--cache",
            "Folder of finished results.",
            metavar="DIR",
            default="qnnmem in the user's cache folder",
            is_file=True,
        ),
    ] = None
    memory_limit: Annotated[
        Bytes | None,
        Opt(
            "--memory-limit",
            "Address space of each compiler.",
            metavar="SIZE",
            parse=parse_size,
            default="3/4 of the machine over the jobs",
            is_local=True,
        ),
    ] = None
