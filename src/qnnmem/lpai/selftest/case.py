"""One case of the contract suite: a rule, kept or broken, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Self

from qnnmem.contract.leaks import separate
from qnnmem.errors import QnnError, QnnMemError
from qnnmem.lpai.selftest.client import Client, is_all

WAIT_S = 10.0
FINDING = ()  # instead of codes: the call succeeds and leaves a finding

Steps = Callable[["Trial"], object]


@dataclass(frozen=True, slots=True)
class ContractCase:
    """A client that keeps a rule, or breaks it and is told so with one of `codes`."""

    rule: str
    title: str
    breaks: bool
    codes: tuple[int, ...]
    steps: Steps

    def run(self) -> str:
        """What went otherwise than the contract promises; empty if nothing did."""
        trial = Trial(self.rule, self.codes)
        try:
            with separate():  # what a case leaves behind is part of the case
                self.steps(trial)
        except QnnMemError as exc:
            trial.problems.append(str(exc))
        except Exception as exc:  # any other exception is itself a broken promise of the runtime
            trial.problems.append(f"{type(exc).__name__} instead of a code: {exc!s:.200}")
        for code in sorted(set(self.codes) - trial.seen):
            trial.problems.append(f"no call was refused with {code}")
        return trial.problems[0] if trial.problems else ""


def keeps(rule: str, title: str, steps: Steps) -> ContractCase:
    """A case in which the client does it right."""
    return ContractCase(rule, title, False, (), steps)


def breaks(rule: str, title: str, codes: int | tuple[int, ...], steps: Steps) -> ContractCase:
    """A case in which the client does it wrong and is told so."""
    return ContractCase(rule, title, True, (codes,) if isinstance(codes, int) else codes, steps)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a case: what it expects, and what went otherwise."""

    rule: str
    codes: tuple[int, ...] = ()
    problems: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def client(self, graph: str = "counter", **settings: Any) -> TrialClient:
        """A client whose expectations count for this trial."""
        client = TrialClient(graph, **settings)
        client.trial = self
        return client

    def check(self, holds: bool, otherwise: str) -> Trial:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(otherwise)
        return self

    def refused(self, call: Callable[..., object], *given: Any, **named: Any) -> Trial:
        """The call must fail with a code of the case, name its rule and explain itself.

        With several codes, `code` says which one.
        """
        wanted = named.pop("code", self.codes[0])
        expected = f"expected {wanted} and rule {self.rule}"
        try:
            call(*given, **named)
        except QnnError as exc:
            self.seen.add(exc.code)
            got = (exc.code, exc.finding.rule)
            self.check(got == (wanted, self.rule), f"{expected}, got {got[0]} and {got[1]}")
            clear = bool(exc.finding.sentence and exc.finding.cure)
            self.check(clear, "the finding does not explain itself")
        else:
            self.problems.append(f"{expected}, but the call succeeded")
        return self


class TrialClient(Client):
    """A client with expectations; every one gives the client back, so that steps are a chain."""

    trial: Trial

    def gives(self, wanted: int, given: int = 1) -> Self:
        """The graph must work: `wanted` everywhere for an input that is `given` everywhere."""
        self.trial.check(is_all(self.run(given), wanted), f"the result is not {wanted}")
        return self

    def refused(self, call: Callable[[Client], object], code: int | None = None) -> Self:
        """The call must be refused."""
        self.trial.refused(call, self, code=code or self.trial.codes[0])
        return self

    def noted(self, call: Callable[[Client], object]) -> Self:
        """The call must succeed and leave a finding of the rule."""
        before = len(self.rules)
        call(self)
        found, rule = self.rules[before:], self.trial.rule
        self.trial.check(
            rule in found, f"expected a finding of {rule}, got {', '.join(found) or 'none'}"
        )
        return self

    def holds(self, test: Callable[[Client], bool], otherwise: str) -> Self:
        """Something must hold."""
        self.trial.check(test(self), otherwise)
        return self

    def no_findings(self) -> Self:
        """Nothing may have been found so far."""
        self.trial.check(not self.rules, f"findings: {', '.join(self.rules)}")
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the queue's worker in a notification, so that what follows stays queued."""
        told, go = Event(), Event()

        def hold(_code: int) -> None:
            told.set()
            go.wait(WAIT_S)

        self.graph.execute_async(notify=hold)
        self.trial.check(told.wait(WAIT_S), "the execution never ended")
        try:
            yield
        finally:
            go.set()
            self.finish()
