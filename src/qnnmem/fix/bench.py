"""Benches measure the memory that a changed model needs, and prove that its outputs are right.

Slow answers are cached under a digest of the model, the question and the package version. So a
killed run resumes where it stopped, and a repeated question takes no time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from qnnmem.errors import ChildFailed
from qnnmem.fix.proof import LEVELS, SAMPLES
from qnnmem.fix.proof.program import LevelGaps, Proof
from qnnmem.fix.proof.prove import Prover
from qnnmem.fix.remedy import (
    Change,
    FixBench,
    FixCase,
    JudgedChange,
    Need,
    has_floats,
    models_of,
    self_contained,
)
from qnnmem.htp.compile_cache import from_builtins, to_builtins
from qnnmem.version import __version__

if TYPE_CHECKING:
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
        content = self._whole.SerializeToString(deterministic=True)
        self._digest = hashlib.sha256(content).hexdigest()
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
        parts = models_of(change)
        question = {**self._question(parts), "lossy": change.is_lossy}
        proof = from_builtins(Proof, self.remembered(question))
        if proof is None:
            proof = self._own_prover().compare(*parts, lossy=change.is_lossy)
            self.remember(question, to_builtins(proof))
        return proof

    def with_levels(self, judged: JudgedChange) -> JudgedChange:
        """Extend the proof of a change to onnxruntime's optimisation levels; return the change."""
        if judged.proof is None or not judged.proof.identical:
            return judged
        parts = models_of(judged.change)
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

    def _question(self, parts: Sequence[bytes]) -> dict[str, Any]:
        return {
            "prove": [hashlib.sha256(part).hexdigest() for part in parts],
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

    def remembered(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return an earlier run's cached answer to a question; None if there is no answer."""
        return None if self._memory is None else self._memory.get(self._key(question))

    def remember(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Cache the answer to a question for later runs."""
        if self._memory is not None:
            self._memory.put(self._key(question), answer)

    def _key(self, question: Mapping[str, Any]) -> str:
        facts = {"model": self._digest, "version": _version(), "what": dict(question)}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def _version() -> str:
    """Return the package version and a digest of the code: changed code can change answers."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def runtime_words() -> tuple[str, ...]:
    """Return the processor and the versions of the runtimes, on which results can depend."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    words = [platform.machine(), platform.processor()]
    for name in _RUNTIMES:
        with suppress(PackageNotFoundError):
            words.append(f"{name} {version(name)}")
    return tuple(filter(None, words))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class TimeLimitedBench:
    """Wrapper that gives a bench a shorter time limit, which leaves time for later remedies."""

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

    def remembered(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return an earlier run's cached answer to a question; None if there is no answer."""
        return self._bench.remembered(question)

    def remember(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Cache the answer to a question for later runs."""
        self._bench.remember(question, answer)


class LossyBench(TimeLimitedBench):
    """Wrapper that makes a lossy change the baseline: later changes must keep its results."""

    def __init__(self, bench: FixBench, base: JudgedChange, seconds: float = 0.0) -> None:
        super().__init__(bench, seconds)
        self._base = base
        self.case = replace(self.case, model=base.change.model, options=base.change.options)

    def prove(self, change: Change) -> Proof:
        """Compare a change with the lossy baseline; the proof names the outputs that differ."""
        proof = self._bench.prove(change)
        if self._is_same(proof):
            return replace(proof, differing=(), largest=0.0, relative=0.0, each=(), unmeasured=())
        outputs = tuple(item.name for item in self.case.model.scope.graph.output)
        return replace(proof, differing=proof.differing or outputs)

    def _is_same(self, proof: Proof) -> bool:
        return self._base.proof is not None and proof.digest == self._base.proof.digest

    def judged(self, change: Change) -> JudgedChange:
        """Return the judged change, with its results compared with those of the user's model."""
        base = self._base
        if change.model is base.change.model and change.parts is None:
            return replace(base, change=change, need=self.judge(change), seconds=0.0)
        return self.checked(self._bench.judged(change))

    def checked(self, judged: JudgedChange) -> JudgedChange:
        """Return the change, marked as failed if its results differ from those of the baseline.

        A change that brings floats back into an integer model fails too: LPAI cannot run floats.
        """
        same = judged.proof is None or self._is_same(judged.proof)
        now, before = judged.need.plan, self._base.need.plan
        if same and not (has_floats(now) and not has_floats(before)):
            return judged
        return replace(judged, change=replace(judged.change, is_lossy=False))

    def remembered(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the cached answer of an earlier run with this baseline; None if there is none."""
        return super().remembered(self._on_baseline(question))

    def remember(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Cache the answer to a question for later runs with this baseline."""
        super().remember(self._on_baseline(question), answer)

    def _on_baseline(self, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"on": [dict(step) for step in self._base.change.steps], "what": dict(question)}
