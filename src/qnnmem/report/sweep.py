"""Render the result of `qnnmem sweep`: the verdict, then one line for each compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qnnmem.errors import Words
from qnnmem.flags import with_flags
from qnnmem.htp.sweep import Largest, SweepRow, show
from qnnmem.report.table import Column, text_table
from qnnmem.text import shorten

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
    ways = [f"{shorten(one.name)}: {_way(one)}" for one in largest if one.value is not None]
    lines = [first, shorten(file, 200), *dict.fromkeys(ways), "", *_table(rows, verbose)]
    reasons = [*_reasons(rows, say)]
    lines += ["", *reasons] if reasons else []
    return "\n".join(lines) + "\n"


def verdict(rows: Sequence[SweepRow], largest: Sequence[Largest], soc: str) -> str:
    """Return the verdict in one line, or in one line for each searched setting."""
    if largest:
        return "\n".join(_largest(one, soc) for one in largest)
    count = sum(row.result.state == "fits" for row in rows)
    kept = sum(row.from_cache for row in rows)
    failed = sum(row.result.state == "failed" for row in rows)
    words = f"{count} of {len(rows)} settings fit {soc}"
    words += f", {failed} failed" if failed else ""
    return words + (f"; {kept} from the cache" if kept else "")


def _largest(one: Largest, soc: str) -> str:
    rest = f" with {shorten(show(one.point))}" if one.point else ""
    name = shorten(one.name)
    if one.value is None:
        no = f"no {name} {_MEETS[one.until]} {soc}{rest}"
        return f"{no}: {shorten(with_flags(one.next_reason), _LONGEST)}"
    words = f"largest {name} that {_MEETS[one.until]} {soc}{rest} is {one.value}"
    if one.next_value is None:
        return f"{words}, the largest value requested"
    if one.is_open:
        known = f"largest {name} so far that {_MEETS[one.until]} {soc}{rest} is {one.value}"
        why = shorten(with_flags(one.next_reason), _LONGEST)
        return f"{known}; {one.next_value} is undecided: {why}"
    return f"{words}; {one.next_value} does not: {shorten(with_flags(one.next_reason), _LONGEST)}"


def _way(one: Largest) -> str:
    """Describe how the search found the largest value."""
    if one.predicted is None:
        return "found by doubling and halving, because the sizes for small values are unknown"
    if one.is_open:
        return f"{one.predicted} was predicted from small values and is not confirmed"
    if one.predicted == one.value:
        return f"{one.predicted} was predicted from small values and confirmed by compiling"
    how = "by halving the gap" if one.halved else "by compiling near it"
    return f"{one.predicted} was predicted from small values; {one.value} was found {how}"


def _table(rows: Sequence[SweepRow], verbose: bool) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.point))
    varied = (Column(shorten(name, 20), "<", max(10, min(len(name), 20) + 2), 0) for name in names)
    columns = (*varied, *_COLUMNS, *(_DETAILS if verbose else ()))
    cells = ((*(str(row.point[name]) for name in names), *_cells(row, verbose)) for row in rows)
    return text_table(columns, cells)


def _cells(row: SweepRow, verbose: bool) -> Iterator[str]:
    result = row.result
    yield _STATE[result.state]
    yield from map(_number, (result.compile_need, result.pd_need, result.spill_fill))
    if verbose:
        yield from map(_number, (result.ddr_read, result.ddr_written))
        yield "kept" if row.from_cache else f"{result.seconds:.1f}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _reasons(rows: Sequence[SweepRow], say: Callable[[SweepRow], Words]) -> Iterator[str]:
    """Yield each reason once, with the settings that share it."""
    found: dict[str, list[SweepRow]] = {}
    for row in rows:
        if row.result.state != "fits":
            found.setdefault(with_flags(row.result.reason), []).append(row)
    for same in list(found.values())[:_REASONS]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        reason = shorten(with_flags(say(same[0])), _LONGEST)
        yield f"{shorten(show(same[0].point), 100)}{more}: {reason}"
    if len(found) > _REASONS:
        yield f"… and {len(found) - _REASONS:,} more reasons; --json lists all"
