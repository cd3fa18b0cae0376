from __future__ import annotations

import json
from typing import Any

import pytest

from qnnmem.errors import UsageError
from qnnmem.gate.comparison import Tolerance, WhatCounts, compare_results, parse_tolerance
from qnnmem.report import diff as report
from qnnmem.report.page.sections import section_of
from qnnmem.results.diff import DiffResult
from qnnmem.results.schema import encode
from qnnmem.workbench.show import comparison


def number(size: int) -> dict[str, Any]:
    """Return a size in the form of results."""
    return {"bytes": size, "origin": "computed", "source": "here"}


def plan(scratch: int = 100, name: str = "a.onnx", **more: Any) -> dict[str, Any]:
    """Return the compared part of a plan's JSON."""
    buffers = more.pop("buffers", {"x": scratch})
    return {
        "schema": "qnnmem.plan/1",
        "tool": "",
        "input": name,
        "scratch_bytes": scratch,
        "persistent_bytes": 0,
        "io_bytes": 0,
        "constant_bytes": 7,
        "lower_bound_bytes": scratch,
        "optimal": True,
        "align_bytes": 64,
        "io": "inside",
        "buffers": [
            {
                **{"name": name, "pool": "scratch", "size_bytes": size},
                **{"lower": 0, "upper": 1, "offset_bytes": 0},
            }
            for name, size in buffers.items()
        ],
    } | more


def tcm(need: int, *, fits: bool = True) -> dict[str, Any]:
    """Return the TCM part of a plan."""
    pool = {"limit_bytes": 2_035_712, "buffers": 3, "max_buffers": 32}
    return {"fits": fits, "need_bytes": need, **pool}


def budget(fits: bool | None, have: int = 9) -> dict[str, Any]:
    """Return a budget for scratch."""
    sizes = {"need_bytes": 9, "at_least_bytes": 9, "have_bytes": have}
    return {"pool": "scratch", "fits": fits, **sizes}


