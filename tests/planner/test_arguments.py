"""Python calls accept plain numbers and text; every `repr` fits on one line."""

from __future__ import annotations

import inspect
import pydoc
from itertools import pairwise
from typing import Any

import pytest

import qnnmem
from qnnmem import (
    Buffer,
    DType,
    FixedBuffer,
    Infeasible,
    Io,
    Model,
    Op,
    Pool,
    PoolOptions,
    Problem,
    Span,
    Tensor,
    UsageError,
    judge_tcm,
)
from qnnmem.units import as_bytes, as_step

EVIL = "two\nlines \x1b[31m" + "x" * 500


def chain(*names: str, title: str = "chain") -> Model:
    """Return a chain of ops that connects tensors with these names."""
    tensors = {name: Tensor(name, DType.FLOAT32, (100,)) for name in names}
    ops = tuple(Op(f"op {a}", "Relu", (a,), (b,)) for a, b in pairwise(names))
    return Model(title, "onnx", tensors, ops, names[:1], names[-1:])


@pytest.mark.parametrize(
    "budget",
    [
        {"scratch": 2048},
        {"scratch": "2K"},
        {Pool.SCRATCH: 2048},
        {Pool.SCRATCH: "2 KiB"},
        2048,
        "2K",
    ],
)
def test_a_budget_is_written_as_one_likes(budget: Any) -> None:
    """A budget takes a pool or its name, with a number or a text like "2K" as the size."""
    plan = qnnmem.plan(chain("x", "a", "y"), budget=budget)
    (verdict,) = plan.budgets
    assert (verdict.pool, verdict.have, verdict.fits) == (Pool.SCRATCH, 2048, True)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (
            {"vtcm": 1},
            ("'vtcm' is not a pool; choose one of scratch, persistent, io, constants and tcm"),
        ),
        ({"Scratch ": 1}, "is not a pool"),
        ({7: 1}, "7 is not a pool"),
        ({None: 1}, "is not a pool"),
        ({"scratch": -1}, "a budget must be between 0 and"),
        ({"scratch": "lots"}, "'lots' is not a size"),
        ({"scratch": 2048.5}, "a float is not a size; write it like 2035712 or '256K'"),
        ({"scratch": None}, "a NoneType is not a size"),
        ({"scratch": 1, Pool.SCRATCH: 2}, "pool scratch has two budgets"),
    ],
)
def test_a_budget_that_makes_no_sense_is_one_sentence(budget: Any, words: str) -> None:
    """A wrong budget raises UsageError with one sentence that states the valid form."""
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        qnnmem.plan(chain("x", "y"), budget=budget)


def test_sizes_may_be_numbers_texts_or_integers_of_numpy() -> None:
    """Buffers accept whole numbers, texts and NumPy integers, and store plain integers."""
    numpy = pytest.importorskip("numpy")
    for size in (4096, "4096", "4K", "4 KiB", numpy.int64(4096), numpy.uint16(4096)):
        buffer = Buffer("a", size, Span(0, 1), align=size)
        assert (buffer.size, buffer.align) == (4096, 4096)
        assert {type(buffer.size), type(buffer.align)} == {int}
        assert FixedBuffer("a", size, Span(0, 1), size, 4096).size == 4096
    assert type(Span(numpy.int32(0), numpy.int32(3)).upper) is int
    assert Buffer("a", 1, (0, 2)).live == Span(0, 2)


@pytest.mark.parametrize("wrong", [3, (0,), "ab", None])
def test_a_life_is_a_pair(wrong: Any) -> None:
    """A buffer whose lifetime is not a pair of steps raises UsageError in the constructor."""
    with pytest.raises(UsageError, match="a lifetime must be a pair of steps"):
        Buffer("a", 1, wrong)


@pytest.mark.parametrize("wrong", [1.5, None, b"4K", [], object()])
def test_what_is_no_size_or_step_is_refused(wrong: Any) -> None:
    """The error names the type of a wrong size or step, not its value, which may be long."""
    with pytest.raises(UsageError, match="is not a size"):
        as_bytes(wrong)
    with pytest.raises(UsageError, match="is not a step"):
        as_step(wrong)
    with pytest.raises(UsageError, match="is not a step"):
        Span(0, wrong)


def test_an_answer_is_not_a_size() -> None:
    """A boolean is not accepted as a size."""
    with pytest.raises(UsageError, match="a bool is not a size"):
        qnnmem.plan(chain("x", "a", "y"), budget={"scratch": True})


@pytest.mark.parametrize(("limit", "fits"), [("1K", True), (500, False)])
def test_a_budget_of_tcm_counts_as_on_the_command_line(limit: Any, fits: bool) -> None:
    """A TCM budget counts constants, inputs and outputs; the plan fits only if they fit."""
    plan = qnnmem.plan(chain("x", "a", "y"), budget={"tcm": limit, "scratch": "1M"})
    assert plan.tcm is not None
    assert (plan.tcm.need, plan.tcm.fits, plan.fits) == (896, fits, fits)
    assert [verdict.pool for verdict in plan.budgets] == [Pool.SCRATCH]
    with pytest.raises(UsageError, match="a buffer list has no constants and no IO"):
        qnnmem.plan(Model("list", "csv"), budget={"tcm": limit})


