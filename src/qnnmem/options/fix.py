"""Options of `fix`: what a model is to fit, what may change, and how the search runs."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import parsers
from qnnmem.options.htp import MAX_VTCM_MB, PRECISIONS
from qnnmem.options.option import Opt
from qnnmem.options.plan import MAX_SECONDS, MAX_SEED, LayoutOptions
from qnnmem.units import Bytes

# Inherited options that mean nothing for HTP.
LPAI_ONLY = ("states", "io", "align", "bits")
LOSSY = ("rounding", "operators", "batch", "int16", "w8a16", "int8", "resolution")


class FixOptions(LayoutOptions, frozen=True, kw_only=True):
    """What a model is to fit, what may change, and how the search runs."""

    logs: Annotated[
        tuple[str, ...],
        Opt(
            "--log",
            "Start from what failed: backend, budget and, where it is named, MODEL come from the "
            "log.",
            leads=True,
            metavar="LOG",
            is_file=True,
        ),
    ] = ()
    backend: Annotated[
        str,
        Opt(
            "--backend",
            "Whose memory the model is to fit.",
            leads=True,
            choices=("lpai", "htp"),
            label="Backend",
            labels=("LPAI", "HTP, by the real library"),
        ),
    ] = "lpai"
    budgets: Annotated[
        tuple[tuple[str, Bytes], ...],
        Opt(
            "--budget",
            "Bytes that scratch, persistent, io, constants or tcm may take, e.g. scratch=256K; "
            "without one, scratch is made as small as it gets. For htp: compile, pd, vtcm, ram, "
            "weights, io, spill-fill or host-ram, beside the limits of the SoC.",
            leads=True,
            metavar="POOL=SIZE",
            parse=parsers.budgets,
            parses_many=True,
            item=parsers.size_item,
            show=parsers.show_pair,
            label="Budgets",
            example="scratch=256K; for HTP pd=256M or vtcm=2M",
        ),
    ] = ()
    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "SoC by name or id, e.g. SM8650, or several: SM8650,SM8750.",
            leads=True,
            metavar="SOC",
            backend="htp",
            label="SoC",
            is_soc=True,
        ),
    ] = None
    beside: Annotated[
        tuple[str, ...],
        Opt(
            "--with",
            "A context binary that stays loaded in the same process.",
            metavar="BINARY",
            backend="htp",
            is_file=True,
            is_advanced=True,
        ),
    ] = ()
    precision: Annotated[
        str | None,
        Opt(
            "--precision",
            "What floats become; int8 and w8a16 quantize on the way.",
            choices=PRECISIONS,
            default="fp16",
            backend="htp",
            label="Precision",
            is_advanced=True,
        ),
    ] = None
    vtcm_mb: Annotated[
        int | None,
        Opt(
            "--vtcm-mb",
            "VTCM of the graph in MiB.",
            metavar="N",
            ge=1,
            le=MAX_VTCM_MB,
            default="all that the SoC has",
            backend="htp",
            label="VTCM in MiB",
            is_folded=True,
            is_advanced=True,
        ),
    ] = None
    opt_level: Annotated[
        int | None,
        Opt(
            "--opt-level",
            "Optimisation level 1 to 3.",
            metavar="N",
            ge=1,
            le=3,
            default="the library's own",
            backend="htp",
            label="Optimisation level",
            is_folded=True,
            is_advanced=True,
        ),
    ] = None
    keep: Annotated[
        tuple[str, ...],
        Opt(
            "--keep",
            "What is not to change: the order of ops, how it is compiled for HTP, that it is one "
            "model.",
            choices=("order", "settings", "one-file"),
            label="Not to change",
            is_folded=True,
            is_advanced=True,
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Opt(
            "--allow",
            "What may change results: rounding, operators, batch, int16, w8a16, int8 (fp16 for "
            "htp), resolution, or all.",
            metavar="WORD",
            parse=parsers.word_list,
            parses_many=True,
            label="May change results",
            offered=LOSSY,
        ),
    ] = ()
    data: Annotated[
        str | None,
        Opt(
            "--data",
            "Sample inputs (.npy, .npz, .raw) to compare results on, and to quantize with.",
            metavar="DIR",
            default="random data",
            is_file=True,
        ),
    ] = None
    seed: Annotated[
        int,
        Opt(
            "--seed",
            "Of the random data, and of the plans.",
            ge=0,
            le=MAX_SEED,
            label="Seed",
            is_folded=True,
            is_advanced=True,
        ),
    ] = 0
    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Seconds to search; what is under way then ends within 10 s.",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
            label="Seconds",
            is_folded=True,
        ),
    ] = 120.0
    jobs: Annotated[
        int,
        Opt(
            "--jobs",
            "Models at the same time.",
            metavar="N",
            ge=1,
            le=64,
            is_local=True,
            is_advanced=True,
        ),
    ] = 1
    cluster: Annotated[
        str | None,
        Opt(
            "--cluster",
            "On a Dask cluster that sees the same files.",
            metavar="ADDRESS",
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    cache: Annotated[
        str | None,
        Opt(
            "--cache",
            "Folder of what was found before.",
            metavar="DIR",
            default="qnnmem in the user's cache folder",
            is_file=True,
            is_advanced=True,
        ),
    ] = None
    recipe: Annotated[
        str | None,
        Opt(
            "--apply",
            "Do again what a recipe of an earlier run says, without a search.",
            metavar="RECIPE",
            is_file=True,
            is_advanced=True,
        ),
    ] = None
    validate: Annotated[
        bool,
        Opt(
            "--validate",
            "Run the result on the CPU and in planned memory, and say how far every output is off.",
            is_local=True,
            is_advanced=True,
        ),
    ] = False
    output: Annotated[
        str,
        Opt(
            "--output",
            "Folder for the changed model or its parts, recipe and report; of several, one for "
            "each.",
            short="-o",
            metavar="DIR",
            required=True,
            is_file=True,
        ),
    ] = ""
    force: Annotated[bool, Opt("--force", "Replace files of an earlier run.", is_local=True)] = (
        False
    )

    @property
    def socs(self) -> tuple[str, ...]:
        """Names of all SoCs that are meant; several are a row each."""
        return tuple(filter(None, (name.strip() for name in (self.soc or "").split(","))))

    @property
    def is_htp(self) -> bool:
        """True if the real library is the judge."""
        return self.backend == "htp"
