"""Render the result of `qnnmem sweep`: the verdict, then one line for each compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qnnmem.errors import Words
from qnnmem.flags import with_flags
from qnnmem.htp.sweep import Largest, SweepRow, show
from qnnmem.report.table import Column, text_table, thousands
from qnnmem.text import counted, shorten

_REASONS = 5
_MEETS = {"fits": "fits", "compiles": "compiles for"}
_LONGEST = 3000  # characters of a reason, which may end with a command
_COLUMNS = (
    Column("answer", "<", 14, gap=0),
    *(Column(title, width=16, gap=0) for title in ("compile need", "PD need")),
    Column("spill/fill", width=14, gap=0),
)
_DETAILS = (
    *(Column(title, width=14, gap=0) for title in ("DDR read", "DDR written")),
    Column("seconds", width=9, gap=0),
)
_STATE = {"fits": "fits", "over": "does not fit", "refused": "refused", "failed": "failed"}


def render_text(
    rows: Sequence[SweepRow],
    largest: Sequence[Largest],
    file: str,
    soc: str,
    *,
    verbose: bool = False,
    say: Callable[[SweepRow], Words] = lambda row: row.result.reason,
    interrupted: bool = False,
) -> str:
    """Render the verdict, the table and the reasons; names are made printable.

    `verbose` adds the bytes that an inference reads and writes, and the compile time. `say` returns
    the reason to show for a row; rows with the same reason are shown together.
    """
    first = verdict(rows, largest, soc)
    first = f"interrupted; so far, {first}" if interrupted else first
    ways = [
        f"{shorten(answer.name)}: {_way(answer)}" for answer in largest if answer.value is not None
    ]
    lines = [first, shorten(file, 200), *dict.fromkeys(ways), "", *_table(rows, verbose)]
    reasons = [*_reasons(rows, say)]
    lines += ["", *reasons] if reasons else []
    return "\n".join(lines) + "\n"


def verdict(rows: Sequence[SweepRow], largest: Sequence[Largest], soc: str) -> str:
    """Return the verdict in one line, or in one line for each searched setting."""
    if largest:
        return "\n".join(_largest(answer, soc) for answer in largest)
    count = sum(row.result.state == "fits" for row in rows)
    kept = sum(row.from_cache for row in rows)
    failed = sum(row.result.state == "failed" for row in rows)
    words = f"{count} of {len(rows)} settings fit {soc}"
    words += f", {failed} failed" if failed else ""
    return words + (f"; {kept} from the cache" if kept else "")


def _largest(largest: Largest, soc: str) -> str:
    rest = f" with {shorten(show(largest.point))}" if largest.point else ""
    name, meets = shorten(largest.name), f"{_MEETS[largest.until]} {soc}{rest}"
    why = shorten(with_flags(largest.next_reason), _LONGEST)
    if largest.value is None:
        return f"no {name} {meets}: {why}"
    if largest.next_value is None:
        return f"largest {name} that {meets} is {largest.value}, the largest value requested"
    if largest.is_open:
        known = f"largest {name} so far that {meets} is {largest.value}"
        return f"{known}; {largest.next_value} is undecided: {why}"
    return f"largest {name} that {meets} is {largest.value}; {largest.next_value} does not: {why}"


def _way(largest: Largest) -> str:
    """Describe how the search found the largest value."""
    if largest.predicted is None:
        return (
            "found by doubling, then by bisection, because the sizes for small values are unknown"
        )
    if largest.is_open:
        return f"{largest.predicted} was predicted from small values and is not confirmed"
    if largest.predicted == largest.value:
        return f"{largest.predicted} was predicted from small values and confirmed by compiling"
    how = "by bisection" if largest.halved else "by compiling nearby values"
    return f"{largest.predicted} was predicted from small values; {largest.value} was found {how}"


def _table(rows: Sequence[SweepRow], verbose: bool) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.point))
    varied = (Column(shorten(name, 20), "<", max(10, min(len(name), 20) + 2), 0) for name in names)
    columns = (*varied, *_COLUMNS, *(_DETAILS if verbose else ()))
    cells = ((*(str(row.point[name]) for name in names), *_cells(row, verbose)) for row in rows)
    return text_table(columns, cells)


def _cells(row: SweepRow, verbose: bool) -> Iterator[str]:
    result = row.result
    yield _STATE[result.state]
    yield from map(thousands, (result.compile_need, result.pd_need, result.spill_fill))
    if verbose:
        yield from map(thousands, (result.ddr_read, result.ddr_written))
        yield "kept" if row.from_cache else f"{result.seconds:.1f}"


def _reasons(rows: Sequence[SweepRow], say: Callable[[SweepRow], Words]) -> Iterator[str]:
    """Yield each reason once, with the first setting and the number of settings that share it."""
    by_reason: dict[str, list[SweepRow]] = {}
    for row in rows:
        if row.result.state != "fits":
            by_reason.setdefault(with_flags(row.result.reason), []).append(row)
    for same in list(by_reason.values())[:_REASONS]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        reason = shorten(with_flags(say(same[0])), _LONGEST)
        yield f"{shorten(show(same[0].point), 100)}{more}: {reason}"
    if len(by_reason) > _REASONS:
        yield f"… and {counted(len(by_reason) - _REASONS, 'more reason')}; --json lists all"