def plans(*found: dict[str, Any], refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return plans of several files."""
    left = [{"input": name, "sentence": f"{name} is empty"} for name in refused]
    return {"schema": "qnnmem.plans/1", "plans": list(found), "refused": left}


def fit(answer: str, soc: str = "SM8650", pd: int = 10, file: str = "a.bin") -> dict[str, Any]:
    """Return the JSON of a fit."""
    check = {"pool": "pd", "fits": answer == "fits", "need_high": number(pd)}
    one = {"soc": soc, "answer": answer, "checks": [check], "parts": {"weights": number(5)}}
    return {"schema": "qnnmem.fit/1", "file": file, "socs": [one]}


def incident(cause: str, missing: int | None = None) -> dict[str, Any]:
    """Return an incident of the doctor."""
    return {
        **{"stage": "graph", "cause": cause, "cause_meaning": "too large", "verdict": "cause"},
        **{"is_memory": True, "confidence": "high", "entry": None, "title": "", "remedies": []},
        **{"collect_next": [], "candidates": [], "file": "run.log", "first_line": 1},
        **{"last_line": 1, "last_file": "run.log", "process": None, "producer": None, "count": 1},
        **{"evidence": [], "quantities": {}, "shortage_bytes": missing},
    }


def doctor(*incidents: dict[str, Any]) -> dict[str, Any]:
    """Return a diagnosis."""
    return {"schema": "qnnmem.doctor/1", "incidents": list(incidents), "files": ["run.log"]}


def sizes(found: DiffResult) -> dict[str, tuple[int | None, int | None]]:
    """Return the pools of the first subject."""
    return {one.pool: (one.before_bytes, one.after_bytes) for one in found.subjects[0].pools}


def test_a_pool_that_grew_is_worse_and_one_that_shrank_is_not() -> None:
    """A grown pool is worse; a shrunk pool is better and named."""
    assert compare_results(plan(100), plan(101)).worse
    better = compare_results(plan(101), plan(100))
    assert not better.worse
    assert better.changed
    assert sizes(better)["scratch"] == (101, 100)
    assert "scratch 1 byte less" in better.verdict


def test_a_loss_beside_a_larger_gain_is_mixed() -> None:
    """A loss beside a larger gain is `mixed`, lists both with their total, and fails."""
    old, new = plan(1000, constant_bytes=100), plan(580, constant_bytes=660, persistent_bytes=7)
    found = compare_results(old, new)
    assert found.worse
    assert found.verdict == (
        "mixed: scratch 420 bytes less (-42.0 %), but constants 560 bytes more (+560.0 %), "
        "persistent 7 bytes more; all pools together 147 bytes more (+13.4 %)"
    )
    gain = compare_results(plan(1000, constant_bytes=100), plan(580, constant_bytes=101))
    assert gain.verdict == (
        "mixed: scratch 420 bytes less (-42.0 %), but constants 1 byte more (+1.0 %); "
        "all pools together 419 bytes less (-38.1 %)"
    )


def test_a_verdict_that_turned_is_said_as_what_it_was_and_is() -> None:
    """A verdict that changes from `does not fit` to `fits` is better."""
    old, new = (plan(tcm=tcm(9, fits=fits)) for fits in (False, True))
    said = "TCM changed from 'does not fit' to 'fits'"
    assert compare_results(old, new).verdict == f"better: {said}"
    assert said in report.render_text(compare_results(old, new))


def test_the_same_twice_is_no_change() -> None:
    """Equal results are unchanged and not worse."""
    found = compare_results(plan(), plan(name="elsewhere/b.onnx"))
    assert not found.worse
    assert not found.changed
    assert found.verdict.startswith("unchanged")


def test_tensors_are_told_apart_by_what_became_of_them() -> None:
    """Tensors are listed as appeared, vanished, grown, shrunk or moved, largest change first."""
    old = plan(buffers={"gone": 5, "grew": 10, "less": 9, "same": 3, "moved": 4})
    new = plan(buffers={"new": 1, "grew": 30, "less": 8, "same": 3, "moved": 4})
    new["buffers"][-1]["pool"] = "io"
    found = compare_results(old, new).subjects[0].tensors
    assert [(one.name, one.change) for one in found] == [
        ("grew", "grew"),
        ("gone", "vanished"),
        ("less", "shrank"),
        ("new", "appeared"),
        ("moved", "moved"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [(True, False, True), (True, None, True), (None, False, True), (False, True, False)],
)
def test_a_budget_that_turned(before: bool | None, after: bool | None, worse: bool) -> None:
    """A budget that changes from yes to no or to unknown is worse."""
    old, new = (plan(fits=fits, budgets=[budget(fits)]) for fits in (before, after))
    found = compare_results(old, new)
    assert found.worse is worse
    turned = {one.question for one in found.subjects[0].verdicts}
    assert turned == {"all budgets", "budget of scratch"}


def test_a_question_that_only_one_side_asked_is_said_and_is_not_worse() -> None:
    """A budget that only one side has is listed and not worse."""
    asked = plan(fits=False, budgets=[budget(False)])
    for old, new in ((plan(), asked), (asked, plan())):
        found = compare_results(old, new)
        assert not found.worse
        assert "no verdict differs" not in found.verdict
        (limit,) = found.subjects[0].limits
        assert (limit.name, {limit.before_bytes, limit.after_bytes}) == (
            "budget of scratch",
            {None, 9},
        )
    said = "budget of scratch changed from 'not asked' to 'does not fit'"
    assert said in compare_results(plan(), asked).verdict
    assert "budget of scratch: none, now 9" in report.render_text(compare_results(plan(), asked))


def test_a_budget_that_differs_is_listed_where_both_hold() -> None:
    """A changed budget is listed even if both sides fit."""
    old, new = (plan(fits=True, budgets=[budget(True, have)]) for have in (500, 400))
    found = compare_results(old, new)
    assert found.verdict == "changed: budget of scratch: 500, now 400"
    assert "| budget of scratch | 500 | 400 |" in report.render_markdown(found)


def bill(low: int, high: int) -> dict[str, Any]:
    """Return a bill whose process domain lies between two bounds."""
    domain = {"low": number(low), "high": number(high)}
    return {
        "schema": "qnnmem.footprint/1",
        "file": "a",
        "parts": {},
        "process_domain": domain,
        "process_domain_budget": number(1 << 30),
    }


@pytest.mark.parametrize(("old", "new"), [((1000, 1000), (10, 1002)), ((10, 1002), (900, 900))])
def test_an_exact_number_and_a_bound_are_not_compared(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    """An exact number and an upper bound are not comparable, and the reason is given."""
    found = compare_results(bill(*old), bill(*new))
    assert not found.worse
    assert found.verdict == "changed: process domain is not comparable"
    text = report.render_text(found)
    assert "not comparable: process domain" in text
    assert "%" not in text
    assert compare_results(bill(10, 1000), bill(10, 1002)).worse  # two bounds are comparable


def swept(need: int, **more: int) -> dict[str, Any]:
    """Return a sweep of one setting."""
    row = {"setting": {"batch": 1}, "state": "over", "pd_need": need} | more
    return {"schema": "qnnmem.sweep/1", "file": "a", "soc": "SM8650", "rows": [row]}


def test_a_sweep_says_which_need_is_a_bound() -> None:
    """A need with a lower `pd_low` is a bound; without `pd_low` it is exact."""
    bound, exact, old = swept(1002, pd_low=10), swept(1000, pd_low=1000), swept(1000)
    assert not compare_results(exact, bound).worse
    assert compare_results(exact, bound).subjects[0].pools[0].bound == "after"
    assert compare_results(old, swept(1001, pd_low=1001)).worse


def test_pages_say_what_differs_and_what_cannot_be_compared() -> None:
    """The report page and the workbench show the same differences."""
    for old, new, said in (
        (bill(10, 1002), bill(900, 900), "not comparable: process domain is only an upper bound"),
        (
            plan(fits=True, budgets=[budget(True, 500)]),
            plan(fits=True, budgets=[budget(True, 499)]),
            '<td>budget of scratch</td><td class="number">500</td><td class="number">499</td>',
        ),
        (plan(), plan(align_bytes=128), "<td>alignment</td><td>64</td><td>128</td>"),
        (plan(), plan(scratch=107), '<span class="bad">+7.0%</span>'),
    ):
        result = json.loads(encode(compare_results(old, new, names=("a", "b"))))
        assert said in section_of(result, "d.json").body
        assert said in comparison(old, new, ("a", "b"))


def test_a_plan_and_a_finished_binary_count_other_things() -> None:
    """TCM and constants of a plan and of a finished binary are not comparable."""
    held = tcm(20096)
    pools = {"scratch": 100, "persistent": 0, "constants": 38}
    graph = {"name": "a", "pools": pools, "buffers": [], "align": 64, "io": "inside", "tcm": held}
    binary = {"schema": "qnnmem.inspect/1", "graphs": [graph]}
    planned = plan(tcm=tcm(576), buffers={})
    found = compare_results(planned, binary)
    assert not found.worse
    words = "changed: constants is not comparable, tcm is not comparable"
    assert found.verdict == words
    assert "pool tcm counts constants and IO before and the finished binary" in report.render_text(
        found
    )
    assert "| 576 | 20,096 | not comparable |" in report.render_markdown(found)
    grown = plan(tcm=tcm(577), buffers={})
    assert compare_results(planned, grown).worse


def test_a_plan_as_qnn_is_told_from_one_of_the_file() -> None:
    """A plan of QNN's graph against a plan of the file's graph is compared with a note."""
    text = report.render_text(compare_results(plan(), plan(90, **{"as": "qnn"})))
    assert "note: graph differs: as in the file, now as qnn" in text


def test_a_need_that_a_fit_only_bounds_is_no_reason_to_fail() -> None:
    """A fit's upper bound above a bill's exact number does not count as worse."""
    old, new = bill(1000, 1000), fit("fits", pd=1002)
    new["socs"][0]["checks"][0]["need_low"] = number(4)
    assert not compare_results(old, new).worse


def test_a_lost_proof_is_shown_and_is_not_worse() -> None:
    """A lost proof is shown and not worse."""
    found = compare_results(plan(), plan(optimal=False))
    assert [one.question for one in found.subjects[0].verdicts] == ["proof"]
    assert not found.worse


def test_growth_within_the_tolerance_is_not_worse() -> None:
    """A tolerance in bytes and percent allows the larger of both."""
    for text, allowed in (("9", 109), ("10%", 110), ("9 or 10%", 110), ("12 or 10 %", 112)):
        counts = WhatCounts(parse_tolerance(text))
        assert not compare_results(plan(100), plan(allowed), counts).worse
        assert compare_results(plan(100), plan(allowed + 1), counts).worse


@pytest.mark.parametrize("text", ["", "%", "-1%", "1e9%", "much", "5 and 3%"])
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    """An invalid tolerance is refused with an example."""
    with pytest.raises(UsageError, match="write it like"):
        parse_tolerance(text)


def test_only_named_pools_count() -> None:
    """Only the named pools count as worse; an unknown pool is refused."""
    counts = WhatCounts(Tolerance(), ("Persistent",))
    found = compare_results(plan(100), plan(200), counts)
    assert sizes(found)["scratch"] == (100, 200)
    assert not found.worse
    with pytest.raises(UsageError, match="did you mean scratch"):
        compare_results(plan(), plan(), WhatCounts(Tolerance(), ("scrach",)))


def test_files_of_several_are_paired_by_name_then_by_their_last_part() -> None:
    """Files are paired by their path, then by their last part."""
    old = plans(plan(1, "old/a.onnx"), plan(2, "old/b.onnx"), plan(3, "gone.onnx"))
    new = plans(plan(5, "new/b.onnx"), plan(1, "new/a.onnx"), plan(9, "more.onnx"))
    found = compare_results(old, new)
    pairs = [(one.before, one.after) for one in found.subjects]
    assert pairs == [("old/b.onnx", "new/b.onnx"), ("old/a.onnx", "new/a.onnx")]
    assert found.appeared == ("more.onnx",)
    assert found.vanished == ("gone.onnx",)
    assert not found.failing
    assert [one.worse for one in found.subjects] == [True, False]


def test_two_files_of_one_name_are_not_mixed_up() -> None:
    """Files with ambiguous last parts are not paired."""
    old = plans(plan(1, "a/m.onnx"), plan(2, "b/m.onnx"))
    found = compare_results(old, plans(plan(1, "c/m.onnx"), plan(2, "d/m.onnx")))
    assert found.subjects == ()
    assert found.appeared == ("c/m.onnx", "d/m.onnx")


def test_a_file_that_can_no_longer_be_planned_is_worse() -> None:
    """A file that can no longer be planned is worse."""
    found = compare_results(plans(plan(name="a.onnx")), plans(refused=("a.onnx",)))
    assert found.worse
    assert [one.after for one in found.subjects[0].verdicts] == ["no answer"]


def test_a_new_file_that_does_not_fit_is_worse() -> None:
    """A new file is worse only if it does not fit."""
    new = plan(1, "new.onnx", fits=False, budgets=[budget(False)])
    found = compare_results(plans(plan(), plan(1, "b.onnx")), plans(plan(), plan(1, "b.onnx"), new))
    assert found.failing == ("new.onnx",)
    assert found.worse
    assert "is new and does not fit" in found.verdict


def test_a_fit_that_turned_is_worse_on_that_soc() -> None:
    """Each SoC of a fit is compared separately, with its parts and needs as pools."""
    old, new = fit("fits"), fit("does-not-fit", pd=12)
    old["socs"] += fit("fits", "SM8550")["socs"]
    new["socs"] += fit("fits", "SM8550")["socs"]
    found = compare_results(old, new)
    assert [(one.after, one.worse) for one in found.subjects] == [
        ("a.bin (SM8650)", True),
        ("a.bin (SM8550)", False),
    ]
    assert sizes(found) == {"weights": (5, 5), "process domain": (10, 12)}


def test_a_bill_is_compared_with_a_fit_by_what_both_know() -> None:
    """A bill and a fit are compared by the numbers that both have."""
    bill = {
        "schema": "qnnmem.footprint/1",
        "file": "a.bin",
        "process_domain_budget": number(1 << 30),
        "soc": "SM8650",
        "parts": {"weights": number(4), "IO": None},
        "largest_io": [{"graph": "g", "name": "x", "kind": "input", "bytes": 1}],
    }
    found = compare_results(bill, fit("fits"))
    assert sizes(found)["weights"] == (4, 5)
    assert found.subjects[0].tensors == ()  # a list of the largest tensors is incomplete


def test_a_failure_that_was_not_there_is_worse() -> None:
    """A new cause or more missing bytes in a diagnosis is worse."""
    old, new = doctor(incident("map_budget", 10)), doctor(incident("map_budget", 20))
    assert compare_results(old, new).worse
    assert compare_results(doctor(), old).worse
    assert not compare_results(old, doctor()).worse
    assert sizes(compare_results(old, new)) == {"missing: map_budget": (10, 20)}
    with pytest.raises(UsageError, match="more missing bytes than any device has"):
        compare_results(old, doctor(incident("map_budget", 10**400)))


def test_what_fix_came_to_is_compared() -> None:
    """Fixes are compared by their bytes and by identical results."""

    def fixed(after: int, identical: bool) -> dict[str, Any]:
        rows = (("as-it-is", True), ("x", identical))
        facts = {"change": "", "bytes": after, "fits": True}
        tried = [{"remedy": name, "identical": same, **facts} for name, same in rows]
        words = {"schema": "qnnmem.fix/1", "input": "a.onnx", "fits": True, "best": 1}
        return words | {"tried": tried, "after_bytes": after}

    assert not compare_results(fixed(9, True), fixed(8, True)).worse
    assert compare_results(fixed(9, True), fixed(9, False)).worse


def test_settings_that_differ_are_named() -> None:
    """Differing settings are noted."""
    found = compare_results(plan(), plan(align_bytes=128, tool="qnnmem 9"))
    assert [(one.name, one.before, one.after) for one in found.subjects[0].settings] == [
        ("alignment", "64", "128"),
        ("tool", "", "qnnmem 9"),
    ]
    assert "note: alignment differs: 64, now 128" in report.render_text(found)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "cannot be compared"),
        ([], "cannot be compared"),
        ({"schema": ["qnnmem.plan/1"]}, "cannot be compared"),
        ({"schema": "qnnmem.socs/1"}, "cannot be compared"),
        ({"schema": "qnnmem.plan/1"}, "it is not a qnnmem.plan/1"),
        (plan(scratch=1 << 60), "it is not a qnnmem.plan/1"),
        ({"schema": "qnnmem.plans/1", "plans": 3}, "it is not a qnnmem.plans/1"),
        (plan() | {"\ud800": 2}, "it is not a qnnmem.plan/1"),
        ({"schema": "qnnmem.error/1", "error": "no such file", "exit_code": 2}, "no such file"),
        (
            {"schema": "qnnmem.fix/1", "input": "", "fits": None, "tried": [], "best": 0},
            "it is not a qnnmem.fix/1",
        ),
    ],
)
def test_what_is_no_result_is_refused_in_a_sentence(result: Any, words: str) -> None:
    """An invalid result is refused with one sentence."""
    with pytest.raises(UsageError, match=words):
        compare_results(plan(), result)


def test_results_of_two_kinds_are_not_compared() -> None:
    """Results of two kinds are refused with both names."""
    with pytest.raises(UsageError, match=r"a plan of memory and .* a diagnosis; different kinds"):
        compare_results(plan(), doctor())


def test_nothing_in_a_name_becomes_markup() -> None:
    """Markup in names is escaped in the Markdown."""
    evil = "<script>|`x`\n[a](b)@me"
    found = compare_results(plan(1, evil, buffers={evil: 1}), plan(2, evil, buffers={evil: 2}))
    text = report.render_markdown(found)
    assert "<script>" not in text
    assert "@me" not in text
    assert all(line.count("|") - line.count("\\|") in (0, 4, 6) for line in text.splitlines())
