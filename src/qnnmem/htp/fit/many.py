"""Fit for many SoCs with as few compiles as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qnnmem.htp.fit.value import Fit
from qnnmem.targets.socs import Soc


def fit_all(targets: tuple[Soc, ...], judge: Callable[[Soc], Fit]) -> tuple[Fit, ...]:
    """An answer for each SoC; those alike in arch, VTCM, limit and FP16 share one compile."""
    done: dict[object, Fit] = {}
    answers = []
    for soc in targets:
        alike = (soc.arch, soc.vtcm_bytes and soc.vtcm_bytes.value, soc.fp16, _limit(soc))
        if alike in done:
            first = done[alike]
            answers.append(replace(first, soc=soc, same_as=first.soc.name))
        else:
            done[alike] = judge(soc)
            answers.append(done[alike])
    return tuple(answers)


def _limit(soc: Soc) -> int | None:
    return None if soc.compile_limit is None else soc.compile_limit.value
