"""Benches: judge the memory of a change and prove its results.

Slow results are cached by content: the model, the question and the package version. A killed run
therefore resumes where it stopped, and a repeated question takes no time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed
from qnnmem.fix.proof import LEVELS, SAMPLES
from qnnmem.fix.proof.program import LevelGaps
from qnnmem.fix.proof.prove import Proof, Prover
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Need,
    has_floats,
    self_contained,
)
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.version import __version__

if TYPE_CHECKING:
    import onnx

    from qnnmem.cache import ResultCache

_LONGEST_PROOF_S = 3600.0
_RUNTIMES = ("onnxruntime", "onnxruntime-qnn", "onnxruntime-gpu", "onnxruntime-directml")
ChangeJudge = Callable[[Change], Need]


class CaseBench:
    """Bench that judges and proves the changes of one case; `close` ends its child process."""

    def __init__(
        self, case: FixCase, judge: ChangeJudge, memory: ResultCache | None = None
    ) -> None:
        self.case, self._judge, self._memory = case, judge, memory
        self._whole = self_contained(case.model)
        self._digest = _digest_of(self._whole)
        self._prover: Prover | None = None
        self._before: Need | None = None
        self._last: tuple[Change, Need] | None = None

    def __enter__(self) -> CaseBench:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process that compares results."""
        if self._prover is not None:
            self._prover.__exit__(None, None, None)
            self._prover = None

    def judge(self, change: Change) -> Need:
        """Return the memory that a change needs; the last answer is cached."""
        if self._last is None or self._last[0] is not change:
            self._last = (change, self._judge(change))
        return self._last[1]

    def prove(self, change: Change) -> Proof:
        """Compare the results of a change with those of the original model."""
        parts = _models(change)
        question = {**self._question(parts), "lossy": change.is_lossy}
        kept = from_builtins(Proof, self.remembered(question))
        if kept is not None:
            return kept
        proof = self._own_prover().compare(*parts, lossy=change.is_lossy)
        self.remember(question, to_builtins(proof))
        return proof

    def with_levels(self, judged: JudgedChange) -> JudgedChange:
        """Return the change with its results also compared at onnxruntime's optimisation levels."""
        if judged.proof is None or not judged.proof.identical:
            return judged
        parts = _models(judged.change)
        question = {**self._question(parts), "levels": list(LEVELS)}
        gaps = from_builtins(LevelGaps, self.remembered(question))
        if gaps is None or tuple(gap.level for gap in gaps.levels) != LEVELS:
            try:
                gaps = LevelGaps(self._own_prover().levels(*parts))
            except ChildFailed:  # onnxruntime cannot optimise one of the models
                return judged
            self.remember(question, to_builtins(gaps))
        return replace(judged, proof=replace(judged.proof, levels=gaps.levels))

    def _own_prover(self) -> Prover:
        if self._prover is None:
            self._prover = Prover(
                self._whole,
                samples=self.case.samples,
                seed=self.case.seed,
                time_limit_s=_LONGEST_PROOF_S,
            )
        return self._prover

    def _question(self, parts: Sequence[onnx.ModelProto]) -> dict[str, Any]:
        return {
            "prove": [_digest_of(part) for part in parts],
            "samples": self._samples or SAMPLES,
            "seed": self.case.seed,
            "runtime": list(runtime_words()),
        }

    @cached_property
    def _samples(self) -> list[list[list[str]]]:
        """Return the name, suffix and content digest of each of the user's sample files."""
        return [
            [[name, path.suffix, _file_digest(path)] for name, path in sample]
            for sample in self.case.samples
        ]

    def judged(self, change: Change) -> JudgedChange:
        """Return the memory that a change needs, and the proof of its results."""
        begin = monotonic()
        need = self.judge(change)
        is_same = change.model is self.case.model and change.parts is None and not change.is_lossy
        proof = None if is_same else self.prove(change)
        self._before = self._before or need  # the first change is the original model
        return JudgedChange(change, self._before, need, proof, monotonic() - begin)

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the cached answer of an earlier run, or None."""
        return None if self._memory is None else self._memory.get(self._key(what))

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Cache an answer for later runs."""
        if self._memory is not None:
            self._memory.put(self._key(what), found)

    def _key(self, what: Mapping[str, Any]) -> str:
        facts = {"model": self._digest, "version": _version(), "what": dict(what)}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _models(change: Change) -> tuple[onnx.ModelProto, ...]:
    """Return the models of a change in the order they run."""
    if change.parts is None:
        return (self_contained(change.model),)
    import onnx

    return tuple(onnx.ModelProto.FromString(blob) for blob in change.parts.models())


