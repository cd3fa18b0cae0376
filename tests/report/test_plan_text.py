from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import qnnmem
from qnnmem.ir import DType, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.loader.csv import write as write_csv
from qnnmem.planner import MemoryPlan, Pool, PoolOptions
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.plan import render_text
from qnnmem.results.schema import encode
from qnnmem.units import Bytes, Step

EVIL = (
    "\x1b[31mred",
    "two\nlines",
    "carriage\rreturn",
    "bell\x07\x00",
    "\u202egnp.exe",
    "\ud800",
    "\x9b31m",
    "<script>alert(1)</script>",
    "long" * 5000,
    "$(reboot)`reboot`';",
)


def chain(*names: str, size: int = 100, notes: tuple[str, ...] = ()) -> Model:
    """Return a chain of ops through tensors with these names."""
    tensors = {name: Tensor(name, DType.FLOAT32, (size,)) for name in names}
    ops = tuple(Op(f"op {a}", "Relu", (a,), (b,)) for a, b in pairwise(names))
    return Model("chain", "onnx", tensors, ops, names[:1], names[-1:], notes=notes)


def report(plan: MemoryPlan, name: str = "model.onnx") -> PlannedFile:
    """Return a plan with the file name and the time that the command line adds."""
    return PlannedFile(plan, name, 0.25)


def show(model: Model, budget: dict[Pool, Bytes] | None = None, **options: Any) -> str:
    """Return the text of a model's plan."""
    plan = qnnmem.plan(model, 0.2, options=PoolOptions(**options), budget=budget)
    return render_text(report(plan))


def listed(*names: str) -> Model:
    """Return a list of buffers that all live together."""
    live = Span(Step(0), Step(2))
    return Model("l", "csv", buffers=tuple(FixedBuffer(n, Bytes(64), live) for n in names))


def test_the_first_line_is_the_verdict() -> None:
    """The first line states the scratch bytes and their proof."""
    assert show(chain("x", "a", "y")).splitlines()[0] == "scratch 896 bytes, minimal for this order"


def test_a_budget_that_holds_is_the_first_line() -> None:
    """With a budget that fits, the first line says so."""
    text = show(chain("x", "a", "y"), {Pool.SCRATCH: Bytes(1000)})
    assert text.splitlines()[0] == "fits: scratch takes 896 of 1,000 bytes"


def test_a_budget_that_breaks_says_by_how_much_and_who() -> None:
    """With an exceeded budget, the first line states the excess; the text names the buffers."""
    text = show(chain("x", "a", "y"), {Pool.SCRATCH: Bytes(895)})
    assert text.splitlines()[0] == (
        "does not fit: scratch needs at least 896 bytes, 1 more than 895, "
        "with the ops in this order"
    )
    assert "these buffers cannot fit together (2 in scratch, 896 bytes):" in text


def test_an_undecided_budget_says_so() -> None:
    """An undecided budget starts with `cannot tell`."""
    plan = qnnmem.plan(chain("x", "y"), budget={Pool.SCRATCH: Bytes(100)})
    verdict = replace(plan.budgets[0], need=Bytes(200), at_least=Bytes(50))
    text = render_text(report(replace(plan, budgets=(verdict,))))
    assert text.startswith("cannot tell whether it fits: no scratch plan within 100 bytes")
    assert "bytes was found in time, but one might exist" in text


def test_an_unproven_plan_states_its_distance() -> None:
    """Without a proof, the text states the proven bound and the distance to it."""
    plan = qnnmem.plan(chain("x", "y"))
    loose = replace(plan, scratch=replace(plan.scratch, lower_bound=Bytes(800)))
    text = render_text(report(loose))
    assert text.splitlines()[0] == (
        "scratch 896 bytes, at most 12.00 % above the minimum for these lifetimes "
        "(proven bound 800)"
    )
    assert "next: search longer: qnnmem plan model.onnx --time-limit 60" in text


