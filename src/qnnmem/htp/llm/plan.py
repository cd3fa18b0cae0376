"""Check a decoder's shards against a SoC's limits; find the fewest shards, the longest context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.arguments import as_whole, expect, expect_items, expect_mapping
from qnnmem.errors import UsageError
from qnnmem.htp.bill import COMPILE_FORMULA, PD_FORMULA, graph_pd
from qnnmem.htp.first_fit import best_order
from qnnmem.htp.llm import rule
from qnnmem.htp.llm.config import FAMILIES, find_recipe, read_model, usual_range, with_parts
from qnnmem.htp.llm.rule import LayerRatios, LayerSpan, LlmGraph
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.fit import answer_name
from qnnmem.results.footprint import SizeRange
from qnnmem.results.llm import LlmModel, LlmRecipe, LlmResult, LlmRow, LlmShard
from qnnmem.results.place import DOMAINS, Placement
from qnnmem.targets.socs import MIB, Soc, find_soc, htp_constant, pd_budget
from qnnmem.text import counted
from qnnmem.units import format_size, round_up

MOST_CONTEXT = 1 << 20  # tokens; larger positions are not exact in 16 bits
_HOST_RAM = (6, 12)  # factors of the weights: from 21 compiled settings and a whole Qwen3-0.6B
_HOST_BASE = 200_000_000
_SECONDS = ((0.05, 0.2), (0.2, 0.6))  # per megabyte compiled: for one token at a time, and for many
_OLD_ARCH = 75
_AR = (128, 1)
_FLOAT = 16  # bits of weights that are not quantized
_KV_EVERYWHERE = 8  # bits of a KV cache that every HTP supports
_USUAL_VTCM = 8 * MIB
_MOST_GRAPHS = 16
_MOST_TRIES = 32


class LlmCase(Struct, frozen=True, kw_only=True):
    """The model, SoC and settings of one plan."""

    model: LlmModel
    recipe: LlmRecipe
    soc: Soc
    context: int
    ar: tuple[int, ...]
    measured: LayerRatios = LayerRatios()
    shards: tuple[int, ...] = ()  # a number: that many; several: layers of each; empty: the fewest


def llm(
    model: str | Path,
    *,
    soc: str,
    context: int = 4096,
    ar: Sequence[int] = (128, 1),
    recipe: str = "genie-w4a16",
    bits: Mapping[str, int] | None = None,
    shards: int | Sequence[int] = (),
) -> LlmResult:
    """Return whether a language model fits a SoC, and the shards of the model.

    `model` is a config.json, a GGUF file or a known name; `shards` is a number, or the layers of
    each shard; `bits` changes parts of the recipe, e.g. `{"head": 4, "kv": 16}`.
    """
    expect(model, (str, Path), "model must be a path or a known name")
    expect(soc, str, "soc must be the name of a SoC")
    expect(recipe, str, "recipe must be the name of a recipe")
    layers = (shards,) if isinstance(shards, int) else shards
    return plan_llm(
        llm_case(
            *(read_model(str(model)), soc),
            context=as_whole(context, "context must be a number of tokens"),
            ar=expect_items(ar, int, "ar must be the lengths of the graphs, in tokens"),
            recipe=recipe,
            bits=expect_mapping(bits, "bits must map parts to numbers of bits").items(),
            shards=expect_items(
                layers,
                int,
                "shards must be a number of shards, or a list with the number of layers in each",
            ),
        )
    )


def llm_case(
    model: LlmModel,
    soc: str,
    *,
    context: int,
    ar: tuple[int, ...],
    recipe: str,
    bits: Iterable[tuple[str, int]],
    shards: tuple[int, ...],
) -> LlmCase:
    """Return the case to plan; raise UsageError if settings contradict the model or one another."""
    parts = find_recipe(recipe, model, bits)
    return _checked(
        LlmCase(model=model, recipe=parts, soc=find_soc(soc), context=context, ar=ar, shards=shards)
    )


def changed(case: LlmCase, setting: Mapping[str, str | int]) -> LlmCase:
    """Return the case with changed settings: SoC, context, largest graph, shards or bits.

    Ratios from compiled layers do not apply to another SoC or other bits; such a case is planned by
    rule.
    """
    for name, value in setting.items():
        if name == "soc":
            case = replace(case, soc=find_soc(str(value)), measured=LayerRatios())
        elif name == "context":
            case = replace(case, context=int(value))
        elif name == "ar":
            case = replace(case, ar=(int(value), *case.ar[1:]))
        elif name == "shards":
            case = replace(case, shards=(int(value),))
        else:
            parts = ((name, int(value)),)
            recipe = with_parts(case.recipe, parts)
            case = replace(case, recipe=recipe, measured=LayerRatios())
    return _checked(case)


def _checked(case: LlmCase) -> LlmCase:
    ar = tuple(dict.fromkeys(case.ar or _AR))
    case = replace(case, ar=ar)
    if not 2 <= case.context <= MOST_CONTEXT:
        raise UsageError(f"a context must have 2 to {MOST_CONTEXT:,} tokens, not {case.context:,}")
    if min(ar) < 1 or len(ar) > _MOST_GRAPHS:
        raise UsageError(f"set 1 to {_MOST_GRAPHS} graphs, each of at least one token")
    if max(ar) >= case.context:
        problem = f"a graph of {max(ar):,} tokens leaves no room in a context of {case.context:,}"
        raise UsageError(problem)
    layers = case.model.layers
    if case.shards and min(case.shards) < 1:
        raise UsageError("a shard must have at least one layer")
    if len(case.shards) > 1 and sum(case.shards) != layers:
        listed = " + ".join(map(str, case.shards[:20]))
        raise UsageError(
            f"{listed} add up to {sum(case.shards):,} layers, but the model has {layers:,}"
        )
    if len(case.shards) == 1 and case.shards[0] > layers:
        raise UsageError(f"{case.shards[0]:,} shards are more than the model's {layers:,} layers")
    return case


class _CheckedShards(NamedTuple):
    """Shards with their needs and process domains, and the deciding limit."""

    spans: Sequence[LayerSpan]  # of each shard
    shards: tuple[LlmShard, ...]
    placement: Placement
    fits: bool | None
    why: str


def plan_llm(case: LlmCase) -> LlmResult:
    """Return whether a decoder fits, in the fewest shards or in the requested shards."""
    best = _best(case)
    shards, model, recipe = best.shards, case.model, case.recipe
    token = rule.kv_per_token(model, recipe)
    spills = [shard.spill_fill for shard in shards]
    each = f"{case.measured.origin}: largest of all graphs"
    largest = max(shard.weights.value for shard in shards)
    ram = [_HOST_BASE + times * largest for times in _HOST_RAM]
    about_ram = f"0.2 GB plus {_HOST_RAM[0]} to {_HOST_RAM[1]} times the weights"
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
        file_bytes=_computed(sum(shard.file_bytes.value for shard in shards), "sum of the shards"),
        recipe_range=_recipe_range(case),
        kv_bytes_per_token=_computed(token, "2 x layers x KV heads x head dimension x bytes"),
        kv_bytes=_computed(token * case.context, "per token, times the context length"),
        longest_context=longest_context(case, best),
        spill_fill=_range(sum(s.low.value for s in spills), sum(s.high.value for s in spills)),
        spill_fill_shared=_range(*_largest_spill(case, best.spans), each),
        host_ram=SizeRange(_computed(ram[0], about_ram), _computed(ram[1], about_ram)),
        compile_seconds=_seconds(case, shards),
        origin=case.measured.origin,
        notes=tuple(_notes(case, best)),
    )


def llm_row(result: LlmResult, setting: dict[str, str | int]) -> LlmRow:
    """Return a result as a table row."""
    return LlmRow(
        setting=setting,
        answer=result.answer,
        shards=len(result.shards),
        domains=len(result.placement.domains),
        largest_domain=max(shard.process_domain.high.value for shard in result.shards),
        file_bytes=result.file_bytes.value,
        kv_bytes=result.kv_bytes.value,
        longest_context=result.longest_context,
        why=result.why,
    )


def longest_context(case: LlmCase, best: _CheckedShards) -> int:
    """Return the longest context that surely fits in the shards of `best`, found by bisection."""
    low, high = max(case.ar) + 1, MOST_CONTEXT + 1
    if not _check_shards(replace(case, context=low), best.spans).fits:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        fits = _check_shards(replace(case, context=middle), best.spans).fits
        low, high = (middle, high) if fits else (low, middle)
    return low


def _best(case: LlmCase) -> _CheckedShards:
    """Return the fewest shards that fit; if none fit, the shards with the smallest excess."""
    layers = case.model.layers
    if len(case.shards) > 1:
        return _check_shards(case, list(_cut(case, case.shards)))
    counts = case.shards or _counts(case)
    tried = []
    for count in counts:
        each, rest = divmod(layers, count)
        # The last shard also has the head, so the first shards take the remainder of the division.
        sizes = [each + (number < rest) for number in range(count)]
        tried.append(_check_shards(case, list(_cut(case, sizes))))
        if tried[-1].fits:
            break
    # If none is sure to fit, prefer shards that may fit, then the smallest excess.
    return min(tried, key=lambda plan: (plan.fits is not True, plan.fits is False, _excess(plan)))


def _counts(case: LlmCase) -> Iterable[int]:
    """Return the shard counts to try, from the smallest for which the weights alone fit."""
    layers, budget = case.model.layers, pd_budget().value
    limit = case.soc.compile_limit
    room = min(budget, budget if limit is None else limit.value)
    whole = rule.weights(case.model, case.recipe, LayerSpan(0, layers), case.measured)
    least = min(layers, max(1, -(-whole // room)))
    if whole > DOMAINS.value * budget:  # more shards do not help
        return (min(least, _MOST_TRIES),)
    return range(least, min(layers, least + _MOST_TRIES) + 1)


def _excess(plan: _CheckedShards) -> tuple[int, int]:
    return len(plan.placement.too_large), len(plan.placement.domains)


def _cut(case: LlmCase, sizes: Sequence[int]) -> Iterator[LayerSpan]:
    """Yield the span of layers of each shard, with a separate embedding if the recipe has one."""
    apart, first = case.recipe.apart, 0
    if apart:
        yield LayerSpan(0, 0, embedding=True)
    for number, size in enumerate(sizes):
        head = number == len(sizes) - 1
        yield LayerSpan(first, size, embedding=not (apart or first), head=head)
        first += size


def _check_shards(case: LlmCase, parts: Sequence[LayerSpan]) -> _CheckedShards:
    shards = tuple(_shard(case, part) for part in parts)
    budget = pd_budget().value
    sizes = [shard.process_domain.high.value for shard in shards]
    placement = best_order(sizes, budget)
    low = best_order([shard.process_domain.low.value for shard in shards], budget)
    limit = case.soc.compile_limit
    limits = [("process domain", "process_domain", budget)]
    limits += [("compile limit", "compile_need", limit.value)] if limit else []
    if case.recipe.bits == _FLOAT and case.soc.fp16 is False:
        why = f"floats: {case.soc.name} does not support them"
        return _CheckedShards(parts, shards, placement, False, why)
    over = [(n, s, of) for n, key, of in limits for s in shards if getattr(s, key).low.value > of]
    may = [(n, s, of) for n, key, of in limits for s in shards if getattr(s, key).high.value > of]
    if over or not low.fits:
        return _CheckedShards(parts, shards, placement, False, _why_not(over, low))
    if may or not placement.fits:
        return _CheckedShards(parts, shards, placement, None, _why_not(may, placement))
    why = _untried(case, parts)
    if why or limit is None:
        why = why or f"compile limit: unknown for {case.soc.name}"
        return _CheckedShards(parts, shards, placement, None, why)
    needs = [(n, s, getattr(s, key).high.value, of) for n, key, of in limits for s in shards]
    tight = max(needs, key=lambda need: need[2] / need[3])
    return _CheckedShards(parts, shards, placement, True, _why(*tight))


def _why(name: str, shard: LlmShard, need: int, limit: int) -> str:
    share = 100 * (limit - need) // limit
    return (
        f"{name}: {shard.name} needs at most {format_size(need)} of {format_size(limit)}, "
        f"{share} % left"
    )


def _why_not(over: Sequence[tuple[str, LlmShard, int]], where: Placement) -> str:
    if not over:
        domains = counted(len(where.domains), "process domain")
        return f"process domains: the shards need {domains}, but a process has {DOMAINS.value}"
    name, shard, limit = over[0]
    need = shard.process_domain if name == "process domain" else shard.compile_need
    return (
        f"{name}: {shard.name} needs {format_size(need.low.value)} to "
        f"{format_size(need.high.value)} of {format_size(limit)}"
    )


def _shard(case: LlmCase, part: LayerSpan) -> LlmShard:
    """Return the needs of one context: shared weights once, all other parts per graph."""
    how, graphs = case.measured, _graphs(case, part)
    weights = rule.weights(case.model, case.recipe, part, how)
    io, spills = (
        [rule.io_bytes(graph) for graph in graphs],
        [rule.spill_range(graph, how) for graph in graphs],
    )
    compile_low, compile_high, low, high = [], [], 0, 0
    # Each of several graphs in a context has a few KiB of private weights, which take a whole unit.
    own, shared = (1, weights) if len(graphs) > 1 else (weights, 0)
    for graph, inputs, spill in zip(graphs, io, spills, strict=True):
        ddr, ops = rule.ddr_range(graph, how), rule.op_range(graph, how)
        bounds = [
            _domain(graph, own, inputs, *parts) for parts in zip(ops, ddr, spill, strict=True)
        ]
        low, high = low + bounds[0][0], high + bounds[1][1]
        compile_low.append(weights + inputs + spill[0] + ddr[0])
        compile_high.append(weights + inputs + spill[1] + ddr[1])
    shared = round_up(shared, htp_constant("process_domain", "weights_unit").value)
    copies = 1 if shares_weights(case) else len(graphs)
    extra = sum(rule.file_extra(graph, how) for graph in graphs)
    origin = how.origin
    return LlmShard(
        name=part.name,
        first=part.first,
        layers=part.layers,
        embedding=part.embedding,
        head=part.head,
        file_bytes=_computed(weights + extra, origin),
        weights=_computed(weights, origin),
        io=_computed(sum(io), "each input and output rounded up to 8,192 bytes"),
        spill_fill=_range(sum(least for least, _ in spills), sum(most for _, most in spills)),
        compile_need=_range(max(compile_low), max(compile_high), COMPILE_FORMULA),
        process_domain=_range(
            shared + low, copies * shared + high, f"{PD_FORMULA}; for each graph"
        ),
    )


def _graphs(case: LlmCase, part: LayerSpan) -> list[LlmGraph]:
    vtcm = case.soc.vtcm_bytes
    size = _USUAL_VTCM if vtcm is None else vtcm.value
    return [LlmGraph(case.model, case.recipe, part, ar, case.context, size) for ar in case.ar]


def _domain(graph: LlmGraph, own: int, io: int, ops: int, ddr: int, spill: int) -> tuple[int, int]:
    """Return a graph's minimum and maximum need in a process domain, without shared weights."""
    parts = (_computed(size, "") for size in (own, io, ops, ddr, spill, graph.vtcm, graph.vtcm))
    need = graph_pd(*parts)
    if need is None:
        raise AssertionError("none")
    return need.low.value, need.high.value


