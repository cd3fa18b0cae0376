"""Render the check of a project's budgets, and the comparison of two results, as page sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from zlib import crc32

from qnnmem.report.page.charts import Bar, bars, limit_bars, line, share_words
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.markup import Cell, Html, answer, badge, details, lines, table, tag, text
from qnnmem.report.page.memory_map import memory_map
from qnnmem.results.check import AcceptedState, CheckResult, ModelCheck
from qnnmem.results.diff import DiffResult, PoolChange, SubjectChange, TensorChange
from qnnmem.results.plan import PlanMap
from qnnmem.text import counted
from qnnmem.units import format_size

_OPEN = 12  # tensors shown without a click
_MOST = 200
_FIRST = 3  # models whose reasons come first
_TIGHT = 0.9  # share of a limit that counts as tight
_NO_MAPS: Mapping[str, PlanMap] = {}
_COLOURS = ("scratch", "persistent", "io", "constants")


def check_page(result: CheckResult, maps: Mapping[str, PlanMap]) -> str:
    """Return a page about the models of a project; `maps` holds the map of each planned model."""
    from qnnmem.report.page.document import render_page

    return render_page([check_section(result, maps)], "Models against their budgets")


def check_section(result: CheckResult, maps: Mapping[str, PlanMap] = _NO_MAPS) -> PageSection:
    """Return a section with a matrix of models and targets, then a part about each model."""
    fits = {0: True, 1: False}.get(result.exit_code)
    anchored = [(_anchor(result, number), model) for number, model in enumerate(result.models)]
    worst = sorted(anchored, key=lambda pair: -_margin(pair[1])[0])
    reasons = [(m.name, why) for _, m in worst[:_FIRST] for why in m.reasons[:1]]
    body = [
        answer(fits, result.verdict.removeprefix("fits: ").removeprefix("does not fit: ")),
        *(tag("p", f"{name}: {why}") for name, why in reasons),
        _matrix(result, anchored),
        *(_model(m, anchor, result, maps.get(m.name)) for anchor, m in worst[:_MOST]),
    ]
    return PageSection("Models against their budgets", lines(body), has_map=bool(maps))


def _anchor(result: CheckResult, number: int) -> str:
    """Return an id that is unique on the page."""
    return f"model-{crc32(result.config.encode('utf-8', 'replace')):08x}-{number}"


def _tightest(model: ModelCheck) -> tuple[float, str]:
    """Return the used share of the tightest limit, and the name of its pool."""
    shares = [
        (check.need_bytes / max(check.have_bytes, 1), check.pool)
        for check in model.checks
        if check.need_bytes is not None
        and check.have_bytes is not None
        # A graph uses all VTCM it is given: reaching that limit exactly means nothing.
        and not (check.pool == "vtcm" and not check.budget and check.need_bytes == check.have_bytes)
    ]
    return max(shares, default=(0.0, ""))


def _margin(model: ModelCheck) -> tuple[float, str, str]:
    """Return a cell's sort key (the used share of the tightest limit), CSS class and text."""
    share, pool = _tightest(model)
    words = f"{pool} {share_words(share)}" if pool else model.answer or "no budget"
    if model.fits is False or model.exit_code in (1, 2):
        return max(share, 1.0) + 1, "over", words if model.fits is False else model.answer
    if model.fits is None:
        return 1.5, "unknown", model.answer or "cannot tell"
    return share, "tight" if share > _TIGHT else "roomy", words


