"""Benches around another: with less time, or for what stands on a change that loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from qnnmem.fix.proof.prove import Proof
from qnnmem.fix.remedy import Change, FixBench, FixCase, JudgedChange, Need, has_floats


class HurriedBench:
    """A bench with less time, so that some is left for what comes after."""

    def __init__(self, bench: FixBench, seconds: float) -> None:
        self._bench = bench
        self.inner: FixBench = getattr(bench, "inner", bench)  # that of the backend
        self.case: FixCase = replace(bench.case, ends_at=monotonic() + seconds)

    def judge(self, change: Change) -> Need:
        """What it needs."""
        return self._bench.judge(change)

    def prove(self, change: Change) -> Proof:
        """How its results compare."""
        return self._bench.prove(change)

    def judged(self, change: Change) -> JudgedChange:
        """Both."""
        return self._bench.judged(change)

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What an earlier run found."""
        return self._bench.remembered(what)

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keep an answer."""
        self._bench.remember(what, found)


class LossyBench(HurriedBench):
    """A bench on which a change that loses is the model as it is: nothing more may be lost."""

    def __init__(self, bench: FixBench, base: JudgedChange, seconds: float = 0.0) -> None:
        super().__init__(bench, seconds)
        self._base = base
        self.case = replace(self.case, model=base.change.model, options=base.change.options)

    def prove(self, change: Change) -> Proof:
        """Compare with the change that loses, by digests of all results."""
        found = self._bench.prove(change)
        if self._is_same(found):
            return replace(found, differing=(), largest=0.0, relative=0.0, each=(), unmeasured=())
        every = tuple(item.name for item in self.case.model.scope.graph.output)
        return replace(found, differing=found.differing or every)

    def _is_same(self, found: Proof) -> bool:
        return self._base.proof is not None and found.digest == self._base.proof.digest

    def judged(self, change: Change) -> JudgedChange:
        """What it needs, and how far it is from the model of the user."""
        base = self._base
        if change.model is base.change.model and change.parts is None:
            return replace(base, change=change, need=self.judge(change), seconds=0.0)
        return self.checked(self._bench.judged(change))

    def checked(self, judged: JudgedChange) -> JudgedChange:
        """The same; what gives other results was to lose nothing and does not count.

        Neither does what computes in floats again where everything was integers: LPAI cannot.
        """
        same = judged.proof is None or self._is_same(judged.proof)
        now, before = judged.need.plan, self._base.need.plan
        if same and not (has_floats(now) and not has_floats(before)):
            return judged
        return replace(judged, change=replace(judged.change, is_lossy=False))

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What an earlier run found for this question about this change."""
        return super().remembered(self._about(what))

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Keep an answer."""
        super().remember(self._about(what), found)

    def _about(self, what: Mapping[str, Any]) -> dict[str, Any]:
        return {"on": [dict(step) for step in self._base.change.steps], "what": dict(what)}
