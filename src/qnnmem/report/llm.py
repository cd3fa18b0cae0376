"""Render the result of `qnnmem llm`: verdict, shards, KV cache, tables and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.report.table import ANSWERS, Column, size_words, text_table
from qnnmem.results.fit import answer_of
from qnnmem.results.footprint import SizeRange
from qnnmem.results.llm import LlmResult, LlmRow
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

_SHARDS = (
    Column("shard", "<"),
    *(Column(title) for title in ("file", "weights", "IO", "spill/fill", "process domain")),
    Column("in"),
)
_ROWS = (
    *(Column(title) for title in ("shards", "domains", "largest PD", "all files", "KV cache")),
    Column("longest context"),
)


def render_text(result: LlmResult, *, verbose: bool = False) -> str:
    """Render the verdict, shards, KV cache, tables and notes; names are made printable."""
    blocks = [
        [verdict(result)],
        list(_shards(result)),
        list(_facts(result, verbose)),
        list(_checks(result)),
        list(_actual(result)),
        _table("what to change", result.changes),
        _table("", result.rows),
        [f"note: {shorten(note, 300)}" for note in result.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(result: LlmResult) -> str:
    """Return one line: whether the model fits, its shards, process domains and deciding limit."""
    shards, domains = len(result.shards), len(result.placement.domains)
    where = f"{counted(shards, 'shard')} in {counted(domains, 'process domain')}"
    model = f"{shorten(result.model.name)}, {result.context:,} tokens, {result.soc}: {where}"
    return f"{ANSWERS[result.fits]}: {model}; {shorten(result.why, 300)}"


def _shards(result: LlmResult) -> Iterator[str]:
    domain = {
        index: str(number)
        for number, domain in enumerate(result.placement.domains)
        for index in domain.contexts
    }
    rows = (
        (
            shard.name,
            *(f"{size.value:,}" for size in (shard.file_bytes, shard.weights, shard.io)),
            _between(shard.spill_fill),
            _between(shard.process_domain),
            domain.get(index, "none"),
        )
        for index, shard in enumerate(result.shards)
    )
    yield from text_table(_SHARDS, rows)
    names = [result.shards[index].name for index in result.placement.order]
    if len(names) > 1:
        yield f"load in this order: {', '.join(names)}"


def _facts(result: LlmResult, verbose: bool) -> Iterator[str]:
    recipe, graphs = result.recipe, " and ".join(f"AR-{ar}" for ar in result.ar)
    graphs += " share the weights" if len(result.ar) > 1 else " only"
    token, cache = result.kv_bytes_per_token.value, result.kv_bytes.value
    yield f"KV cache: {counted(token, 'byte')} for each token, {size_words(cache)} in total"
    yield f"longest context that fits with these shards: {result.longest_context:,} tokens"
    shared = _between(result.spill_fill_shared)
    yield f"spill/fill: {_between(result.spill_fill)}; {shared} if all graphs share a buffer"
    yield f"files: {size_words(result.file_bytes.value)}, {result.origin}; {graphs}"
    if result.recipe_range is not None:
        yield f"  with other common recipes: {_between(result.recipe_range)}"
    low, high = result.compile_seconds
    yield (
        f"compiling needs {_between(result.host_ram)} of host RAM, {low:,} to {high:,} s (order of "
        "magnitude)"
    )
    wide = f", 8 bits: {', '.join(recipe.wide)}" if recipe.wide else ""
    block = f" in blocks of {recipe.block}" if recipe.block else ""
    yield (
        f"recipe {recipe.name}: layers {recipe.bits} bits{block}{wide}, embedding "
        f"{recipe.embedding}, head {recipe.head}, KV {recipe.kv}"
    )
    if verbose:
        yield f"  source: {recipe.source}"
        yield f"model: {shorten(result.model.source)}, {result.model.layers:,} layers"
        budget = result.budget
        yield f"budget of a process domain: {counted(budget.value, 'byte')}, {budget.origin.value}"


def _actual(result: LlmResult) -> Iterator[str]:
    """Yield a line for each exported file: its shard, its size, and the expected size."""
    for file in result.actual:
        expected = "" if file.expected is None else f", expected {file.expected:,}"
        size = counted(file.file_bytes, "byte")
        yield f"{shorten(file.file)}: {file.shard or 'no shard'}, {size}{expected}"
        yield from (f"  {shorten(finding, 300)}" for finding in file.findings)


def _checks(result: LlmResult) -> Iterator[str]:
    """Yield a table of compiles that check the prediction: expected size, measured size, error."""
    if result.checks:
        head = ("compiled", "what", "expected", "measured", "error")
        columns = [Column(title, ">" if index > 1 else "<") for index, title in enumerate(head)]
        rows = (
            (
                f"AR-{check.ar}, {counted(check.layers, 'layer')}",
                check.what,
                f"{check.expected:,}",
                f"{check.measured:,}",
                f"{100 * (check.expected / check.measured - 1):+.2f} %" if check.measured else "-",
            )
            for check in result.checks
        )
        yield from text_table(columns, rows)


def _table(title: str, rows: Sequence[LlmRow]) -> list[str]:
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row.setting))
    shown = names if len({tuple(row.setting) for row in rows}) == 1 else []
    head = [Column(name, "<") for name in shown] or [Column("setting", "<")]
    cells = (
        (
            *(
                [str(row.setting[name]) for name in shown]
                or [" ".join(f"{name}={value}" for name, value in row.setting.items())]
            ),
            ANSWERS[answer_of(row.answer)],
            f"{row.shards:,}",
            f"{row.domains:,}",
            *(format_size(s) for s in (row.largest_domain, row.file_bytes, row.kv_bytes)),
            f"{row.longest_context:,}",
        )
        for row in rows
    )
    table = list(text_table((*head, Column("answer", "<"), *_ROWS), cells))
    return [f"{title}:", *table] if title else table


def _between(sizes: SizeRange) -> str:
    low, high = format_size(sizes.low.value), format_size(sizes.high.value)
    return low if low == high else f"{low} to {high}"