def _matrix(result: CheckResult, anchored: Sequence[tuple[str, ModelCheck]]) -> Html:
    """Return a table with a row for each file, a column for each target, and links to details."""
    cells: dict[tuple[str, str], list[Html]] = {}
    for anchor, model in anchored:
        _, kind, words = _margin(model)
        has_name = model.file and model.name != f"{model.file} ({model.target})"
        title = model.name if has_name else words
        link = tag("a", words, href=f"#{anchor}", class_=f"margin {kind}", title=title)
        cell = tag("div", link, *_change(model, result))
        cells.setdefault((model.file or model.name, model.target), []).append(cell)
    files = list(dict.fromkeys(file for file, _ in cells))
    targets = sorted({target for _, target in cells})
    rows = [(file, *(lines(cells.get((file, target), [])) for target in targets)) for file in files]
    keys = (
        tag("span", words, class_=f"margin {kind}")
        for kind, words in (
            ("over", "over a limit, or worse than the baseline"),
            ("tight", f"over {_TIGHT:.0%} used"),
            ("roomy", "fits"),
            ("unknown", "not known"),
        )
    )
    head = ("model", *(target or "target" for target in targets))
    legend = tag("div", "tightest limit: ", *keys, class_="tools faint")
    return lines([table(head, rows), legend])


def _accepted(model: ModelCheck, result: CheckResult, pool: str) -> list[tuple[AcceptedState, int]]:
    """Return the accepted sizes of a pool and their commits, the oldest first."""
    states = ((state, state.models.get(model.name, {}).get(pool)) for state in result.history)
    return [(state, size) for state, size in states if size is not None]


def _change(model: ModelCheck, result: CheckResult) -> Iterator[Html]:
    """Yield a chart of the tightest pool's sizes, and the change since the last accepted size."""
    _, pool = _tightest(model)
    accepted, now = _accepted(model, result, pool), model.pools.get(pool)
    if not accepted or now is None:
        return
    state, last = accepted[-1]
    sizes = [size for _, size in accepted] + [now]
    if len(set(sizes)) > 1:
        yield _sparkline(sizes, pool)
    if now != last:
        part = f" ({(now - last) / last:+.0%})" if last else ""
        sign = "+" if now > last else "-"
        words = f"{sign}{format_size(abs(now - last))}{part} since {state.time[:10]}"
        yield tag("div", words, class_="bad" if now > last else "good")


def _sparkline(sizes: Sequence[int], pool: str) -> Html:
    top, wide = max(*sizes, 1), 76 / max(len(sizes) - 1, 1)
    points = " ".join(
        f"{2 + index * wide:.1f},{22 - 20 * size / top:.1f}" for index, size in enumerate(sizes)
    )
    words = (
        f"{pool}, accepted: {', '.join(map(format_size, sizes[:-1]))}; now {format_size(sizes[-1])}"
    )
    return Html(
        f'<svg class="spark" width="80" height="24" role="img" aria-label="{text(words)}">'
        f'<title>{text(words)}</title><polyline points="{points}" class="line"/></svg>'
    )


def _model(model: ModelCheck, anchor: str, result: CheckResult, plan: PlanMap | None) -> Html:
    rows = [
        Bar(check.pool, [("total", check.need_bytes)], check.have_bytes)
        for check in model.checks
        if check.need_bytes is not None and check.have_bytes is not None
    ]
    trend = list(_trend(model, result))
    body = lines(
        [
            tag("p", badge(model.fits), Html(" "), model.answer),
            *(tag("p", reason) for reason in model.reasons),
            limit_bars(rows, f"Need of {model.name} against each budget"),
            *trend,
            table(("pool", "bytes"), list(model.pools.items())) if model.pools else Html(""),
            memory_map(plan, budget=_have(model, "scratch")) if plan is not None else Html(""),
        ]
    )
    is_open = model.fits is False or len(result.models) == 1
    return details(model.name, body, is_open=is_open, name=anchor)


def _have(model: ModelCheck, pool: str) -> int | None:
    return next((check.have_bytes for check in model.checks if check.pool == pool), None)


