"""Fit for many SoCs with as few compiles as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from qnnmem.htp.fit.value import Fit
from qnnmem.targets.socs import Soc


def fit_all(
    targets: tuple[Soc, ...],
    judge: Callable[[Soc], Fit],
    spread: Callable[[Callable[[Soc], Fit], list[Soc]], Iterable[Fit]] = map,
) -> tuple[Fit, ...]:
    """An answer for each SoC; those alike in arch, VTCM, limit and FP16 share one compile.

    `spread` has all compiles done, in their order: one after another, or several at a time.
    """
    first: dict[object, Soc] = {}
    for soc in targets:
        first.setdefault(_alike(soc), soc)
    done = dict(zip(first, spread(judge, list(first.values())), strict=True))
    answers = []
    for soc in targets:
        found = done[_alike(soc)]
        same = found.soc == soc
        answers.append(found if same else replace(found, soc=soc, same_as=found.soc.name))
    return tuple(answers)


def _alike(soc: Soc) -> object:
    return (soc.arch, soc.vtcm_bytes and soc.vtcm_bytes.value, soc.fp16, _limit(soc))


def _limit(soc: Soc) -> int | None:
    return None if soc.compile_limit is None else soc.compile_limit.value
