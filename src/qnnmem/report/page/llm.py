"""Render a language model as a page section: shards, process domains, context lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.report.page.charts import Bar, bars, curves
from qnnmem.report.page.document import PageSection
from qnnmem.report.page.htp import domain_bars, shade_keys
from qnnmem.report.page.markup import Html, answer, lines, table, tag
from qnnmem.results.fit import answer_of
from qnnmem.results.llm import LlmResult, LlmRow, LlmShard
from qnnmem.text import counted
from qnnmem.units import format_size


def llm_section(llm: LlmResult) -> PageSection:
    """Return a section with the verdict, the deciding limit, the shards and the process domains."""
    shards, domains = len(llm.shards), len(llm.placement.domains)
    where = f"{counted(shards, 'shard')}, {counted(domains, 'process domain')}"
    body = [
        answer(llm.fits, f"{llm.context:,} tokens on {llm.soc}: {where}; {llm.why}"),
        tag("h3", "Shards"),
        tag("p", "Upper bound of each shard's need in its process domain."),
        bars([_lane(shard) for shard in llm.shards], "Shards"),
        shade_keys(("constants", "weights"), ("io", "IO"), ("scratch", "the rest")),
        tag("h3", "Process domains"),
        *_domains(llm),
        *_facts(llm),
        *_rows(llm),
        *(tag("p", note) for note in llm.notes),
        tag("p", f"{llm.recipe.name}, {llm.origin}", class_="faint"),
    ]
    return PageSection(f"Does {llm.model.name} fit", lines(body))


def _lane(shard: LlmShard) -> Bar:
    high, weights, io = shard.process_domain.high.value, shard.weights.value, shard.io.value
    pieces = [("constants", weights), ("io", io), ("scratch", max(0, high - weights - io))]
    return Bar(shard.name, pieces, origin=shard.process_domain.high.origin.value)


def _domains(llm: LlmResult) -> Iterator[Html]:
    """Yield each process domain as a bar of its shards, and the load order."""
    shards = [(shard.name, shard.process_domain.high.value) for shard in llm.shards]
    yield from domain_bars(llm.placement, shards, llm.budget)
    order = [shards[index][0] for index in llm.placement.order if index < len(shards)]
    yield tag("p", f"Load in this order: {', '.join(order)}.")


def _facts(llm: LlmResult) -> Iterator[Html]:
    rows = [
        ("KV cache of each token", llm.kv_bytes_per_token.value),
        (f"KV cache of {llm.context:,} tokens", llm.kv_bytes.value),
        ("all files", llm.file_bytes.value),
        ("spill/fill at most, with a buffer for each graph", llm.spill_fill.high.value),
        ("spill/fill at most, with one shared buffer", llm.spill_fill_shared.high.value),
        ("host RAM of the compiler, at least", llm.host_ram.low.value),
        ("host RAM of the compiler, at most", llm.host_ram.high.value),
    ]
    yield table(("what", "bytes"), rows)
    longest = f"{llm.longest_context:,} tokens" if llm.longest_context else "none"
    yield tag("p", f"Longest context that fits with these shards: {longest}.")


def _rows(llm: LlmResult) -> Iterator[Html]:
    """Yield a slider and a curve over context lengths; then tables of suggestions and settings."""
    contexts = {
        tokens: row
        for row in llm.rows
        if isinstance(tokens := row.setting.get("context"), int) and len(row.setting) == 1
    }
    if len(contexts) > 1:
        yield tag("h3", "Contexts")
        yield _slider(llm, sorted(contexts.items()))
        points = [(float(tokens), row.largest_domain) for tokens, row in sorted(contexts.items())]
        yield curves(
            [("", points)],
            "Memory needed in the fullest process domain, by context length",
            [("budget of a domain", llm.budget.value)],
            unit="tokens",
        )
    for title, rows in (("What to change", llm.changes), ("Other settings", llm.rows)):
        if rows:
            yield tag("h3", title)
            yield table(_HEAD, map(_cells, rows), "Sizes in bytes, context lengths in tokens")


def _slider(llm: LlmResult, contexts: Sequence[tuple[int, LlmRow]]) -> Html:
    """Return a slider that shows the verdict and the largest shard for each context length."""
    chosen = max((n for n, (tokens, _) in enumerate(contexts) if tokens <= llm.context), default=0)
    ends = {"min": "0", "max": str(len(contexts) - 1), "step": "1", "value": str(chosen)}
    drawn = tag("input", type="range", hidden="", aria_label="Context in tokens", **ends)
    slider = Html(drawn.removesuffix("</input>"))  # HTML's input element has no end tag
    budget = (llm.budget.value, 0, "computed", llm.budget.origin.value)
    steps = []
    for tokens, row in contexts:
        where = f"{counted(row.shards, 'shard')}, {counted(row.domains, 'process domain')}"
        size = f"{format_size(row.kv_bytes)} of KV cache; {row.why}"
        verdict = answer(answer_of(row.answer), f"{tokens:,} tokens: {where}, {size}")
        need = Bar("largest shard", [("total", row.largest_domain)], *budget)
        lane = bars([need], "Largest shard")
        steps.append(tag("div", verdict, lane, class_="step", data_value=f"{tokens:,} tokens"))
    return tag("div", slider, *steps, class_="steps")


_HEAD = (
    *("setting", "answer", "shards", "domains", "largest domain", "all files", "KV cache"),
    "longest context",
)


def _cells(row: LlmRow) -> tuple[str | int, ...]:
    setting = ", ".join(f"{name} {value}" for name, value in row.setting.items())
    counts = row.shards, row.domains
    sizes = row.largest_domain, row.file_bytes, row.kv_bytes
    return setting, row.answer.replace("-", " "), *counts, *sizes, row.longest_context
