"""Options of `check` and `diff`."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options.option import Opt, Options
from qnnmem.options.plan import PlanOptions


class CheckOptions(Options, frozen=True, kw_only=True):
    """Budget file, baseline file and additional outputs of a check."""

    config: Annotated[
        str | None,
        Opt(
            "--config",
            "File with the budgets.",
            metavar="FILE",
            default="qnnmem.toml or pyproject.toml, in this folder or above",
            is_file=True,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Opt(
            "--baseline",
            "Baseline file, which holds the accepted sizes.",
            metavar="FILE",
            default="from the config",
            is_file=True,
        ),
    ] = None
    update: Annotated[
        bool, Opt("--update-baseline", "Write the current numbers as the baseline.")
    ] = False
    history: Annotated[
        bool, Opt("--history", "Show how the accepted sizes changed in git history.")
    ] = False
    maps: Annotated[
        str | None,
        Opt(
            "--maps",
            "Write the memory map of every planned model to this folder, as SVG.",
            metavar="DIR",
            is_file=True,
        ),
    ] = None
    also: Annotated[
        tuple[str, ...],
        Opt(
            "--also",
            "Also write the result to this file, in the format of its suffix: .sarif, .xml "
            "(junit), .json, .html, .md or .txt; may be repeated.",
            metavar="FILE",
            is_file=True,
        ),
    ] = ()


class DiffOptions(PlanOptions, frozen=True, kw_only=True):
    """Options of the plans that are compared, and the growth that counts as worse."""

    tolerance: Annotated[
        str | None,
        Opt(
            "--tolerance",
            "Growth of a pool that does not count as worse, e.g. 4K or 1%.",
            metavar="SIZE|N%",
            default="nothing",
            is_local=True,
            leads=True,
        ),
    ] = None
    pools: Annotated[
        tuple[str, ...],
        Opt(
            "--pool",
            "Count only growth of this pool as worse; may be repeated.",
            metavar="NAME",
            default="every pool",
            is_local=True,
            leads=True,
        ),
    ] = ()