def _trend(model: ModelCheck, result: CheckResult) -> Iterator[Html]:
    """Yield a chart for each pool that changed: its accepted sizes by commit, then today's size."""
    states = [state for state in result.history if model.name in state.models]
    judged = {check.pool for check in model.checks}
    for pool, now in model.pools.items():
        accepted = _accepted(model, result, pool)
        points = [*((float(index), size) for index, (_, size) in enumerate(accepted))]
        points.append((float(len(accepted)), now))
        if pool in judged and len({size for _, size in points}) > 1:
            have = _have(model, pool)
            limits = [] if have is None or have > 4 * now else [("budget", have)]
            days = [*(state.time[:10] for state, _ in accepted), "now"]
            yield tag("h4", f"{pool}, accepted and now")
            yield line(points, f"{pool} of {model.name}", limits, names=days)
    if len(states) > 1:
        rows = [(s.commit[:12], s.time[:10], *_pools(s.models[model.name], model)) for s in states]
        head = ("commit", "accepted", *model.pools)
        yield details(f"{counted(len(states), 'commit')} of the baseline", table(head, rows))


def _pools(sizes: Mapping[str, int], model: ModelCheck) -> Iterator[int | None]:
    return (sizes.get(pool) for pool in model.pools)


def diff_section(result: DiffResult) -> PageSection:
    """Return a section about two results: pools, changed verdicts, changed tensors."""
    return PageSection("Before and after", lines(diff_parts(result)))


def diff_parts(result: DiffResult) -> Iterator[Html]:
    """Yield the verdict, the comparison of each file, and the files that are in only one result."""
    differs = "" if result.changed else "nothing differs; "
    words = result.verdict.removeprefix("worse: ")
    yield answer(not result.worse, differs, words, words=("not worse", "worse", ""))
    yield from (part for subject in result.subjects for part in _subject(subject))
    yield from (tag("p", f"only after: {name}") for name in result.appeared)
    yield from (tag("p", f"only before: {name}") for name in result.vanished)


def _subject(subject: SubjectChange) -> Iterator[Html]:
    before, after = (PurePath(name).name or name for name in (subject.before, subject.after))
    yield tag("h3", before if before == after else f"{before} to {after}")
    for turned in subject.verdicts:
        words = f"{turned.question}: {turned.before}, now {turned.after}"
        kind = "bad" if turned.worse else "good" if turned.better else "open"
        yield tag("p", words, class_=kind)
    rows = [
        Bar(f"{pool.pool}, {when}", [(pool.pool if pool.pool in _COLOURS else "other", size)])
        for pool in subject.pools
        for when, size in (("before", pool.before_bytes), ("after", pool.after_bytes))
        if size is not None and pool.change_bytes
    ]
    if rows:
        yield bars(rows, "Pools before and after")
    yield table(("pool, bytes", "before", "after", "change", ""), map(_pool, subject.pools))
    yield from (tag("p", p.not_comparable) for p in subject.pools if p.not_comparable)
    if subject.limits:
        limits = [(limit.name, limit.before_bytes, limit.after_bytes) for limit in subject.limits]
        yield table(("budget, bytes", "before", "after"), limits)
    if subject.settings:
        settings = [(setting.name, setting.before, setting.after) for setting in subject.settings]
        yield table(("setting", "before", "after"), settings)
    if subject.tensors:
        title = f"{counted(len(subject.tensors), 'tensor')} changed"
        head = ("tensor, bytes", "", "before", "after", "change")
        listed = table(head, map(_tensor, subject.tensors[:_MOST]))
        yield details(title, listed, is_open=len(subject.tensors) <= _OPEN)


def _pool(pool: PoolChange) -> tuple[Cell, ...]:
    change = pool.change_bytes
    kind = "bad" if pool.worse else "good" if (change or 0) < 0 else "faint"
    share = f"{pool.fraction:+.1%}" if pool.fraction else ""
    words = "not comparable" if pool.not_comparable else None if change is None else _signed(change)
    return pool.pool, pool.before_bytes, pool.after_bytes, words, tag("span", share, class_=kind)


def _tensor(tensor: TensorChange) -> tuple[Cell, ...]:
    sizes = tensor.before_bytes, tensor.after_bytes, _signed(tensor.change_bytes)
    return tensor.name, tensor.change, *sizes


def _signed(number: int) -> Html:
    return tag("span", f"{number:+,}" if number else "0", class_="number")