def shares_weights(case: LlmCase) -> bool:
    """Return True if graphs of a context are documented to share their weights."""
    return len(case.ar) == 1 or _reaches(case.soc, "weight_sharing")


def _reaches(soc: Soc, feature: str) -> bool:
    """Return True if a SoC's Hexagon is documented to be new enough for a feature."""
    return (soc.arch or 0) >= htp_constant(feature, "arch").value


def _untried(case: LlmCase, parts: Sequence[LayerSpan]) -> str:
    """Return why sizes alone do not prove that the shards fit; empty if they do."""
    model, recipe, soc = case.model, case.recipe, case.soc
    if model.experts:
        return "experts: unknown, because no model with experts was ever compiled to check"
    if model.family not in FAMILIES:
        return f"layers: the layers of family {model.family} are unknown"
    if recipe.kv > _KV_EVERYWHERE and not _reaches(soc, "kv_16"):
        return f"KV cache: {recipe.kv} bits are documented only from v{_first('kv_16')} on"
    if recipe.block and not _reaches(soc, "block_scales"):
        return f"recipe: block scales are documented only from v{_first('block_scales')} on"
    graph = _graphs(case, parts[-1])[0]
    if graph.head_keys >= graph.vtcm:
        return (
            f"VTCM: the keys of one head take {format_size(graph.head_keys)}, but "
            f"{soc.name} has {format_size(graph.vtcm)}"
        )
    return ""