def test_a_budget_may_be_a_number_of_numpy() -> None:
    """A budget accepts a NumPy integer and refuses booleans, floats, lists, arrays and bytes."""
    numpy = pytest.importorskip("numpy")
    model = chain("x", "a", "y")
    assert qnnmem.plan(model, budget=numpy.int64(2048)).budgets[0].have == 2048
    for wrong in (True, 1.5, [("scratch", 1)], numpy.zeros(3), b"2K"):
        with pytest.raises(UsageError):
            qnnmem.plan(model, budget=wrong)  # type: ignore[arg-type]


def test_options_may_be_a_mapping() -> None:
    """Options may be a mapping of the non-default values; an unknown key raises UsageError."""
    model = chain("x", "a", "y")
    plan = qnnmem.plan(model, options={"io": "outside", "align": "4K"})
    assert plan.options == PoolOptions(io=Io.OUTSIDE, align=4096)
    with pytest.raises(UsageError, match="'alignment' is not an option; the options are io, "):
        qnnmem.plan(model, options={"alignment": 64})


def test_a_model_names_only_what_it_has() -> None:
    """Planning a model that uses an unknown tensor raises UsageError with the tensor's name."""
    model = Model("m", "onnx", {}, (Op("op", "Relu", ("x",), ("y",)),))
    with pytest.raises(UsageError, match="'x' is used but is not a tensor of the model"):
        qnnmem.plan(model)


def test_a_capacity_may_be_a_text() -> None:
    """A capacity may be a text like "1K", and the buffers may be a list."""
    buffers = [Buffer("a", "1K", Span(0, 2)), Buffer("b", 1024, Span(1, 3))]
    answer = qnnmem.plan(Problem(buffers, capacity="1K"))
    assert isinstance(answer, Infeasible)
    assert answer.problem == Problem(tuple(buffers), 1024)


def test_options_take_words_and_mappings() -> None:
    """PoolOptions accepts the command line's words, size texts, and a mapping of states."""
    wanted = PoolOptions(io=Io.OUTSIDE, align=4096, states=(("h", "hn"),))
    assert PoolOptions(io="outside", align="4K", states={"h": "hn"}) == wanted
    assert PoolOptions(io="outside", align=4096, states=[("h", "hn")]) == wanted
    with pytest.raises(UsageError, match="io must be inside or outside, not 'nowhere'"):
        PoolOptions(io="nowhere")


def test_tcm_takes_plain_sizes() -> None:
    """`judge_tcm` accepts sizes as text and as integers, with equal results."""
    assert judge_tcm("1M", [640, "1K"], 64) == judge_tcm(1 << 20, [640, 1024], 64)


@pytest.mark.parametrize("what", ["model.onnx", None, 3, {"a": 1}])
def test_what_cannot_be_planned_is_said(what: Any) -> None:
    """Planning a path or another non-model raises UsageError, which points to `load(path)`."""
    with pytest.raises(UsageError, match=r"cannot be planned; load\(path\) returns a model"):
        qnnmem.plan(what)


def test_a_problem_has_no_budget() -> None:
    """Planning a Problem with a budget raises UsageError, since the budget would be ignored."""
    with pytest.raises(UsageError, match="apply only to models; a Problem has its own capacity"):
        qnnmem.plan(Problem(()), budget={"scratch": 1})  # type: ignore[call-overload]


def test_answers_are_one_short_line() -> None:
    """The `repr` of every result is one printable line under 250 characters, whatever the names."""
    model = chain(*(f"{EVIL}{i}" for i in range(40)), title=EVIL)
    plan = qnnmem.plan(model, budget={"scratch": 1})
    problem = Problem([Buffer(f"{EVIL}{i}", 64, Span(0, 1)) for i in range(99)], capacity=1)
    answers = [model, plan, plan.scratch, problem, qnnmem.plan(problem), judge_tcm(1, [1] * 999, 1)]
    for answer in answers:
        assert repr(answer).isprintable()
        assert len(repr(answer)) < 250, repr(answer)
    assert repr(qnnmem.plan(chain("x", "y"))) == (
        "<MemoryPlan of 'chain': scratch 896 bytes, minimal for this order; 2 buffers>"
    )
    assert repr(qnnmem.plan(Problem([Buffer("a", 8, Span(0, 1))]))) == (
        "<Plan: 8 bytes, proven minimal for these lifetimes; 1 buffer>"
    )


def test_help_explains_the_call() -> None:
    """`help(qnnmem.plan)` shows the parameters, the result types and how to load a model."""
    text = pydoc.plain(pydoc.render_doc(qnnmem.plan))
    for words in ("plan(what:", "budget=", "MemoryPlan", "Infeasible", "qnnmem.load("):
        assert words in text
    names = list(inspect.signature(qnnmem.plan).parameters)
    assert names == ["what", "time_limit", "options", "budget", "seed", "watch"]
