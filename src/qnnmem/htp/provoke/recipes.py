"""The recipes of failures: what is compiled or loaded until the library fails."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from qnnmem.errors import CannotTell, Words
from qnnmem.htp.bill.loading import Loaded
from qnnmem.htp.compile import Compiled, CompileFailure
from qnnmem.htp.compile.failure import say_why
from qnnmem.htp.provoke import models
from qnnmem.htp.provoke.logged_library import LoggedLibrary, kept_lines
from qnnmem.htp.provoke.provoked import FailureKind, Provoked, record_of
from qnnmem.qnn.codes import code_name
from qnnmem.results.provoked import Attempt
from qnnmem.targets.socs import MIB, Soc, pd_budget

_GIB = 1 << 30
_LEAST_LIMIT, _MOST_LIMIT, _LIMIT_STEP = 256 * MIB, 2048 * MIB, 16 * MIB


def graph_limit(library: LoggedLibrary) -> Provoked:
    """Inputs alone, a few MiB below the limit of one graph and then a few above."""
    limit = library.soc.compile_limit
    if limit is None:
        raise CannotTell(f"the compile limit of {library.soc.name} is not known")
    count = -(-limit.value // _GIB)
    fitting = limit.value // MIB // count
    tried = []
    for mib in (fitting - 1, fitting + 1):
        what = f"{count} inputs of {mib:,} MiB, limit {limit.value // MIB:,} MiB"
        model = models.sliced_inputs(count, mib)
        result = library.compile(what, model)
        tried.append(_attempt(what, result))
        if isinstance(result, CompileFailure):
            break
    return _of_compile(FailureKind.GRAPH_LIMIT, library, result, model, tried)


def op_over_vtcm(library: LoggedLibrary) -> Provoked:
    """One softmax, an eighth longer than all of VTCM."""
    vtcm = library.soc.vtcm_bytes
    if vtcm is None:
        raise CannotTell(f"the VTCM of {library.soc.name} is not known")
    length = vtcm.value // 8 * 9
    what = f"a softmax over {length:,} bytes, VTCM {vtcm.value:,} bytes"
    model = models.wide_softmax(length)
    result = library.compile(what, model)
    return _of_compile(FailureKind.OP_OVER_VTCM, library, result, model, [_attempt(what, result)])


def host_memory(library: LoggedLibrary) -> Provoked:
    """A harmless model in the most address space in which it still fails and says why.

    With less, other parts fail before the compiler does; at the very edge it may just crash.
    """
    low, high = _LEAST_LIMIT, _MOST_LIMIT
    found = _in_space(library, low)
    tried = [found]
    while tried[0].record.failed and high - low > _LIMIT_STEP:
        middle = (low + high) // 2
        tried.append(_in_space(library, middle))
        if tried[-1].record.failed:
            low = middle
            if tried[-1].record.as_expected or not found.record.as_expected:
                found = tried[-1]
        else:
            high = middle
    others = [one for trial in tried if trial is not found for one in trial.record.attempts]
    record = replace(found.record, attempts=(*others, *found.record.attempts))
    return found._replace(record=record)


def _in_space(library: LoggedLibrary, limit: int) -> Provoked:
    what = f"a small convolution in {limit // MIB:,} MiB of address space"
    model = models.small_convolution()
    result = library.compile(what, model, limit)
    return _of_compile(FailureKind.HOST_MEMORY, library, result, model, [_attempt(what, result)])


def _of_compile(
    kind: FailureKind,
    library: LoggedLibrary,
    result: Compiled | CompileFailure,
    model: bytes,
    tried: Sequence[Attempt],
) -> Provoked:
    failed = isinstance(result, CompileFailure)
    record = record_of(
        kind,
        library.soc,
        library.name,
        "compile",
        tried,
        result.why if isinstance(result, CompileFailure) else "it compiled",
        input_name="model.onnx",
        code=result.code if isinstance(result, CompileFailure) else None,
        log=result.log,
        lines=kept_lines(result.outcome, said=failed),
        seconds=result.outcome.seconds,
        peak_rss=result.outcome.peak_rss,
    )
    return Provoked(record, library.log_text(), model)


def _attempt(what: str, result: Compiled | CompileFailure) -> Attempt:
    code = result.code if isinstance(result, CompileFailure) else 0
    return Attempt(what, result.outcome.kind, code)


def pd_full(library: LoggedLibrary) -> Provoked:
    """Contexts with 1 GiB of inputs, in a file of some kilobytes, until the domain is full."""
    binary = library.made("a model with 1 GiB of inputs", models.sliced_inputs(1, 1024))
    count = pd_budget().value // _GIB + 1
    what = f"{count} contexts of 1 GiB, budget {pd_budget().value:,} bytes"
    loaded = library.load(what, [binary] * count)
    names = [f"context {number + 1} of {count}, 1 GiB of inputs" for number in range(count)]
    return _of_load(FailureKind.PD_FULL, library, loaded, binary, names)


def bad_binary(library: LoggedLibrary) -> Provoked:
    """A good binary, damaged in ways that happen: cut short, overwritten, a wrong file."""
    good = library.made("a small convolution", models.small_convolution())
    damaged = {
        "the same, all zeros": bytes(len(good)),
        "the same with zeros over bytes 200 to 300": good[:200] + bytes(100) + good[300:],
        "the same without its last byte": good[:-1],
    }
    what = f"{len(damaged)} damaged binaries"
    loaded = library.load(what, [good, *damaged.values()])
    names = ["a good binary", *damaged]
    return _of_load(FailureKind.BAD_BINARY, library, loaded, good[:-1], names)


def _of_load(
    kind: FailureKind,
    library: LoggedLibrary,
    loaded: Loaded,
    binary: bytes,
    names: Sequence[str],
) -> Provoked:
    outcome = loaded.outcome
    if loaded.codes:
        tried = [
            Attempt(name, "refused" if code else "done", code)
            for name, code in zip(names, loaded.codes, strict=True)
        ]
    else:
        tried = [Attempt(names[-1], outcome.kind, outcome.code)]
    record = record_of(
        kind,
        library.soc,
        library.name,
        "load",
        tried,
        _why(library.soc, tried[-1], loaded),
        input_name="model.bin",
        code=tried[-1].code or None,
        log=loaded.log,
        lines=kept_lines(outcome, said=True),
        seconds=outcome.seconds,
        peak_rss=outcome.peak_rss,
    )
    return Provoked(record, library.log_text(), binary)


def _why(soc: Soc, last: Attempt, loaded: Loaded) -> Words:
    if not loaded.outcome.is_done or loaded.log.cause is not None:
        return say_why("loading", soc, loaded.outcome, loaded.log, ())
    if not last.code:
        return "it was loaded"
    return f"{last.what}: {code_name(last.code)} ({last.code})"