def test_pools_peak_tcm_and_next_step_are_shown() -> None:
    """The text shows pools, peak, TCM, map and next command in this order."""
    text = show(chain("x", "a", "y"))
    order = ["pool  ", "scratch  ", "peak at step 0, op x (Relu)", "TCM (", "│", "next: "]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_the_tcm_limit_says_where_it_comes_from() -> None:
    """The TCM limit is shown with its origin."""
    assert "documented limit): fits, constants and IO take 896 of 2,035,712" in show(
        chain("x", "y")
    )


def test_reordering_says_what_it_brought() -> None:
    """With --reorder, the text compares the live bytes before and after."""
    assert "reordering ops does not lower the 896 bytes of live scratch" in show(
        chain("x", "a", "y"), reorder=True
    )


def test_a_model_without_buffers_has_a_report() -> None:
    """A model without buffers gets a report without a map."""
    text = show(Model("empty", "onnx"))
    assert text.startswith("scratch 0 bytes, proven minimal for these lifetimes\n")
    assert "│" not in text


def test_a_proof_about_control_flow_says_how_far_it_goes() -> None:
    """For a model with branch or loop bodies, the headline says `upper bound`, never `minimal`."""
    plain = chain("x", "a", "y")
    branch = replace(plain.ops[0], bodies=(chain("p", "q"),))
    assert "planned separately" not in show(plain)
    text = show(replace(plain, ops=(branch, *plain.ops[1:])))
    assert text.splitlines()[0].endswith(" bytes, upper bound")
    assert "note: branch and loop bodies are planned separately" in text
    assert "minimal" not in text


def test_notes_of_the_reader_are_shown() -> None:
    """Notes of the loader are shown."""
    assert "note: the hint column was ignored" in show(
        chain("x", "y", notes=("the hint column was ignored",))
    )


@pytest.mark.parametrize("name", EVIL)
def test_hostile_names_never_reach_the_terminal(name: str) -> None:
    """Control characters, bidirectional marks and line breaks in names are replaced."""
    model = chain(name, f"{name}_2", f"{name} out", notes=(name,))
    plan = qnnmem.plan(model, budget={pool: Bytes(1) for pool in Pool})
    likely = replace(plan, likely_states=((name, f"{name} out"),))
    for made in (plan, likely):
        text = render_text(report(made, f"{name}.onnx"))
        lines = text.split("\n")
        assert "".join(lines).isprintable()
        assert max(map(len, lines)) < 400


@pytest.mark.parametrize("name", EVIL)
def test_hostile_buffer_names_never_reach_the_terminal(name: str) -> None:
    """Hostile names of a buffer list are replaced, too."""
    plan = qnnmem.plan(listed(name, f"{name}2"), budget={Pool.SCRATCH: Bytes(65)})
    made = report(plan, name)
    assert render_text(made).replace("\n", "").isprintable()
    assert encode(made.result).isascii()


@pytest.mark.parametrize("name", ["two\nlines", "carriage\rreturn", "a,b", 'a"b', ""])
def test_names_a_csv_cannot_hold_are_refused(name: str) -> None:
    """Names with a comma, quote or line break cannot be written as CSV, which has no quoting."""
    with pytest.raises(qnnmem.OutputError, match="cannot be written as CSV"):
        write_csv(listed(name).buffers)


def test_hostile_op_names_are_cleaned_at_the_peak() -> None:
    """Control characters in the name of the peak's op are replaced."""
    tensors = {n: Tensor(n, DType.INT8, (9,)) for n in "xy"}
    ops = (Op("\x1b[2J", "Re\nlu", ("x",), ("y",)),)
    text = show(Model("m", "onnx", tensors, ops, ("x",), ("y",)))
    assert "\N{REPLACEMENT CHARACTER}[2J (Re\N{REPLACEMENT CHARACTER}lu)" in text


def test_the_next_command_quotes_the_file_for_a_shell() -> None:
    """The next command quotes the file name for a shell."""
    plan = qnnmem.plan(chain("x", "y"))
    text = render_text(report(plan, "my model; rm.onnx"))
    assert "qnnmem plan 'my model; rm.onnx' --bits 8" in text
