"""`qnnmem fix --backend htp`: options of HTP, and the real library as judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from qnnmem.errors import MissingSoc, UsageError
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.cache import ResultCache
    from qnnmem.fix.htp import HtpFixResult
    from qnnmem.fix.recipe import Recipe
    from qnnmem.fix.remedy import FixCase
    from qnnmem.fix.run import Watcher
    from qnnmem.htp.compile import CompileOptions, Progress
    from qnnmem.targets.socs import Soc

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--soc",
        metavar="SOC",
        help="htp: SoC by name or id, e.g. SM8650, or several: SM8650,SM8750.",
    ),
    click.option(
        "--with",
        "beside",
        multiple=True,
        type=click.Path(),
        metavar="BINARY",
        help="htp: a context binary that stays loaded in the same process.",
    ),
    click.option(
        "--precision",
        type=click.Choice(["fp16", "int8", "w8a16"]),
        help="htp: what floats become; int8 and w8a16 quantize on the way.  [default: fp16]",
    ),
    click.option(
        "--vtcm-mb",
        type=click.IntRange(1, 64),
        metavar="N",
        help="htp: VTCM of the graph in MiB.  [default: all that the SoC has]",
    ),
    click.option(
        "--opt-level",
        type=click.IntRange(1, 3),
        metavar="N",
        help="htp: optimisation level 1 to 3.  [default: the library's own]",
    ),
)
# Names of the options above that only mean something here, and of those that do not.
HTP_ONLY = ("soc", "beside", "precision", "vtcm_mb", "opt_level")
_LPAI_ONLY = ("states", "io", "align", "bits")


def htp_options(command: F) -> F:
    """The options of `qnnmem fix` that belong to HTP."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class HtpWish(NamedTuple):
    """For what a model is compiled, and what stays loaded beside it."""

    soc: str | None = None
    beside: tuple[str, ...] = ()
    precision: str | None = None
    vtcm_mb: int | None = None
    opt_level: int | None = None

    @property
    def socs(self) -> tuple[str, ...]:
        """Names of all that are meant; several are a row each."""
        return tuple(filter(None, (name.strip() for name in (self.soc or "").split(","))))

    @property
    def target(self) -> Soc:
        """The SoC that is meant."""
        from qnnmem.targets.socs import find_soc

        if self.soc is None:
            raise MissingSoc(what="--backend htp needs --soc, for limits depend on it")
        return find_soc(self.soc)

    def compile_options(self, **shaping: Any) -> CompileOptions:
        """What a compile is asked for; `shaping` are free sizes and values."""
        from qnnmem.htp.compile import CompileOptions, HtpPrecision, check_options

        options = CompileOptions(
            precision=HtpPrecision(self.precision or "fp16"),
            vtcm_mb=self.vtcm_mb,
            opt_level=self.opt_level,
            **shaping,
        )
        check_options(self.target, options)
        return options


def htp_wish(backend: str, chosen: dict[str, Any]) -> HtpWish | None:
    """What the options say, taken from those chosen; None for LPAI."""
    context = click.get_current_context()
    foreign = HTP_ONLY if backend == "lpai" else _LPAI_ONLY
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in foreign and source is click.core.ParameterSource.COMMANDLINE:
            other = "htp" if backend == "lpai" else "lpai"
            raise UsageError(f"{parameter.opts[-1]} is for --backend {other}")
    wish = HtpWish(**{name: chosen.pop(name) for name in HTP_ONLY})
    if backend == "lpai":
        return None
    for soc in wish.socs or (None,):  # one that is not known is said before anything is read
        wish._replace(soc=soc).target  # noqa: B018
    return wish


class HtpWork(NamedTuple):
    """Where the work is done, what is known of it, and who watches."""

    folder: Path
    memory: ResultCache | None
    watch: Watcher
    progress: Progress
    first: tuple[str, ...] = ()  # remedies to begin with


def fixed_for_htp(
    case: FixCase,
    wish: HtpWish,
    budgets: Sequence[tuple[str, Bytes]],
    work: HtpWork,
    *,
    recipe: tuple[Recipe, Path] | None = None,
) -> HtpFixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.cli.compiler import need_compiler
    from qnnmem.fix.from_log import ordered
    from qnnmem.fix.htp import REMEDIES, FixTarget, fix_for_htp, operator_remedy, repeat_for_htp
    from qnnmem.fix.lossy.remedies import LOSSY_REMEDIES
    from qnnmem.fix.recipe import apply_recipe
    from qnnmem.htp.fit import check_pools
    from qnnmem.provenance import Origin, Sourced

    limits = {name.lower(): Sourced(size, Origin.GIVEN, "--budget") for name, size in budgets}
    if len(limits) < len(budgets):
        raise UsageError("a pool has two budgets; give one")
    check_pools(limits)
    need_compiler(case.path, (wish.target,), wish.compile_options())
    target = FixTarget(
        wish.target,
        work.folder,
        limits,
        tuple(map(Path, wish.beside)),
        work.memory,
        progress=work.progress,
    )
    if recipe is None:
        remedies = ordered(REMEDIES, work.first)
        return fix_for_htp(case, target, watch=work.watch, remedies=remedies)
    said, path = recipe
    known = (operator_remedy(wish.target, case), *REMEDIES, *LOSSY_REMEDIES)
    return repeat_for_htp(case, target, lambda own: apply_recipe(own, said, path, known))
