"""Options of `fix`: the goal, the allowed changes, and the search."""

from __future__ import annotations

from typing import Annotated, ClassVar

from qnnmem.options import parsers, shared
from qnnmem.options.option import Opt
from qnnmem.options.plan import BackendOptions
from qnnmem.units import Bytes

LOSSY = ("rounding", "operators", "batch", "int16", "w8a16", "int8", "resolution")


class FixOptions(BackendOptions, frozen=True, kw_only=True):
    """Options of `fix`: the goal, the allowed changes, and the search."""

    lpai_only: ClassVar = ("states", "io", "align", "bits")
    rare: ClassVar = ("precision",)

    logs: Annotated[
        tuple[str, ...],
        Opt(
            "--log",
            "Start from the log of a failure, which can supply the backend, the budget and MODEL.",
            leads=True,
            metavar="LOG",
            is_file=True,
        ),
    ] = ()
    budgets: Annotated[
        tuple[tuple[str, Bytes], ...],
        shared.BUDGETS.but(
            "Limit of a pool, e.g. scratch=256K, or pd=256M for htp; without a limit, scratch is "
            "minimised.",
            leads=True,
            example="scratch=256K; for HTP pd=256M or vtcm=2M",
        ),
    ] = ()
    soc: Annotated[
        str | None,
        shared.SOC.but(
            "SoC by name or id, e.g. SM8650, or several: SM8650,SM8750.",
            leads=True,
            backend="htp",
        ),
    ] = None
    io: Annotated[str, shared.IO] = "inside"
    align: Annotated[int | None, shared.ALIGN] = None
    bits: Annotated[int | None, shared.BITS] = None
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
    keep: Annotated[
        tuple[str, ...],
        Opt(
            "--keep",
            "Keep the order of ops, the HTP settings, or a single file (no parts).",
            choices=("order", "settings", "one-file"),
            label="Keep unchanged",
            is_folded=True,
            is_advanced=True,
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Opt(
            "--allow",
            "Changes that may alter results: rounding, operators, batch, fp16 (htp), int16 "
            "(lpai), w8a16, int8, resolution, or all.",
            metavar="WORD",
            parse=parsers.word_list,
            parses_many=True,
            label="Allowed changes that alter results",
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
    seed: Annotated[int, shared.SEED.but("Seed for the random data and for planning.")] = 0
    time_limit: Annotated[
        float,
        shared.TIME_LIMIT.but("Seconds to search; the last step may take up to 10 s longer."),
    ] = 120.0
    jobs: Annotated[int, shared.JOBS.but(is_advanced=True)] = 1
    cluster: Annotated[
        str | None,
        shared.CLUSTER.but(
            "Use a Dask cluster whose workers can read this machine's files.", is_advanced=True
        ),
    ] = None
    cache: Annotated[
        str | None, shared.CACHE.but("Folder for cached results.", is_advanced=True)
    ] = None
    recipe: Annotated[
        str | None,
        Opt(
            "--apply",
            "Repeat the recipe of an earlier run, without a search.",
            metavar="RECIPE",
            is_file=True,
            is_advanced=True,
        ),
    ] = None
    validate: Annotated[
        bool,
        Opt(
            "--validate",
            "Also run the changed model on the CPU and in planned memory; show the error of "
            "every output.",
            is_local=True,
            is_advanced=True,
        ),
    ] = False
    output: Annotated[
        str,
        shared.OUTPUT.but(
            "Folder for the changed model or its parts, recipe and report; with several "
            "models, one folder each.",
            metavar="DIR",
            required=True,
            writes="",
        ),
    ] = ""
    force: Annotated[bool, shared.FORCE.but("Replace files of an earlier run.")] = False

    @property
    def socs(self) -> tuple[str, ...]:
        """The names of all requested SoCs; for several SoCs, the result of `fix` is a table."""
        return tuple(filter(None, (name.strip() for name in (self.soc or "").split(","))))
