"""Compares the files of a deployed model with the shards expected from its sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from qnnmem.errors import LoadError, Setting
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.carriers import is_carrier
from qnnmem.htp.carriers.carrier_bill import facts_of, read_carrier
from qnnmem.htp.first_fit import best_order
from qnnmem.htp.llm import rule
from qnnmem.htp.llm.config import find_recipe, known_models
from qnnmem.htp.llm.plan import LlmCase
from qnnmem.htp.llm.rule import LayerSpan, LlmGraph
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.footprint import Bill
from qnnmem.results.llm import LlmActual, LlmModel
from qnnmem.results.place import DOMAINS
from qnnmem.targets.socs import pd_budget

_CACHE = re.compile(r"past|cache|(?:^|[_.])[kv]_in|key|value", re.IGNORECASE)
_RANK = 3  # minimum rank of a KV cache: heads, tokens, and the head dimension
_NEAR = 0.1  # share of a size by which recipes of one exporter differ


class _Binary(NamedTuple):
    name: str
    context: HtpContext
    bill: Bill


def compare_files(case: LlmCase, path: Path) -> tuple[LlmActual, ...]:
    """Return each context binary of a file or folder, with findings about it."""
    binaries, claims = _read(case, path)
    spans = list(_spans(case.model, [binary.context for binary in binaries]))
    homeless = _without_domain([binary.bill for binary in binaries])
    rows = []
    for number, (binary, span) in enumerate(zip(binaries, spans, strict=True)):
        expected = None if span is None else _expected(case, span, binary.context)
        findings = [*_findings(binary, span, expected, case), *claims.get(number, ())]
        if number in homeless:
            findings.append("no process domain has room for this file while the others are loaded")
        rows.append(
            LlmActual(
                file=binary.name,
                file_bytes=binary.context.file_bytes,
                shard="" if span is None else span.name,
                expected=expected,
                process_domain=binary.bill.process_domain,
                findings=tuple(findings),
            )
        )
    return tuple(rows)


def exported_model(path: Path) -> LlmModel:
    """Return the known model whose layers, KV caches and vocabulary match exported files.

    If several match, return the model with the nearest weights: some models of a family differ in
    nothing but width.
    """
    with read_carrier(path) as read:
        contexts = [carried.context for carried in read.contexts]
    fitting = [model for model in known_models().values() if _is_whole(model, contexts)]
    if not fitting:
        cure = ("pass a config.json as the model, and these files with ", Setting("beside"))
        raise LoadError(path, "contains no known language model", cure=cure)
    size = sum(context.file_bytes for context in contexts)
    model = min(fitting, key=lambda known: abs(math.log(max(size, 1) / _usual_size(known))))
    note = f"identified as {model.name} by the layers, KV caches, vocabulary and file sizes"
    return replace(model, notes=(*model.notes, note))


def _is_whole(model: LlmModel, contexts: Sequence[HtpContext]) -> bool:
    """Return True if the contexts hold all layers of a model, and its head."""
    spans = list(_spans(model, contexts))
    known = [span for span in spans if span is not None]
    return (
        len(known) == len(spans)
        and sum(span.layers for span in known) == model.layers
        and any(span.head for span in known)
    )


def _usual_size(model: LlmModel) -> int:
    whole = LayerSpan(0, model.layers, embedding=True, head=True)
    return rule.weights(model, find_recipe("genie-w4a16", model), whole, rule.LayerRatios())


def _read(case: LlmCase, path: Path) -> tuple[list[_Binary], dict[int, list[str]]]:
    """Return the context binaries, and findings by binary index; false claims are at index 0."""
    if not is_carrier(path):
        context = read_context(path)
        return [_Binary(path.name, context, bill_of(context, case.soc))], {}
    with read_carrier(path) as read:
        binaries = [
            _Binary(carried.payload.piece.name, carried.context, bill_of(carried.context, case.soc))
            for carried in read.contexts
        ]
        broken = facts_of(read).broken
    findings = [f"the file states {claim.claimed}, but {claim.found}" for claim in broken]
    return binaries, {0: findings} if findings else {}


def _spans(model: LlmModel, contexts: Sequence[HtpContext]) -> Iterator[LayerSpan | None]:
    """For each context, yield its layers, embedding and head; None if it has none of these.

    Also None if the contexts up to this one have more layers than the model.
    """
    first = 0
    for context in contexts:
        graph = context.graphs[0] if context.graphs else None
        layers = 0 if graph is None else _layers(model, graph)
        ends = set() if graph is None else {_last(tensor) for tensor in graph.outputs}
        starts = set() if graph is None else {_last(tensor) for tensor in graph.inputs}
        head, embedding = model.vocab in ends, model.hidden not in starts
        if not (layers or head or embedding) or first + layers > model.layers:
            yield None
            continue
        yield LayerSpan(first, layers, embedding=embedding and not first, head=head)
        first += layers


def _layers(model: LlmModel, graph: HtpGraph) -> int:
    """Return the number of layers whose KV cache is among the inputs, whole or split by head."""
    heads = 0
    for cache in _caches(model, graph):
        others = list(cache.dimensions)
        others.remove(model.head_dim)
        heads += prod(others) // max(1, *others)
    return heads // (2 * model.kv_heads)


def _caches(model: LlmModel, graph: HtpGraph) -> list[TensorInfo]:
    """Return the KV-cache inputs: by name, or by shape if no name matches."""
    shaped = [
        tensor
        for tensor in graph.inputs
        if len(tensor.dimensions) >= _RANK and model.head_dim in tensor.dimensions
    ]
    return [tensor for tensor in shaped if _CACHE.search(tensor.name)] or shaped


def _last(tensor: TensorInfo) -> int:
    return tensor.dimensions[-1] if tensor.dimensions else 0


def _expected(case: LlmCase, span: LayerSpan, context: HtpContext) -> int:
    """Return the expected file size of a shard with as many graphs as the context has."""
    graphs = (case.ar * len(context.graphs))[: len(context.graphs)]
    extra = (
        rule.file_extra(LlmGraph(case.model, case.recipe, span, ar, case.context), case.measured)
        for ar in graphs
    )
    return rule.weights(case.model, case.recipe, span, case.measured) + sum(extra)


def _findings(
    binary: _Binary, span: LayerSpan | None, expected: int | None, case: LlmCase
) -> Iterator[str]:
    graphs, shared = binary.context.graphs, binary.bill.shared_weights
    own = sum(graph.const or 0 for graph in graphs)
    if len(graphs) > 1 and not (shared and shared.value) and own:
        more = own - max(graph.const or 0 for graph in graphs)
        yield f"its {len(graphs)} graphs share no weights: up to {more:,} bytes are stored twice"
    if expected and abs(binary.context.file_bytes / expected - 1) > _NEAR:
        share = 100 * (binary.context.file_bytes / expected - 1)
        yield (
            f"the file size differs by {share:+.0f} % from the size computed for recipe "
            f"{case.recipe.name}: the file has another recipe, or stores weights twice"
        )
    if span is not None and span.layers and len(graphs) > 1:
        each = [sum(cache.nbytes for cache in _caches(case.model, graph)) for graph in graphs]
        more = sum(each) - max(each)
        if more:
            yield (
                f"{more:,} bytes of KV cache are counted more than once, because each graph "
                "has its own"
            )
    if span is None:
        yield "the file could not be matched with layers of the model"


def _without_domain(bills: Sequence[Bill]) -> set[int]:
    """Return the indexes of contexts that fit in no process domain, even in the best order."""
    needs = [0 if bill.process_domain is None else bill.process_domain.low.value for bill in bills]
    placed = best_order(needs, pd_budget().value)
    late = [number for domain in placed.domains[DOMAINS.value :] for number in domain.contexts]
    return {*placed.too_large, *late}
