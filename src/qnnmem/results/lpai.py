"""Results about the LPAI contract: rules, choices where documents are silent, self-test."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from qnnmem.results.result import Count, Result, describe


class RuleCode(Struct, frozen=True):
    """A QNN code and its name."""

    code: Annotated[int, describe("Error code as a number.")]
    name: Annotated[str, describe("Name of the code in QNN.")]


class Rule(Struct, frozen=True, kw_only=True):
    """A rule for clients, and the named error codes that report a violation."""

    id: Annotated[str, describe("Id used in messages.")]
    title: Annotated[str, describe("The rule.")]
    consequence: Annotated[str, describe("What public sources state about a violation.")]
    named_codes: Annotated[
        tuple[RuleCode, ...],
        describe("QNN codes that this runtime returns; empty if it reports a finding instead."),
    ] = field(name="codes")
    mark: Annotated[
        str,
        Meta(pattern="^[DPIC]$"),
        describe(
            "Basis of the rule: D (documented), P (seen in public client code), I (inferred) or C "
            "(qnnmem's choice)."
        ),
    ]
    source: Annotated[str, describe("Source of the rule.")]
    cure: Annotated[str, describe("What to do about a violation.")]

    @property
    def codes(self) -> tuple[int, ...]:
        """The numbers of the codes."""
        return tuple(code.code for code in self.named_codes)


class RulesResult(Result, frozen=True, kw_only=True, tag="qnnmem.lpai-rules/1"):
    """Rules of the LPAI memory contract, as `qnnmem lpai rules --json` prints them."""

    rules: Annotated[tuple[Rule, ...], describe("The rules.")]


class Choice(Struct, frozen=True):
    """A question that public material leaves open, and qnnmem's decision."""

    id: Annotated[str, describe("Name of the choice.")]
    section: Annotated[str, describe("Topic of the choice.")]
    what: Annotated[str, describe("Behaviour of this runtime.")]
    why: Annotated[str, describe("Why.")]
    override: Annotated[
        str, describe("How to change the behaviour; `none` if that is not possible.")
    ]


class ChoicesResult(Result, frozen=True, kw_only=True, tag="qnnmem.lpai-choices/1"):
    """Decisions of the LPAI runtime where public material specifies nothing."""

    choices: Annotated[tuple[Choice, ...], describe("The choices, grouped by section.")]


class CaseFailure(Struct, frozen=True):
    """A self-test case whose outcome differs from the contract."""

    title: Annotated[str, describe("What the case does.")]
    reason: Annotated[str, describe("How the case failed.")]


class RuleResult(Struct, frozen=True, kw_only=True):
    """The outcome of the self-test cases of one rule."""

    rule: Annotated[str, describe("Id of the rule.")]
    title: Annotated[str, describe("The rule.")]
    keeping: Annotated[Count, describe("Cases in which the client keeps the rule.")]
    breaking: Annotated[Count, describe("Cases in which the client breaks the rule.")]
    failures: Annotated[tuple[CaseFailure, ...], describe("Cases that failed.")]
    as_expected: Annotated[bool, describe("Whether every case passed.")]


class SelftestResult(Result, frozen=True, kw_only=True, tag="qnnmem.lpai-selftest/1"):
    """The outcome of the contract test suite for each rule."""

    rules: Annotated[tuple[RuleResult, ...], describe("Rules that have cases.")]
