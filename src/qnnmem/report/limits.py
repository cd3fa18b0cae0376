"""What is needed against each limit of a SoC: the same lines for every verb that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qnnmem.htp.fit import TITLES
from qnnmem.results.fit import FitCheck
from qnnmem.text import shorten

_WIDE = 400
HEADING = f"{'limit':<16}{'needed':>16}{'limit':>16}{'to spare':>17}  limit origin"


def limit_lines(
    checks: Iterable[FitCheck], *, verbose: bool, decides: bool = True
) -> Iterator[str]:
    """A table of limits; what does not decide has nothing to spare either."""
    yield HEADING
    for check in checks:
        yield from _check_lines(check, verbose, decides)


def _check_lines(check: FitCheck, verbose: bool, decides: bool) -> Iterator[str]:
    title = TITLES[check.pool]
    if check.need is None or check.need.is_exact:
        yield _line(title, check, None if check.need is None else check.need.high.value, decides)
        return
    bounds = {"at least": check.need.low, "at most": check.need.high}
    if not verbose and check.fits is not None:
        del bounds["at least" if check.fits else "at most"]  # the other one decides
    for words, bound in bounds.items():
        short = {"process domain": "PD"}.get(title, title)
        yield _line(f"{short} {words}", check, bound.value, decides)


def _line(title: str, check: FitCheck, need: int | None, decides: bool) -> str:
    limit = None if check.limit is None else check.limit.value
    origin = "" if check.limit is None else check.limit.origin.value
    spare = known(None if need is None or limit is None else limit - need) if decides else "-"
    return f"{title:<16}{known(need):>16}{known(limit):>16}{spare:>17}  {origin}".rstrip()


def known(value: int | None) -> str:
    """A number, or that there is none."""
    return "not known" if value is None else f"{value:,}"


def source_lines(checks: Iterable[FitCheck]) -> Iterator[str]:
    """Where needs and limits come from."""
    for check in checks:
        title = TITLES[check.pool]
        need = None if check.need is None else check.need.high
        for what, part in (("needed", need), ("limit", check.limit)):
            if part is not None:
                yield f"{title:<16}  {what} {part.origin.value}: {shorten(part.source, _WIDE)}"