def _first(feature: str) -> int:
    return htp_constant(feature, "arch").value


def _largest_spill(case: LlmCase, parts: Sequence[LayerSpan]) -> tuple[int, int]:
    """Return the bounds of the largest spill buffer of all graphs."""
    ranges = [
        rule.spill_range(graph, case.measured) for part in parts for graph in _graphs(case, part)
    ]
    return max(least for least, _ in ranges), max(most for _, most in ranges)


def _recipe_range(case: LlmCase) -> SizeRange | None:
    """Return the size of all weights, from the smallest to the largest usual recipe."""
    recipes = usual_range(case.recipe)
    if recipes is None:
        return None
    whole = LayerSpan(0, case.model.layers, embedding=True, head=True)
    sizes = [rule.weights(case.model, recipe, whole, case.measured) for recipe in recipes]
    source = (
        "weights: the minimum has a 4-bit head and one scale per channel; "
        "the maximum has an 8-bit head, 8-bit `down` matrices and one scale per 16 values"
    )
    return _range(sizes[0], sizes[1], source)


def _seconds(case: LlmCase, shards: Sequence[LlmShard]) -> tuple[int, int]:
    megabytes = sum(shard.weights.value for shard in shards if shard.layers) / 1e6
    rates = [_SECONDS[ar > 1] for ar in case.ar]
    low, high = (sum(rate[end] for rate in rates) * megabytes for end in (0, 1))
    return round(low), round(high)


