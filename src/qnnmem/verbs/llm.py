"""Verb `llm`: check whether a language model fits, and suggest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace as with_values
from functools import partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from qnnmem.errors import CannotTell, MissingSoc, QnnMemError, Setting, UsageError, chain_words
from qnnmem.htp.carriers import is_carrier
from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile_cache import CompileCache
from qnnmem.htp.library import library_or
from qnnmem.htp.llm.compare import compare_files, exported_model
from qnnmem.htp.llm.config import read_model
from qnnmem.htp.llm.decoder_layers import write_layers
from qnnmem.htp.llm.plan import changed, llm_case, llm_row, plan_llm
from qnnmem.htp.llm.rule_check import (
    CHECKED_AT,
    DEPTHS,
    CompiledLayers,
    compile_layers,
    plain_case,
    ratios,
)
from qnnmem.htp.remote.cluster import ClusterModel
from qnnmem.htp.sweep import parse_axis
from qnnmem.htp.worker import Worker
from qnnmem.options.parsers import pair, whole_number
from qnnmem.results.footprint import Bill
from qnnmem.targets.socs import socs
from qnnmem.text import counted
from qnnmem.verbs.compiler import cluster_library, libraries_of_workers

if TYPE_CHECKING:
    from qnnmem.htp.llm.plan import LlmCase
    from qnnmem.options.htp import LlmOptions
    from qnnmem.results.llm import LlmCheck, LlmModel, LlmResult, LlmRow
    from qnnmem.verbs import VerbCall

_VARIED = ("context", "ar", "shards", "kv")
_MOST_ROWS = 1000
LayerCompiler: TypeAlias = "Callable[[Path], CompiledLayers]"


def plan_model(model: str, options: LlmOptions, call: VerbCall) -> LlmResult:
    """Return the result for a model, with the requested tables."""
    if options.soc is None and not options.all_socs:
        raise MissingSoc(model)
    is_exported = _is_exported(model)
    case = llm_case(
        _model(model, is_exported=is_exported),
        soc=options.soc or "SM8650",
        context=options.context,
        ar=options.ar,
        recipe=options.recipe,
        bits=options.bits,
        shards=options.shards,
    )
    checks: tuple[LlmCheck, ...] = ()
    if options.compile or options.check or options.exact:
        case, checks = _compiled(case, options, call)
    rows: list[LlmRow] = []
    if options.all_socs:
        known = {soc.library_name: soc for soc in socs() if soc.has_htp}
        names = sorted(soc.name for soc in known.values())
        rows += [_row(case, {"soc": name}) for name in names]
    rows += [_row(case, setting) for setting in _settings(options.vary)]
    result = plan_llm(case)
    beside = options.beside or (model if is_exported else None)
    actual = () if beside is None else compare_files(case, Path(beside))
    changes = () if result.fits else tuple(_changes(case, result))
    notes = result.notes
    if case.measured.compiled and (rows or changes):
        predicted = "table rows for another SoC or bit width are predicted by rule, not compiled"
        notes = (*notes, predicted)
    return replace(
        result, rows=tuple(rows), changes=changes, checks=checks, actual=actual, notes=notes
    )


def _is_exported(model: str) -> bool:
    """Return True if the model is a file or folder with context binaries."""
    try:
        return Path(model).exists() and is_carrier(Path(model))
    except QnnMemError:
        return False


def _model(model: str, *, is_exported: bool) -> LlmModel:
    """Return the model's sizes, from config.json, a GGUF file, its name or the exported tensors."""
    path = Path(model)
    if is_exported and not (path.is_dir() and (path / "config.json").exists()):
        return exported_model(path)
    return read_model(model)


