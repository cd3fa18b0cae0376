"""One case of the contract suite: a rule, kept or broken, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from qnnmem.errors import QnnError, QnnMemError
from qnnmem.lpai.runtime.backend import Backend


class Unexpected(QnnMemError):
    """The runtime did something else than the contract promises."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A client that keeps a rule or breaks it; `run` raises `Unexpected` if that goes wrong."""

    rule: str
    title: str
    breaks: bool
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Suite:
    """Collects the cases of one topic."""

    cases: list[Case]

    def keeps(self, rule: str, title: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """A case in which the client does it right."""
        return self._add(rule, title, breaks=False)

    def breaks(self, rule: str, title: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """A case in which the client does it wrong and is told so."""
        return self._add(rule, title, breaks=True)

    def _add(
        self, rule: str, title: str, *, breaks: bool
    ) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def add(run: Callable[[], None]) -> Callable[[], None]:
            self.cases.append(Case(rule, title, breaks, run))
            return run

        return add


def check(holds: bool, sentence: str) -> None:
    """Fail the case unless something holds."""
    if not holds:
        raise Unexpected(sentence)


@contextmanager
def refused(code: int, rule: str) -> Iterator[None]:
    """What is done inside must fail with this code and name this rule."""
    try:
        yield
    except QnnError as exc:
        got = f"{exc.code} and rule {exc.finding.rule}"
        check(
            (exc.code, exc.finding.rule) == (code, rule), f"expected {code} and {rule}, got {got}"
        )
        check(
            bool(exc.finding.sentence and exc.finding.cure), "the finding does not explain itself"
        )
    else:
        raise Unexpected(f"expected {code} and rule {rule}, but the call succeeded")


@contextmanager
def noted(backend: Backend, rule: str) -> Iterator[None]:
    """What is done inside must succeed and leave a finding of this rule."""
    before = len(backend.findings)
    yield
    found = [finding.rule for finding in backend.findings[before:]]
    check(rule in found, f"expected a finding of {rule}, got {', '.join(found) or 'none'}")