def _notes(case: LlmCase, best: _CheckedShards) -> Iterator[str]:
    yield from case.model.notes
    yield "the RAM of the device is not checked, only limits of the compiler and the DSP"
    if not shares_weights(case):
        yield (
            "weight sharing between graphs is documented only from "
            f"v{_first('weight_sharing')} on, so upper bounds count the weights {len(case.ar)} "
            "times; the files might also store them as often"
        )
    if (case.soc.arch or 0) < _OLD_ARCH:
        yield f"phones with Hexagon before v{_OLD_ARCH} were reported to reject contexts near 2 GiB"
    if len(best.placement.domains) > 1:
        domains = len(best.placement.domains)
        yield (
            f"{domains} process domains are needed, but no device has been observed with more than "
            "one"
        )
    if usual_range(case.recipe):
        yield (
            f"the recipe {case.recipe.name} was not published for this model; this is the "
            "largest uncertainty"
        )
    if case.model.max_context and case.context > case.model.max_context:
        yield f"the model supports up to {case.model.max_context:,} tokens"
    if len(case.ar) > 1:
        yield "each graph counts its own KV cache; a runtime that shares the cache needs less"
    yield (
        "exporters use more host RAM than the compiler: 50 to 150 GB are documented for 1B to "
        "8B models"
    )


def _computed(value: int, source: str) -> Sourced:
    return Sourced(value, Origin.COMPUTED, source)


def _range(
    low: int, high: int, source: str = "a range, because the value cannot be predicted exactly"
) -> SizeRange:
    return SizeRange(_computed(low, source), _computed(high, source))
