"""Recipes that make loading fail: a full process domain, damaged binaries."""

from __future__ import annotations

from collections.abc import Sequence

from qnnmem.errors import Words
from qnnmem.htp.bill.loading import Loaded
from qnnmem.htp.compile.failure import say_why
from qnnmem.htp.provoke import models
from qnnmem.htp.provoke.logged_library import LoggedLibrary, kept_lines
from qnnmem.htp.provoke.provoked import FailureKind, Provoked
from qnnmem.qnn.codes import code_name
from qnnmem.results.provoked import Attempt
from qnnmem.targets.socs import Soc, pd_budget

_GIB = 1 << 30


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
    return Provoked(
        kind,
        library.soc,
        library.name,
        "load",
        tuple(tried),
        _why(library.soc, tried[-1], loaded),
        code=tried[-1].code or None,
        log=loaded.log,
        lines=kept_lines(outcome, said=True),
        log_text=library.log_text(),
        input_name="model.bin",
        input_bytes=binary,
        seconds=outcome.seconds,
        peak_rss=outcome.peak_rss,
    )


def _why(soc: Soc, last: Attempt, loaded: Loaded) -> Words:
    if not loaded.outcome.is_done or loaded.log.cause is not None:
        return say_why("loading", soc, loaded.outcome, loaded.log, ())
    if not last.code:
        return "it was loaded"
    return f"{last.what}: {code_name(last.code)} ({last.code})"