def _compiled(
    case: LlmCase, options: LlmOptions, call: VerbCall
) -> tuple[LlmCase, tuple[LlmCheck, ...]]:
    """Compile a few layers of each graph; return `case` with measured ratios, and the checks."""
    from tempfile import TemporaryDirectory

    from qnnmem.htp.llm.rule_check import checks

    plain, more = plain_case(case), []
    if options.check:
        more.append(CHECKED_AT)
    if options.exact:
        more.append(max(request.layers for request in plan_llm(case).shards))
    # Start the longest compiles first, so that none of them runs alone at the end.
    wanted = [(ar, n) for n in sorted({*DEPTHS, *more}) for ar in case.ar]
    wanted.sort(key=lambda request: -request[0] * request[1])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(".qnnmem")))
        library, compilers = _compilers(case, options, stack, call)
        free: SimpleQueue[LayerCompiler] = SimpleQueue()
        for request in compilers:
            free.put(request)

        def bill_of(ar: int, layers: int) -> Bill:
            compiler = free.get()
            try:
                return _layers_bill(plain, ar, layers, folder, library, compiler, options, call)
            finally:
                free.put(compiler)

        pool = stack.enter_context(ThreadPoolExecutor(len(compilers)))
        jobs = [pool.submit(bill_of, *request) for request in wanted]
        try:
            bills = dict(zip(wanted, (job.result() for job in jobs), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    compared = tuple(check for depth in dict.fromkeys(more) for check in checks(case, bills, depth))
    return replace(case, measured=ratios(case, bills)), compared


def _compilers(
    case: LlmCase, options: LlmOptions, stack: ExitStack, call: VerbCall
) -> tuple[str, list[LayerCompiler]]:
    """Return the name of the library, and a compiler for each parallel compile."""
    soc, wanted = case.soc.name, CompileOptions(time_limit_s=options.time_limit)
    if options.cluster is not None:
        cluster = cluster_library(options.cluster, stack)

        def ask(path: Path) -> CompiledLayers:
            model = ClusterModel(path, cluster.executor, cluster.answers)
            return model.ask(CompiledLayers, compile_layers, soc, wanted)

        return cluster.library, [ask] * cluster.width
    first = library_or(("remove ", Setting("compile")))
    compilers: list[LayerCompiler] = []
    for library in libraries_of_workers(first, call.listener):
        for _ in range(options.jobs):
            worker = stack.enter_context(Worker.ready(library))
            share = with_values(wanted, memory_limit=worker.memory_limit // options.jobs)
            compilers.append(partial(compile_layers, worker, soc=soc, options=share))
    return first.name, compilers


def _layers_bill(
    case: LlmCase,
    ar: int,
    layers: int,
    folder: Path,
    library: str,
    compiler: LayerCompiler,
    options: LlmOptions,
    call: VerbCall,
) -> Bill:
    """Return the bill of a few layers, cached or new; raise CannotTell if compiling fails."""
    layers_words = f"{counted(layers, 'layer')} of AR-{ar}"
    call.listener.say(f"compiling {layers_words}")
    path = folder / f"ar{ar}_{layers}.onnx"
    write_layers(path, case.model, case.recipe, layers=layers, ar=ar, context=case.context)
    cache = None if options.cache is None else Path(options.cache)
    kept = CompileCache(Bill, path, library, "llm", cache)
    key = kept.key(case.soc, CompileOptions())
    bill = kept.get(key)
    if bill is None:
        compiled = compiler(path)
        if compiled.bill is None:
            raise CannotTell((f"{layers_words} cannot be compiled: ", *chain_words(compiled.why)))
        bill = compiled.bill
        kept.put(key, bill)
    path.unlink()
    return bill


def _row(case: LlmCase, setting: dict[str, str | int]) -> LlmRow:
    return llm_row(plan_llm(changed(case, setting)), setting)


def _settings(varied: Sequence[str]) -> Iterator[dict[str, str | int]]:
    """Yield every combination of the varied settings.

    The values of a range are its low end, doubled repeatedly, and its high end.
    """
    axes: dict[str, list[int]] = {}
    for text in varied:
        name, listed = pair(text, "name=1024,4096", "--vary context=1024..16384")
        if name not in _VARIED:
            known = ", ".join(_VARIED)
            raise UsageError(f"'{name[:40]}' cannot be varied; choose from {known}")
        low, dots, high = listed.partition("..")
        if dots:
            value, last = whole_number(low), whole_number(high)
            axes[name] = []
            while 1 <= value < last:
                axes[name].append(value)
                value *= 2
            axes[name].append(last)
        else:
            axes[name] = [int(number) for number in parse_axis(text).values]
    if not axes:
        return
    combined = list(product(*axes.values()))
    if len(combined) > _MOST_ROWS:
        raise UsageError(f"{len(combined):,} settings are over the limit of {_MOST_ROWS:,}")
    for values in combined:
        yield dict(zip(axes, values, strict=True))


def _changes(case: LlmCase, result: LlmResult) -> Iterator[LlmRow]:
    """Yield changed settings with computed verdicts; those that make the model fit come first."""
    recipe, layers = case.recipe, sum(shard.layers > 0 for shard in result.shards)
    settings: list[dict[str, str | int]] = []
    if case.shards:  # without a requested number of shards, all numbers were tried
        more = dict.fromkeys((layers + 1, 2 * layers))
        settings += [{"shards": count} for count in more if count <= case.model.layers]
    settings += [{"kv": 8}] if recipe.kv > 8 else []
    settings += [{"ar": ar} for ar in (64, 32, 1) if case.ar[0] > ar]
    settings += [{"head": bits} for bits in (8, 4) if recipe.head > bits]
    settings += [{"layers": bits} for bits in (8, 4) if recipe.bits > bits]
    settings += [{"embedding": 8}] if recipe.embedding > 8 else []
    if case.context // 2 > max(case.ar):
        settings += [{"context": case.context // 2}]
    settings += [{"layers": 4, "head": 4, "kv": 8, "embedding": 8}]
    rows = [_row(case, setting) for setting in settings]
    order = {"fits": 0, "cannot-tell": 1}
    yield from sorted(rows, key=lambda row: order.get(row.answer, 2))
