"""`llm`: whether a language model fits, over SoCs and settings, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from qnnmem.htp.llm.plan import LlmCase
    from qnnmem.options.htp import LlmOptions
    from qnnmem.results.llm import LlmResult, LlmRow

_VARIED = ("context", "ar", "shards", "kv")
_MOST_ROWS = 1000


def plan_model(model: str, options: LlmOptions) -> LlmResult:
    """Return the answer for a model, with the tables that were asked for."""
    from qnnmem.errors import MissingSoc
    from qnnmem.htp.llm.plan import llm_case, plan_llm
    from qnnmem.targets.socs import socs

    if options.soc is None and not options.all_socs:
        raise MissingSoc(model)
    case = llm_case(
        model,
        soc=options.soc or "SM8650",
        context=options.context,
        ar=options.ar,
        recipe=options.recipe,
        bits=options.bits,
        shards=options.shards,
    )
    rows: list[LlmRow] = []
    if options.all_socs:
        known = {soc.library_name: soc for soc in socs() if soc.has_htp}
        names = sorted(soc.name for soc in known.values())
        rows += [_row(case, {"soc": name}) for name in names]
    rows += [_row(case, setting) for setting in _settings(options.vary)]
    result = plan_llm(case)
    changes = () if result.fits else tuple(_changes(case, result))
    return replace(result, rows=tuple(rows), changes=changes)


def _row(case: LlmCase, setting: dict[str, str | int]) -> LlmRow:
    from qnnmem.htp.llm.plan import changed, llm_row, plan_llm

    return llm_row(plan_llm(changed(case, setting)), setting)


def _settings(varied: Sequence[str]) -> Iterator[dict[str, str | int]]:
    """Every combination of what is varied; a range doubles from its low end."""
    from itertools import product

    from qnnmem.errors import UsageError
    from qnnmem.htp.sweep import parse_axis
    from qnnmem.options.parsers import pair, whole_number

    axes: dict[str, list[int]] = {}
    for text in varied:
        name, listed = pair(text, "name=1024,4096", "--vary context=1024..16384")
        if name not in _VARIED:
            known = ", ".join(_VARIED)
            raise UsageError(f"'{name[:40]}' is not varied here; there are {known}")
        low, dots, high = listed.partition("..")
        if dots:
            value, last = whole_number(low), whole_number(high)
            axes[name] = []
            while 1 <= value < last:
                axes[name].append(value)
                value *= 2
            axes[name].append(last)
        else:
            axes[name] = [int(one) for one in parse_axis(text).values]
    if not axes:
        return
    combined = list(product(*axes.values()))
    if len(combined) > _MOST_ROWS:
        raise UsageError(f"these are {len(combined):,} settings, more than {_MOST_ROWS:,}")
    for values in combined:
        yield dict(zip(axes, values, strict=True))


def _changes(case: LlmCase, result: LlmResult) -> Iterator[LlmRow]:
    """What helps when it does not fit, each computed: those that fit first."""
    recipe, layers = case.recipe, sum(one.layers > 0 for one in result.shards)
    settings: list[dict[str, str | int]] = []
    if case.shards:  # without a wish for some, all numbers were tried
        more = dict.fromkeys((layers + 1, 2 * layers))
        settings += [{"shards": count} for count in more if count <= case.model.layers]
    settings += [{"kv": 8}] if recipe.kv > 8 else []
    settings += [{"ar": ar} for ar in (64, 32) if max(case.ar) > ar]
    settings += [{"head": bits} for bits in (8, 4) if recipe.head > bits]
    settings += [{"layers": bits} for bits in (8, 4) if recipe.bits > bits]
    settings += [{"embedding": 8}] if recipe.embedding > 8 else []
    if case.context // 2 > max(case.ar):
        settings += [{"context": case.context // 2}]
    settings += [{"layers": 4, "head": 4, "kv": 8, "embedding": 8}]
    rows = [_row(case, one) for one in settings]
    order = {"fits": 0, "cannot-tell": 1}
    yield from sorted(rows, key=lambda row: order.get(row.answer, 2))
