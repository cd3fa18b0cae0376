"""The answer of `qnnmem fit` as text and as JSON, schema `qnnmem.fit/1`.

The text gives the verdict first, then limits, tensors and what to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qnnmem.htp.fit import TITLES, Check, Fit, Suggestion
from qnnmem.report.flags import flag, with_flags
from qnnmem.report.schema import write_json
from qnnmem.report.sourced import bytes_values
from qnnmem.text import shorten

SCHEMA = "qnnmem.fit/1"
_WIDE = 400
_VERDICT = {True: "fits", False: "does not fit", None: "cannot tell for"}
_ANSWER = {True: "fits", False: "does-not-fit", None: "cannot-tell"}


def render_text(fits: Sequence[Fit], file: str, *, verbose: bool = False) -> str:
    """One SoC with its limits, several as a table; with `verbose` where all numbers come from."""
    if len(fits) == 1:
        lines = [verdict(fits[0]), shorten(file, _WIDE), "", *_details(fits[0], verbose)]
        return "\n".join(lines) + "\n"
    lines = [_summary(fits), shorten(file, _WIDE), "", *_table(fits, verbose)]
    failing = next((fit for fit in fits if fit.fits is not True), None)
    if failing is not None:
        lines += ["", verdict(failing), *(_details(failing, verbose) if verbose else ())]
    return "\n".join(lines) + "\n"


def verdict_on_all(fits: Sequence[Fit]) -> str:
    """One line about one SoC or several."""
    return verdict(fits[0]) if len(fits) == 1 else _summary(fits)


def verdict(fit: Fit) -> str:
    """One line: yes, no or cannot tell, by how many bytes."""
    words = f"{_VERDICT[fit.fits]} {fit.soc.name}"
    worst = fit.worst
    if fit.fits is None or worst is None or worst.spare is None:
        return f"{words}: {shorten(with_flags(fit.why), _WIDE)}" if fit.why else words
    title = TITLES[worst.pool]
    if fit.fits:
        return f"{words}: {worst.spare:,} bytes to spare in the {title}, the tightest"
    return f"{words}: {-worst.spare:,} bytes missing in the {title}"


def _summary(fits: Sequence[Fit]) -> str:
    count = {answer: sum(fit.fits is answer for fit in fits) for answer in (True, False, None)}
    if count[True] == len(fits):
        return f"fits all {len(fits)} SoCs"
    parts = [f"fits {count[True]} of {len(fits)} SoCs"]
    parts += [f"does not fit {count[False]}"] if count[False] else []
    parts += [f"cannot tell for {count[None]}"] if count[None] else []
    return ", ".join(parts)


def _details(fit: Fit, verbose: bool) -> Iterator[str]:
    yield f"{'limit':<16}{'needed':>16}{'limit':>16}{'to spare':>17}  limit origin"
    for check in fit.checks:
        yield from _check_lines(check, verbose)
    if verbose:
        yield from ("", *_sources(fit), "")
    if fit.code is not None:
        yield f"the library answered with code {fit.code}: {shorten(with_flags(fit.why), _WIDE)}"
    elif verbose and fit.fits is not True and fit.why:
        yield shorten(with_flags(fit.why), _WIDE)
    if fit.same_as:
        yield f"as compiled for {fit.same_as}, which has the same arch, VTCM, limit and FP16"
    # What fits needs no change; what does not is changed where most of it is.
    if fit.largest and (verbose or fit.fits is not True):
        yield ""
        yield "largest:"
        yield from (
            f"{item.size.value:>16,}  {item.kind:<7} {shorten(item.name)}" for item in fit.largest
        )
    if fit.suggestions or fit.tried:
        yield ""
        yield "what to change:"
        yield from (_suggested(one) for one in fit.suggestions)
        yield from (_line_of("no use", one) for one in fit.tried)


def _check_lines(check: Check, verbose: bool) -> Iterator[str]:
    limit = None if check.limit is None else check.limit.value
    origin = "" if check.limit is None else check.limit.origin.value
    title = TITLES[check.pool]
    if check.need is None or check.need.is_exact:
        need = None if check.need is None else check.need.high.value
        yield _line(title, need, limit, origin)
        return
    bounds = {"at least": check.need.low, "at most": check.need.high}
    if not verbose and check.fits is not None:
        del bounds["at least" if check.fits else "at most"]  # the other one decides
    for words, bound in bounds.items():
        short = {"process domain": "PD"}.get(title, title)
        yield _line(f"{short} {words}", bound.value, limit, origin)


def _sources(fit: Fit) -> Iterator[str]:
    """Where needs and limits come from."""
    for check in fit.checks:
        title = TITLES[check.pool]
        if check.need is not None:
            need = check.need.high
            yield f"{title:<16}  needed {need.origin.value}: {shorten(need.source, _WIDE)}"
        if check.limit is not None:
            limit = check.limit
            yield f"{title:<16}  limit {limit.origin.value}: {shorten(limit.source, _WIDE)}"


def _line(title: str, need: int | None, limit: int | None, origin: str) -> str:
    spare = None if need is None or limit is None else limit - need
    cells = (f"{_number(need):>16}", f"{_number(limit):>16}", f"{_number(spare):>17}")
    return f"{title:<16}{''.join(cells)}  {origin}".rstrip()


def _number(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _suggested(one: Suggestion) -> str:
    return _line_of("verified" if one.verified else "suggested", one)


def _line_of(word: str, one: Suggestion) -> str:
    return f"  {word:<9} {shorten(flag(one.setting), 100)}: {shorten(with_flags(one.reason), 200)}"


def _table(fits: Sequence[Fit], verbose: bool) -> Iterator[str]:
    yield f"{'SoC':<12}{'answer':<14}{'to spare':>17}  limit"
    for fit in fits:
        worst = fit.worst
        spare = None if worst is None else worst.spare
        title = "" if worst is None else TITLES[worst.pool]
        why = title
        if fit.fits is None:
            why = shorten(with_flags(fit.why), 100) if verbose else ""
        same = f" (as {fit.same_as})" if fit.same_as else ""
        answer = {True: "fits", False: "does not fit", None: "cannot tell"}[fit.fits]
        yield f"{fit.soc.name:<12}{answer:<14}{_number(spare):>17}  {why}{same}".rstrip()


def render_json(fits: Sequence[Fit], file: str, tool: str) -> str:
    """One JSON object."""
    return write_json(as_values(fits, file, tool))


def as_values(fits: Sequence[Fit], file: str, tool: str) -> dict[str, Any]:
    """The object behind the JSON text."""
    answers = {fit.fits for fit in fits}
    whole = False if False in answers else None if None in answers else True
    return {
        "schema": SCHEMA,
        "tool": tool,
        "file": file,
        "answer": _ANSWER[whole],
        "socs": [_fit_values(fit) for fit in fits],
    }


def _fit_values(fit: Fit) -> dict[str, Any]:
    return {
        "soc": fit.soc.name,
        "answer": _ANSWER[fit.fits],
        "why": with_flags(fit.why),
        "code": fit.code,
        "operator": fit.operator,
        "same_as": fit.same_as,
        "checks": [_check_values(check) for check in fit.checks],
        "largest": [
            {"graph": i.graph, "name": i.name, "kind": i.kind, "bytes": i.size.value}
            for i in fit.largest
        ],
        "suggestions": [_suggestion_values(one) for one in fit.suggestions],
        "tried": [_suggestion_values(one) for one in fit.tried],
    }


def _check_values(check: Check) -> dict[str, Any]:
    return {
        "pool": check.pool,
        "fits": check.fits,
        "need_low": bytes_values(check.need.low if check.need else None),
        "need_high": bytes_values(check.need.high if check.need else None),
        "limit": bytes_values(check.limit),
        "spare": check.spare,
    }


def _suggestion_values(one: Suggestion) -> dict[str, Any]:
    return {
        "setting": flag(one.setting),
        "verified": one.verified,
        "reason": with_flags(one.reason),
    }
