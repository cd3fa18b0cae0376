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
    """Give a size as results hold it."""
    return {"bytes": size, "origin": "computed", "source": "here"}


def plan(scratch: int = 100, name: str = "a.onnx", **more: Any) -> dict[str, Any]:
    """A plan as `qnnmem plan --json` prints it, as far as it is compared."""
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
    """What a plan says of TCM."""
    pool = {"limit_bytes": 2_035_712, "buffers": 3, "max_buffers": 32}
    return {"fits": fits, "need_bytes": need, **pool}


def budget(fits: bool | None, have: int = 9) -> dict[str, Any]:
    """A budget of scratch."""
    sizes = {"need_bytes": 9, "at_least_bytes": 9, "have_bytes": have}
    return {"pool": "scratch", "fits": fits, **sizes}


def plans(*found: dict[str, Any], refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """Plans of several files."""
    left = [{"input": name, "sentence": f"{name} is empty"} for name in refused]
    return {"schema": "qnnmem.plans/1", "plans": list(found), "refused": left}


def fit(answer: str, soc: str = "SM8650", pd: int = 10, file: str = "a.bin") -> dict[str, Any]:
    """An answer of `qnnmem fit --json`."""
    check = {"pool": "pd", "fits": answer == "fits", "need_high": number(pd)}
    one = {"soc": soc, "answer": answer, "checks": [check], "parts": {"weights": number(5)}}
    return {"schema": "qnnmem.fit/1", "file": file, "socs": [one]}


def incident(cause: str, missing: int | None = None) -> dict[str, Any]:
    """An incident of the doctor."""
    return {
        **{"stage": "graph", "cause": cause, "cause_meaning": "too large", "verdict": "cause"},
        **{"is_memory": True, "confidence": "high", "entry": None, "title": "", "remedies": []},
        **{"collect_next": [], "candidates": [], "file": "run.log", "first_line": 1},
        **{"last_line": 1, "last_file": "run.log", "process": None, "producer": None, "count": 1},
        **{"evidence": [], "quantities": {}, "shortage_bytes": missing},
    }


def doctor(*incidents: dict[str, Any]) -> dict[str, Any]:
    """A diagnosis."""
    return {"schema": "qnnmem.doctor/1", "incidents": list(incidents), "files": ["run.log"]}


def sizes(found: DiffResult) -> dict[str, tuple[int | None, int | None]]:
    """Pools of the first subject."""
    return {one.pool: (one.before_bytes, one.after_bytes) for one in found.subjects[0].pools}


def test_a_pool_that_grew_is_worse_and_one_that_shrank_is_not() -> None:
    """Growth decides; what shrinks is named."""
    assert compare_results(plan(100), plan(101)).worse
    better = compare_results(plan(101), plan(100))
    assert not better.worse
    assert better.changed
    assert sizes(better)["scratch"] == (101, 100)
    assert "scratch 1 byte less" in better.verdict


def test_a_loss_beside_a_larger_gain_is_mixed() -> None:
    """Both are said, the largest first, and what they make together; it fails as any growth."""
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
    """A model that fits now is better."""
    old, new = (plan(tcm=tcm(9, fits=fits)) for fits in (False, True))
    said = "TCM changed from 'does not fit' to 'fits'"
    assert compare_results(old, new).verdict == f"better: {said}"
    assert said in report.render_text(compare_results(old, new))


def test_the_same_twice_is_no_change() -> None:
    """Nothing differs, nothing is worse, and the answer says so."""
    found = compare_results(plan(), plan(name="elsewhere/b.onnx"))
    assert not found.worse
    assert not found.changed
    assert found.verdict.startswith("unchanged")


def test_tensors_are_told_apart_by_what_became_of_them() -> None:
    """Appeared, vanished, grew, shrank and moved, the largest change first."""
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
    """From yes to no or to unknown is worse, whatever the numbers say."""
    old, new = (plan(fits=fits, budgets=[budget(fits)]) for fits in (before, after))
    found = compare_results(old, new)
    assert found.worse is worse
    turned = {one.question for one in found.subjects[0].verdicts}
    assert turned == {"all budgets", "budget of scratch"}


def test_a_question_that_only_one_side_asked_is_said_and_is_not_worse() -> None:
    """A budget that is new does not describe what was; its number and its answer are listed."""
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
    """The numbers are the same, and what they were held against is not."""
    old, new = (plan(fits=True, budgets=[budget(True, have)]) for have in (500, 400))
    found = compare_results(old, new)
    assert found.verdict == "changed: budget of scratch: 500, now 400"
    assert "| budget of scratch | 500 | 400 |" in report.render_markdown(found)


def bill(low: int, high: int) -> dict[str, Any]:
    """A bill with a process domain between two bounds."""
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
    """At most 1,002 may be less than 1,000 or more: neither is better, and the reason is said."""
    found = compare_results(bill(*old), bill(*new))
    assert not found.worse
    assert found.verdict == "changed: process domain is not comparable"
    text = report.render_text(found)
    assert "not comparable: process domain" in text
    assert "%" not in text
    assert compare_results(bill(10, 1000), bill(10, 1002)).worse  # two bounds are of one kind


def swept(need: int, **more: int) -> dict[str, Any]:
    """A sweep of one setting."""
    row = {"setting": {"batch": 1}, "state": "over", "pd_need": need} | more
    return {"schema": "qnnmem.sweep/1", "file": "a", "soc": "SM8650", "rows": [row]}


def test_a_sweep_says_which_need_is_a_bound() -> None:
    """Results from before that was written count as exact."""
    bound, exact, old = swept(1002, pd_low=10), swept(1000, pd_low=1000), swept(1000)
    assert not compare_results(exact, bound).worse
    assert compare_results(exact, bound).subjects[0].pools[0].bound == "after"
    assert compare_results(old, swept(1001, pd_low=1001)).worse


def test_pages_say_what_differs_and_what_cannot_be_compared() -> None:
    """A report of the comparison and the workbench, which has the two results, say the same."""
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
    """TCM of a plan is constants and IO, that of a binary all of it: no gain and no loss."""
    held = tcm(20096)
    pools = {"scratch": 100, "persistent": 0, "constants": 38}
    graph = {"name": "a", "pools": pools, "buffers": [], "align": 64, "io": "inside", "tcm": held}
    binary = {"schema": "qnnmem.inspect/1", "graphs": [graph]}
    planned = plan(tcm=tcm(576), buffers={})
    found = compare_results(planned, binary)
    assert not found.worse
    words = "changed: constants is not comparable, tcm is not comparable"
    assert found.verdict == words
    assert (
        "pool tcm contains constants and IO before and the finished binary"
        in report.render_text(found)
    )
    assert "| 576 | 20,096 | not comparable |" in report.render_markdown(found)
    grown = plan(tcm=tcm(577), buffers={})
    assert compare_results(planned, grown).worse


def test_a_plan_as_qnn_is_told_from_one_of_the_file() -> None:
    """Numbers differ then for a reason that is no change of the model."""
    text = report.render_text(compare_results(plan(), plan(90, **{"as": "qnn"})))
    assert "note: graph differs: as in the file, now as qnn" in text


def test_a_need_that_a_fit_only_bounds_is_no_reason_to_fail() -> None:
    """The exact number of a bill against the bound of a fit."""
    old, new = bill(1000, 1000), fit("fits", pd=1002)
    new["socs"][0]["checks"][0]["need_low"] = number(4)
    assert not compare_results(old, new).worse


def test_a_lost_proof_is_shown_and_is_not_worse() -> None:
    """The plan is as small as before."""
    found = compare_results(plan(), plan(optimal=False))
    assert [one.question for one in found.subjects[0].verdicts] == ["proof"]
    assert not found.worse


def test_growth_within_the_tolerance_is_not_worse() -> None:
    """Bytes or a part of what was there, whichever allows more."""
    for text, allowed in (("9", 109), ("10%", 110), ("9 or 10%", 110), ("12 or 10 %", 112)):
        counts = WhatCounts(parse_tolerance(text))
        assert not compare_results(plan(100), plan(allowed), counts).worse
        assert compare_results(plan(100), plan(allowed + 1), counts).worse


@pytest.mark.parametrize("text", ["", "%", "-1%", "1e9%", "much", "5 and 3%"])
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    """The sentence shows how to write one."""
    with pytest.raises(UsageError, match="write it like"):
        parse_tolerance(text)


def test_only_named_pools_count() -> None:
    """Growth elsewhere is shown and allowed; a name that no pool has is refused."""
    counts = WhatCounts(Tolerance(), ("Persistent",))
    found = compare_results(plan(100), plan(200), counts)
    assert sizes(found)["scratch"] == (100, 200)
    assert not found.worse
    with pytest.raises(UsageError, match="did you mean scratch"):
        compare_results(plan(), plan(), WhatCounts(Tolerance(), ("scrach",)))


def test_files_of_several_are_paired_by_name_then_by_their_last_part() -> None:
    """A folder that moved does not make every model a new one."""
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
    """Where the last part fits two, it pairs none."""
    old = plans(plan(1, "a/m.onnx"), plan(2, "b/m.onnx"))
    found = compare_results(old, plans(plan(1, "c/m.onnx"), plan(2, "d/m.onnx")))
    assert found.subjects == ()
    assert found.appeared == ("c/m.onnx", "d/m.onnx")


def test_a_file_that_can_no_longer_be_planned_is_worse() -> None:
    """No answer is worse than any."""
    found = compare_results(plans(plan(name="a.onnx")), plans(refused=("a.onnx",)))
    assert found.worse
    assert [one.after for one in found.subjects[0].verdicts] == ["no answer"]


def test_a_new_file_that_does_not_fit_is_worse() -> None:
    """Otherwise a new file is only named."""
    new = plan(1, "new.onnx", fits=False, budgets=[budget(False)])
    found = compare_results(plans(plan(), plan(1, "b.onnx")), plans(plan(), plan(1, "b.onnx"), new))
    assert found.failing == ("new.onnx",)
    assert found.worse
    assert "is new and does not fit" in found.verdict


def test_a_fit_that_turned_is_worse_on_that_soc() -> None:
    """Each SoC is a subject of its own; parts and needs are pools."""
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
    """Both are about one binary on HTP."""
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
    assert found.subjects[0].tensors == ()  # a list of the largest says nothing of the others


def test_a_failure_that_was_not_there_is_worse() -> None:
    """Causes are compared, and the bytes that are missing."""
    old, new = doctor(incident("map_budget", 10)), doctor(incident("map_budget", 20))
    assert compare_results(old, new).worse
    assert compare_results(doctor(), old).worse
    assert not compare_results(old, doctor()).worse
    assert sizes(compare_results(old, new)) == {"missing: map_budget": (10, 20)}
    with pytest.raises(UsageError, match="more missing bytes than any device has"):
        compare_results(old, doctor(incident("map_budget", 10**400)))


def test_what_fix_came_to_is_compared() -> None:
    """Bytes after the best remedy, and whether results stayed the same."""

    def fixed(after: int, identical: bool) -> dict[str, Any]:
        rows = (("as-it-is", True), ("x", identical))
        facts = {"change": "", "bytes": after, "fits": True}
        tried = [{"remedy": name, "identical": same, **facts} for name, same in rows]
        words = {"schema": "qnnmem.fix/1", "input": "a.onnx", "fits": True, "best": 1}
        return words | {"tried": tried, "after_bytes": after}

    assert not compare_results(fixed(9, True), fixed(8, True)).worse
    assert compare_results(fixed(9, True), fixed(9, False)).worse


def test_settings_that_differ_are_named() -> None:
    """A number may differ because it was asked otherwise."""
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
    """Files come from anywhere."""
    with pytest.raises(UsageError, match=words):
        compare_results(plan(), result)


def test_results_of_two_kinds_are_not_compared() -> None:
    """The sentence names both."""
    with pytest.raises(UsageError, match=r"a plan of memory and .* a diagnosis, which cannot"):
        compare_results(plan(), doctor())


def test_nothing_in_a_name_becomes_markup() -> None:
    """Names come from files and end in comments on a change."""
    evil = "<script>|`x`\n[a](b)@me"
    found = compare_results(plan(1, evil, buffers={evil: 1}), plan(2, evil, buffers={evil: 2}))
    text = report.render_markdown(found)
    assert "<script>" not in text
    assert "@me" not in text
    assert all(line.count("|") - line.count("\\|") in (0, 4, 6) for line in text.splitlines())