@cache
def _version() -> str:
    """Return the package version and a digest of the code: changed code can change answers."""
    total = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()


@cache
def runtime_words() -> tuple[str, ...]:
    """Return the processor and the runtimes' versions; comparisons of results depend on both."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = [platform.machine(), platform.processor()]
    for name in _RUNTIMES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return tuple(filter(None, found))


def _digest_of(model: onnx.ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TimeLimitedBench:
    """Wrapper that gives a bench a shorter time limit, so that later remedies still have time."""

    def __init__(self, bench: FixBench, seconds: float) -> None:
        self._bench = bench
        self.inner: FixBench = getattr(bench, "inner", bench)  # the bench of the backend
        self.case: FixCase = replace(bench.case, ends_at=monotonic() + seconds)

    def judge(self, change: Change) -> Need:
        """Return the memory that the change needs."""
        return self._bench.judge(change)

    def prove(self, change: Change) -> Proof:
        """Compare the results of the change."""
        return self._bench.prove(change)

    def judged(self, change: Change) -> JudgedChange:
        """Return the memory that the change needs, and the proof of its results."""
        return self._bench.judged(change)

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the cached answer of an earlier run, or None."""
        return self._bench.remembered(what)

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Cache an answer for later runs."""
        self._bench.remember(what, found)


class LossyBench(TimeLimitedBench):
    """Wrapper that makes a lossy change the baseline: later changes must keep its results."""

    def __init__(self, bench: FixBench, base: JudgedChange, seconds: float = 0.0) -> None:
        super().__init__(bench, seconds)
        self._base = base
        self.case = replace(self.case, model=base.change.model, options=base.change.options)

    def prove(self, change: Change) -> Proof:
        """Return a proof without differences if all results equal those of the lossy baseline."""
        found = self._bench.prove(change)
        if self._is_same(found):
            return replace(found, differing=(), largest=0.0, relative=0.0, each=(), unmeasured=())
        every = tuple(item.name for item in self.case.model.scope.graph.output)
        return replace(found, differing=found.differing or every)

    def _is_same(self, found: Proof) -> bool:
        return self._base.proof is not None and found.digest == self._base.proof.digest

    def judged(self, change: Change) -> JudgedChange:
        """Return the memory that the change needs, and its proof against the user's model."""
        base = self._base
        if change.model is base.change.model and change.parts is None:
            return replace(base, change=change, need=self.judge(change), seconds=0.0)
        return self.checked(self._bench.judged(change))

    def checked(self, judged: JudgedChange) -> JudgedChange:
        """Return the change, marked as failed if its results differ from those of the baseline.

        A change that brings floats back into an integer model also fails, because LPAI cannot run
        it.
        """
        same = judged.proof is None or self._is_same(judged.proof)
        now, before = judged.need.plan, self._base.need.plan
        if same and not (has_floats(now) and not has_floats(before)):
            return judged
        return replace(judged, change=replace(judged.change, is_lossy=False))

    def remembered(self, what: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the cached answer of an earlier run about this baseline and change, or None."""
        return super().remembered(self._about(what))

    def remember(self, what: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Cache an answer for later runs with this baseline."""
        super().remember(self._about(what), found)

    def _about(self, what: Mapping[str, Any]) -> dict[str, Any]:
        return {"on": [dict(step) for step in self._base.change.steps], "what": dict(what)}
