"""Failures on demand: the real library, made to fail for real on a small crafted input."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qnnmem.errors import CannotTell
from qnnmem.htp.compile import Compiled, CompileFailure, given_or_own, tell_nobody
from qnnmem.htp.compile.failure import say_why
from qnnmem.htp.log import CompileLog, LogLine, parse_log
from qnnmem.htp.provoke import models
from qnnmem.htp.provoke.bench import Bench, Say
from qnnmem.htp.provoke.value import Attempt, FailureKind, Provoked
from qnnmem.htp.worker import RequestOutcome, Worker
from qnnmem.qnn.codes import code_name
from qnnmem.targets.socs import MIB, Soc, pd_budget

__all__ = ["Attempt", "FailureKind", "Provoked", "provoke"]

TIME_LIMIT_S = 120.0
_LINES = 60  # of a record
_GIB = 1 << 30
_LEAST_LIMIT, _MOST_LIMIT, _LIMIT_STEP = 256 * MIB, 2048 * MIB, 16 * MIB
_WHAT_MATTERS = ("PD", "QnnGraph_finalize done", "terminate called")


def provoke(
    kind: FailureKind,
    soc: Soc,
    *,
    worker: Worker | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    say: Say | None = None,
) -> Provoked:
    """Make the library fail; the value says so too when it does not."""
    recipe = _RECIPES[kind]
    with given_or_own(worker) as used, tempfile.TemporaryDirectory(".qnnmem") as folder:
        bench = Bench(soc, used, Path(folder), time_limit_s, say or tell_nobody)
        return recipe(bench)


# --- Compiling -----------------------------------------------------------------------------------


def _graph_limit(bench: Bench) -> Provoked:
    """Inputs alone, a few MiB below the limit of one graph and then a few above."""
    limit = bench.soc.compile_limit
    if limit is None:
        raise CannotTell(f"the compile limit of {bench.soc.name} is not known")
    count = -(-limit.value // _GIB)
    fitting = limit.value // MIB // count
    tried = []
    for mib in (fitting - 1, fitting + 1):
        what = f"{count} inputs of {mib:,} MiB, limit {limit.value // MIB:,} MiB"
        model = models.sliced_inputs(count, mib)
        result = bench.compile(what, model)
        tried.append(_attempt(what, result))
        if isinstance(result, CompileFailure):
            break
    return _of_compile(FailureKind.GRAPH_LIMIT, bench, result, model, tried)


def _op_over_vtcm(bench: Bench) -> Provoked:
    """One softmax, an eighth longer than all of VTCM."""
    vtcm = bench.soc.vtcm_bytes
    if vtcm is None:
        raise CannotTell(f"the VTCM of {bench.soc.name} is not known")
    length = vtcm.value // 8 * 9
    what = f"a softmax over {length:,} bytes, VTCM {vtcm.value:,} bytes"
    model = models.wide_softmax(length)
    result = bench.compile(what, model)
    return _of_compile(FailureKind.OP_OVER_VTCM, bench, result, model, [_attempt(what, result)])


def _host_memory(bench: Bench) -> Provoked:
    """A harmless model in the most address space in which it still fails and says why.

    With less, other parts fail before the compiler does; at the very edge it may just crash.
    """
    low, high = _LEAST_LIMIT, _MOST_LIMIT
    found = _in_space(bench, low)
    tried = [found]
    while tried[0].failed and high - low > _LIMIT_STEP:
        middle = (low + high) // 2
        tried.append(_in_space(bench, middle))
        if tried[-1].failed:
            low = middle
            if tried[-1].as_expected or not found.as_expected:
                found = tried[-1]
        else:
            high = middle
    others = [one for trial in tried if trial is not found for one in trial.attempts]
    return replace(found, attempts=(*others, *found.attempts))


def _in_space(bench: Bench, limit: int) -> Provoked:
    what = f"a small convolution in {limit // MIB:,} MiB of address space"
    model = models.small_convolution()
    result = bench.compile(what, model, limit)
    return _of_compile(FailureKind.HOST_MEMORY, bench, result, model, [_attempt(what, result)])


def _of_compile(
    kind: FailureKind,
    bench: Bench,
    result: Compiled | CompileFailure,
    model: bytes,
    tried: Sequence[Attempt],
) -> Provoked:
    failed = isinstance(result, CompileFailure)
    return Provoked(
        kind,
        bench.soc,
        bench.worker.library.name,
        "compile",
        tuple(tried),
        result.sentence if isinstance(result, CompileFailure) else "it compiled",
        code=result.code if isinstance(result, CompileFailure) else None,
        log=result.log,
        lines=_lines(result.outcome, said=failed),
        log_text=bench.log_text(),
        input_name="model.onnx",
        input_bytes=model,
        seconds=result.outcome.seconds,
        peak_rss=result.outcome.peak_rss,
    )


def _attempt(what: str, result: Compiled | CompileFailure) -> Attempt:
    code = result.code if isinstance(result, CompileFailure) else 0
    return Attempt(what, result.outcome.kind, code)


# --- Loading -------------------------------------------------------------------------------------


def _pd_full(bench: Bench) -> Provoked:
    """Contexts with 1 GiB of inputs, in a file of some kilobytes, until the domain is full."""
    binary = bench.made("a model with 1 GiB of inputs", models.sliced_inputs(1, 1024))
    count = pd_budget().value // _GIB + 1
    what = f"{count} contexts of 1 GiB, budget {pd_budget().value:,} bytes"
    outcome = bench.load(what, [binary] * count)
    names = [f"context {number + 1} of {count}, 1 GiB of inputs" for number in range(count)]
    return _of_load(FailureKind.PD_FULL, bench, outcome, binary, names)


def _bad_binary(bench: Bench) -> Provoked:
    """A good binary, damaged in ways that happen: cut short, overwritten, a wrong file."""
    good = bench.made("a small convolution", models.small_convolution())
    damaged = {
        "the same, all zeros": bytes(len(good)),
        "the same with zeros over bytes 200 to 300": good[:200] + bytes(100) + good[300:],
        "the same without its last byte": good[:-1],
    }
    what = f"{len(damaged)} damaged binaries"
    outcome = bench.load(what, [good, *damaged.values()])
    names = ["a good binary", *damaged]
    return _of_load(FailureKind.BAD_BINARY, bench, outcome, good[:-1], names)


def _of_load(
    kind: FailureKind, bench: Bench, outcome: RequestOutcome, binary: bytes, names: Sequence[str]
) -> Provoked:
    codes = [item["code"] for item in outcome.reply["binaries"]] if outcome.is_done else []
    if codes:
        tried = [
            Attempt(name, "refused" if code else "done", code)
            for name, code in zip(names, codes, strict=True)
        ]
    else:
        tried = [Attempt(names[-1], outcome.kind, outcome.code)]
    log = parse_log(outcome.log)
    code = tried[-1].code or None
    return Provoked(
        kind,
        bench.soc,
        bench.worker.library.name,
        "load",
        tuple(tried),
        _loaded(bench.soc, tried[-1], outcome, log),
        code=code,
        log=log,
        lines=_lines(outcome, said=True),
        log_text=bench.log_text(),
        input_name="model.bin",
        input_bytes=binary,
        seconds=outcome.seconds,
        peak_rss=outcome.peak_rss,
    )


def _loaded(soc: Soc, last: Attempt, outcome: RequestOutcome, log: CompileLog) -> str:
    if not outcome.is_done or log.cause is not None:
        return say_why("loading", soc, outcome, log, ())
    if not last.code:
        return "it was loaded"
    return f"{last.what}: {code_name(last.code)} ({last.code})"


def _lines(outcome: RequestOutcome, *, said: bool) -> tuple[str, ...]:
    """Errors, and what tells about process domains and stages; the last ones if there are many."""
    kept = [line.text for line in outcome.log if said and _matters(line)]
    return tuple(kept[-_LINES:])


def _matters(line: LogLine) -> bool:
    return line.level == "E" or any(word in line.text for word in _WHAT_MATTERS)


_RECIPES: dict[FailureKind, Callable[[Bench], Provoked]] = {
    FailureKind.GRAPH_LIMIT: _graph_limit,
    FailureKind.OP_OVER_VTCM: _op_over_vtcm,
    FailureKind.PD_FULL: _pd_full,
    FailureKind.HOST_MEMORY: _host_memory,
    FailureKind.BAD_BINARY: _bad_binary,
}
