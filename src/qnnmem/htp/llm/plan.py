"""Shards of a decoder against the limits of a SoC: the fewest that fit, the longest context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.errors import UsageError
from qnnmem.htp.bill import COMPILE_FORMULA, PD_FORMULA, graph_pd
from qnnmem.htp.first_fit import best_order
from qnnmem.htp.llm import rule
from qnnmem.htp.llm.config import read_model
from qnnmem.htp.llm.recipe import find_recipe, usual_range, with_parts
from qnnmem.htp.llm.rule import LayerRatios, LayerSpan
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import answer_name
from qnnmem.results.footprint import SizeRange
from qnnmem.results.llm import LlmModel, LlmRecipe, LlmResult, LlmRow, LlmShard
from qnnmem.results.place import DOMAINS, Placement
from qnnmem.targets.socs import MIB, Soc, find_soc, htp_constant, pd_budget
from qnnmem.text import counted
from qnnmem.units import format_size, round_up

MOST_CONTEXT = 1 << 20  # tokens; beyond, positions are not exact in 16 bits any more
_HOST_RAM = (6, 12)  # times the weights: 21 compiled settings, and a whole Qwen3-0.6B
_HOST_BASE = 200_000_000
_SECONDS = ((0.05, 0.2), (0.2, 0.6))  # of compiling a megabyte: one token, or many at a time
_OLD_ARCH = 75
_AR = (128, 1)
_FLOAT = 16  # bits of weights that are not quantized
_MOST_GRAPHS = 16
_MOST_TRIES = 32


class LlmCase(Struct, frozen=True, kw_only=True):
    """What is planned for what."""

    model: LlmModel
    recipe: LlmRecipe
    soc: Soc
    context: int
    ar: tuple[int, ...]
    measured: LayerRatios = LayerRatios()
    shards: tuple[int, ...] = ()  # one number: so many; several: layers of each; none: the fewest


def llm(
    model: str,
    *,
    soc: str,
    context: int = 4096,
    ar: Sequence[int] = (128, 1),
    recipe: str = "genie-w4a16",
    bits: Mapping[str, int] | None = None,
    shards: Sequence[int] = (),
) -> LlmResult:
    """Say whether a language model fits a SoC, and in which shards.

    `model` is a config.json, a GGUF file or a known name; `shards` is one number, or the layers of
    each; `bits` changes parts of the recipe, e.g. `{"head": 4, "kv": 16}`.
    """
    parts = tuple((bits or {}).items())
    shards = (shards,) if isinstance(shards, int) else tuple(shards)
    ar = tuple(ar)
    return plan_llm(
        llm_case(*(model, soc), context=context, ar=ar, recipe=recipe, bits=parts, shards=shards)
    )


def llm_case(
    model: str,
    soc: str,
    *,
    context: int,
    ar: tuple[int, ...],
    recipe: str,
    bits: Iterable[tuple[str, int]],
    shards: tuple[int, ...],
) -> LlmCase:
    """Return the planned case; UsageError if settings contradict the model or each other."""
    found = read_model(str(model))
    parts = find_recipe(recipe, found, bits)
    case = LlmCase(
        model=found, recipe=parts, soc=find_soc(soc), context=context, ar=ar, shards=shards
    )
    return _checked(case)


def changed(case: LlmCase, setting: Mapping[str, str | int]) -> LlmCase:
    """Return the case with another SoC, context, largest graph, number of shards or bits."""
    for name, value in setting.items():
        if name == "soc":
            case = replace(case, soc=find_soc(str(value)))
        elif name == "context":
            case = replace(case, context=int(value))
        elif name == "ar":
            case = replace(case, ar=(int(value), *case.ar[1:]))
        elif name == "shards":
            case = replace(case, shards=(int(value),))
        else:
            parts = ((name, int(value)),)
            case = replace(case, recipe=with_parts(case.recipe, parts))
    return _checked(case)


def _checked(case: LlmCase) -> LlmCase:
    ar = tuple(dict.fromkeys(case.ar or _AR))
    case = replace(case, ar=ar)
    if not 2 <= case.context <= MOST_CONTEXT:
        raise UsageError(f"a context of {case.context:,} is not from 2 to {MOST_CONTEXT:,} tokens")
    if min(ar) < 1 or len(ar) > _MOST_GRAPHS:
        raise UsageError(f"give 1 to {_MOST_GRAPHS} graphs, each of at least one token")
    if max(ar) >= case.context:
        what = f"a graph of {max(ar):,} tokens leaves no room in a context of {case.context:,}"
        raise UsageError(what)
    layers = case.model.layers
    if case.shards and min(case.shards) < 1:
        raise UsageError("a shard has at least one layer")
    if len(case.shards) > 1 and sum(case.shards) != layers:
        listed = " + ".join(map(str, case.shards[:20]))
        raise UsageError(f"{listed} are {sum(case.shards):,} layers, and the model has {layers:,}")
    if len(case.shards) == 1 and case.shards[0] > layers:
        raise UsageError(f"{case.shards[0]:,} shards are more than the {layers:,} layers")
    return case


class _Judged(NamedTuple):
    """Shards with their needs, where they go, and the limit that decides."""

    shards: tuple[LlmShard, ...]
    placement: Placement
    fits: bool | None
    why: str


def plan_llm(case: LlmCase) -> LlmResult:
    """Return whether a decoder fits, in its fewest shards or in those that were asked for."""
    best = _best(case)
    shards, model, recipe = best.shards, case.model, case.recipe
    token = rule.kv_per_token(model, recipe)
    spills = [one.spill_fill for one in shards]
    each = f"{case.measured.origin}: largest of all graphs"
    largest = max(one.weights.value for one in shards)
    ram = [_HOST_BASE + times * largest for times in _HOST_RAM]
    about_ram = f"{_HOST_RAM[0]} to {_HOST_RAM[1]} times the weights and 0.2 GB"
    return LlmResult(
        model=model,
        recipe=recipe,
        soc=case.soc.name,
        context=case.context,
        ar=case.ar,
        answer=answer_name(best.fits),
        why=best.why,
        shards=shards,
        placement=best.placement,
        budget=pd_budget(),
        file_bytes=_computed(sum(one.file_bytes.value for one in shards), "sum of the shards"),
        recipe_range=_recipe_range(case),
        kv_bytes_per_token=_computed(token, "2 x layers x KV heads x head dimension x bytes"),
        kv_bytes=_computed(token * case.context, "per token, times the context"),
        longest_context=longest_context(case, best),
        spill_fill=_range(sum(s.low.value for s in spills), sum(s.high.value for s in spills)),
        spill_fill_shared=SizeRange(
            _computed(0, each), _computed(max(_most_spilled(case, best.shards)), each)
        ),
        host_ram=SizeRange(_computed(ram[0], about_ram), _computed(ram[1], about_ram)),
        compile_seconds=_seconds(case, shards),
        origin=case.measured.origin,
        notes=tuple(_notes(case, best)),
    )


def llm_row(result: LlmResult, setting: dict[str, str | int]) -> LlmRow:
    """Return a result as one line of a table."""
    return LlmRow(
        setting=setting,
        answer=result.answer,
        shards=len(result.shards),
        domains=len(result.placement.domains),
        largest_domain=max(one.process_domain.high.value for one in result.shards),
        file_bytes=result.file_bytes.value,
        kv_bytes=result.kv_bytes.value,
        longest_context=result.longest_context,
        why=result.why,
    )


def longest_context(case: LlmCase, best: _Judged) -> int:
    """Return the longest context that surely fits with the same shards, by bisection."""
    parts = [LayerSpan(s.first, s.layers, s.embedding, s.head) for s in best.shards]
    low, high = max(case.ar) + 1, MOST_CONTEXT + 1
    if not _judged(replace(case, context=low), parts).fits:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        fits = _judged(replace(case, context=middle), parts).fits
        low, high = (middle, high) if fits else (low, middle)
    return low


def _best(case: LlmCase) -> _Judged:
    """The fewest shards that fit; where none do, those that come nearest."""
    layers = case.model.layers
    if len(case.shards) > 1:
        return _judged(case, list(_cut(case, case.shards)))
    counts = case.shards or _counts(case)
    tried = []
    for count in counts:
        each, rest = divmod(layers, count)
        # The last has the head as well, so that the first take what is left over.
        sizes = [each + (number < rest) for number in range(count)]
        tried.append(_judged(case, list(_cut(case, sizes))))
        if tried[-1].fits:
            break
    # Of those that do not fit, one that may is nearer, then the one with the smallest excess.
    return min(tried, key=lambda one: (one.fits is not True, one.fits is False, _excess(one)))


def _counts(case: LlmCase) -> Iterable[int]:
    """Numbers of shards worth a try: from the first whose weights alone could fit."""
    layers, budget = case.model.layers, pd_budget().value
    limit = case.soc.compile_limit
    room = min(budget, budget if limit is None else limit.value)
    whole = rule.weights(case.model, case.recipe, LayerSpan(0, layers), case.measured)
    least = min(layers, max(1, -(-whole // room)))
    if whole > DOMAINS.value * budget:  # more parts do not help
        return (min(least, _MOST_TRIES),)
    return range(least, min(layers, least + _MOST_TRIES) + 1)


def _excess(one: _Judged) -> tuple[int, int]:
    return len(one.placement.too_large), len(one.placement.domains)


def _cut(case: LlmCase, sizes: Sequence[int]) -> Iterator[LayerSpan]:
    """The stretches of layers, the embedding by itself where the recipe has it so."""
    apart, first = case.recipe.apart, 0
    if apart:
        yield LayerSpan(0, 0, embedding=True)
    for number, size in enumerate(sizes):
        head = number == len(sizes) - 1
        yield LayerSpan(first, size, embedding=not (apart or first), head=head)
        first += size


def _judged(case: LlmCase, parts: Sequence[LayerSpan]) -> _Judged:
    shards = tuple(_shard(case, part) for part in parts)
    budget = pd_budget().value
    sizes = [one.process_domain.high.value for one in shards]
    placement = best_order(sizes, budget)
    low = best_order([one.process_domain.low.value for one in shards], budget)
    limit = case.soc.compile_limit
    limits = [("process domain", "process_domain", budget)]
    limits += [("compile limit", "compile_need", limit.value)] if limit else []
    if case.recipe.bits == _FLOAT and case.soc.fp16 is False:
        why = f"{case.soc.name} compiles no floats"
        return _Judged(shards, placement, False, why)
    over = [(n, s, of) for n, key, of in limits for s in shards if getattr(s, key).low.value > of]
    may = [(n, s, of) for n, key, of in limits for s in shards if getattr(s, key).high.value > of]
    if over or not low.fits:
        return _Judged(shards, placement, False, _why_not(case, over, low))
    if may or not placement.fits or limit is None:
        why = _why_not(case, may, placement) if may or not placement.fits else ""
        why = why or f"the compile limit of {case.soc.name} is not known"
        return _Judged(shards, placement, None, why)
    needs = [(n, s, getattr(s, key).high.value, of) for n, key, of in limits for s in shards]
    tight = max(needs, key=lambda need: need[2] / need[3])
    return _Judged(shards, placement, True, _why(*tight))


def _why(name: str, shard: LlmShard, need: int, limit: int) -> str:
    share = 100 * (limit - need) // limit
    return (
        f"the {name} decides: {shard.name} needs at most {format_size(need)} of "
        f"{format_size(limit)}, {share} % is left"
    )


def _why_not(case: LlmCase, over: Sequence[tuple[str, LlmShard, int]], where: Placement) -> str:
    if not over:
        domains = counted(len(where.domains), "process domain")
        return f"the shards need {domains}, and a process has {DOMAINS.value}"
    name, shard, limit = over[0]
    need = shard.process_domain if name == "process domain" else shard.compile_need
    return (
        f"the {name} decides: {shard.name} needs {format_size(need.low.value)} to "
        f"{format_size(need.high.value)} of {format_size(limit)}"
    )


def _shard(case: LlmCase, part: LayerSpan) -> LlmShard:
    """The needs of one context: shared weights once, everything else for each graph."""
    model, recipe, context, measured = case.model, case.recipe, case.context, case.measured
    weights = rule.weights(model, recipe, part, measured)
    extra = io = low = high = spills = 0
    need_low = need_high = 0
    # A graph of a shared context has a few KiB of weights of its own, which take a whole unit.
    own, shared = (1, weights) if len(case.ar) > 1 else (weights, 0)
    for ar in case.ar:
        one_io = rule.io_bytes(model, recipe, part, ar, context)
        spill = rule.spill_fill(model, part, ar, context, measured)
        ddr = rule.ddr_tensors(model, part, ar, context)
        ops = rule.op_data(model, part, ar, context, measured)
        least, most = _domain(case, own, one_io, ops, ddr, spill)
        extra += rule.file_extra(model, part, ar, context, measured)
        io, low, high, spills = io + one_io, low + least, high + most, spills + spill
        need_low = max(need_low, weights + one_io)
        need_high = max(need_high, weights + one_io + spill + ddr)
    unit = htp_constant("process_domain", "weights_unit").value
    shared = round_up(shared, unit)
    origin = case.measured.origin
    return LlmShard(
        name=part.name,
        first=part.first,
        layers=part.layers,
        embedding=part.embedding,
        head=part.head,
        file_bytes=_computed(weights + extra, origin),
        weights=_computed(weights, origin),
        io=_computed(io, "each input and output rounded up to 8,192 bytes"),
        spill_fill=_range(0, spills),
        compile_need=_range(need_low, need_high, COMPILE_FORMULA),
        process_domain=_range(shared + low, shared + high, f"{PD_FORMULA}; of each graph"),
    )


def _domain(case: LlmCase, own: int, io: int, ops: int, ddr: int, spill: int) -> tuple[int, int]:
    """The least and the most that one graph takes of the process domain, shared weights apart."""
    vtcm = case.soc.vtcm_bytes or _computed(8 * MIB, "usual")
    fixed = (_computed(own, ""), _computed(io, ""), _computed(ops, ""))
    found = [
        graph_pd(*fixed, _computed(a, ""), _computed(b, ""), vtcm, vtcm)
        for a, b in ((0, 0), (ddr, spill))
    ]
    bounds = [one for one in found if one is not None]  # none of the parts is missing
    return bounds[0].low.value, bounds[-1].high.value


def _most_spilled(case: LlmCase, shards: Sequence[LlmShard]) -> Iterator[int]:
    for one in shards:
        part = LayerSpan(one.first, one.layers, one.embedding, one.head)
        for ar in case.ar:
            yield rule.spill_fill(case.model, part, ar, case.context, case.measured)


def _recipe_range(case: LlmCase) -> SizeRange | None:
    """All files in the smallest and the largest of the usual recipes."""
    found = usual_range(case.recipe)
    if found is None:
        return None
    whole = LayerSpan(0, case.model.layers, embedding=True, head=True)
    sizes = [rule.weights(case.model, one, whole, case.measured) for one in found]
    source = "weights; 4-bit head and one scale per channel, to 8-bit head and down, blocks of 16"
    return _range(sizes[0], sizes[1], source)


def _seconds(case: LlmCase, shards: Sequence[LlmShard]) -> tuple[int, int]:
    megabytes = sum(one.weights.value for one in shards if one.layers) / 1e6
    rates = [_SECONDS[ar > 1] for ar in case.ar]
    low, high = (sum(rate[end] for rate in rates) * megabytes for end in (0, 1))
    return round(low), round(high)


def _notes(case: LlmCase, best: _Judged) -> Iterator[str]:
    yield from case.model.notes
    yield "RAM of the device is not judged: these are limits of the compiler and the DSP"
    if (case.soc.arch or 0) < _OLD_ARCH:
        yield f"phones before v{_OLD_ARCH} were reported to refuse contexts near 2 GiB"
    if len(best.placement.domains) > 1:
        domains = len(best.placement.domains)
        yield f"{domains} process domains are needed; more than one was never seen on a device here"
    if usual_range(case.recipe):
        yield (
            f"the recipe {case.recipe.name} was not published for this model, which is the "
            f"largest uncertainty"
        )
    if case.model.max_context and case.context > case.model.max_context:
        yield f"the model was made for {case.model.max_context:,} tokens"
    if len(case.ar) > 1:
        yield "each graph counts the KV cache: a runtime that lets them share it needs less"
    yield "exporters take more host RAM than the compiler: 50 to 150 GB are documented for 1B to 8B"


def _computed(value: int, source: str) -> Sourced:
    return Sourced(value, Origin.COMPUTED, source)


def _range(low: int, high: int, source: str = "not predictable, so a range") -> SizeRange:
    return SizeRange(_computed(low, source), _computed(high, source))
