"""Every verb first reports outputs of a model that its compiled context lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import onnx
import pytest
from command_line import run
from onnx import helper, numpy_helper
from told_worker import ToldWorker, loading

from qnnmem.htp.compile import CompileOptions
from qnnmem.htp.compile.compiled import missing_in_epcontext
from qnnmem.htp.fit import fit_result, judge_model
from qnnmem.htp.library import has_library
from qnnmem.htp.measure import MeasuredModel, measure, prepared_context
from qnnmem.htp.requests import AnyRequest, CompileRequest, RequestOutcome
from qnnmem.htp.sweep import compile_task
from qnnmem.report import bill as report
from qnnmem.report.bill import render_prepared
from qnnmem.report.page.htp import bill_section
from qnnmem.results.footprint import MissingOutput, missing_words
from qnnmem.results.schema import encode, load_schema
from qnnmem.targets.socs import find_soc

SM8650 = find_soc("SM8650")
F = onnx.TensorProto.FLOAT
LINES = ("Setting context 1 reserved space to 10546688", "PD 0 chosen for context 1")
node, info = helper.make_node, helper.make_tensor_value_info


def twelve_outputs(path: Path) -> Path:
    """Write a model with twelve outputs, six of which ONNX Runtime folds to constants."""
    shape = [1, 4, 8, 8]
    nodes = [node("Relu", ["x"], ["a"])]
    nodes += [node("Add", ["a", f"k{n}"], [f"y{n}"]) for n in range(6)]
    nodes += [node("Abs", [f"k{n}"], [f"c{n}"]) for n in range(6)]
    constants = [
        numpy_helper.from_array(numpy.full((1, 4, 1, 1), n + 1, "f4"), f"k{n}") for n in range(6)
    ]
    outputs = [info(f"y{n}", F, shape) for n in range(6)]
    outputs += [info(f"c{n}", F, [1, 4, 1, 1]) for n in range(6)]
    graph = helper.make_graph(nodes, "half", [info("x", F, shape)], outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def epcontext(path: Path, binary: str) -> onnx.ModelProto:
    """Return the EPContext model that ONNX Runtime writes; folded outputs are constants."""
    made = onnx.load(path).graph
    names = [item.name for item in made.output]
    graph = onnx.GraphProto(name="context", output=made.output, input=made.input)
    taken = node("EPContext", ["x"], names[:6], ep_cache_context=binary, main_context=1)
    graph.node.append(taken)
    graph.initializer.extend(
        numpy_helper.from_array(numpy.ones((1, 4, 1, 1), "f4"), name) for name in names[6:]
    )
    return onnx.ModelProto(graph=graph)


class HalfWorker(ToldWorker):
    """A worker that compiles half of the outputs."""

    def ask(self, request: AnyRequest, **other: Any) -> RequestOutcome:
        """Answer the request and replace the EPContext model with one of half the outputs."""
        outcome = super().ask(request, **other)
        if isinstance(request, CompileRequest):
            half = epcontext(request.model, f"{request.output.stem}.bin")
            request.output.write_bytes(half.SerializeToString())
        return outcome


def worker() -> Any:
    """Return a worker that loads the compiled binary."""
    return HalfWorker(loading((0,), *LINES))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write the model."""
    return twelve_outputs(tmp_path / "half.onnx")


SAID = "not the whole model: 6 of 12 outputs are not in the context binary: 'c0' (a constant), "


def test_footprint_and_prepare_say_it_first(model: Path, tmp_path: Path) -> None:
    """`footprint` and `prepare` first name the missing outputs; the JSON lists all of them."""
    made = measure(model, SM8650, worker=worker())
    assert isinstance(made, MeasuredModel)
    text = report.render_text(made.bill, compiled=True)
    assert text.startswith(SAID)
    assert "for the compiled part" in text.splitlines()[1]
    context = prepared_context(made.compiled, tmp_path / "a.bin")
    written = render_prepared(made.bill, context, ["raw"])
    assert written.startswith(SAID)
    values = json.loads(encode(made.bill))
    assert [one["name"] for one in values["missing_outputs"]] == [f"c{n}" for n in range(6)]
    named = load_schema("qnnmem.footprint/1")
    jsonschema.Draft202012Validator(named).validate(values)
    page = str(bill_section(made.bill).body)
    assert page.index("lacks these outputs") < page.index("on SM8650")
    assert "c5" in page


def test_fit_and_sweep_never_say_that_it_fits(model: Path) -> None:
    """With missing outputs `fit` cannot tell and `sweep` marks the row refused."""
    fit = judge_model(model, SM8650, CompileOptions(), {}, worker=worker())
    assert (fit.fits, fit_result((fit,), "").exit_code) == (None, 3)
    assert str(fit.why).startswith(SAID)
    row = compile_task(worker(), model, SM8650.name, CompileOptions(), {})
    assert (row.state, str(row.reason)[: len(SAID)]) == ("refused", SAID)


def test_a_whole_model_is_not_doubted(model: Path) -> None:
    """A context with every output has no warning about missing outputs."""
    told: Any = ToldWorker(loading((0,), *LINES))
    made = measure(model, SM8650, worker=told)
    assert isinstance(made, MeasuredModel)
    assert not made.bill.missing_outputs


def test_every_kind_of_missing_output_has_its_reason() -> None:
    """A missing output is a constant, an input, a CPU node or in another binary."""
    model = onnx.ModelProto()
    graph = model.graph
    graph.node.append(node("EPContext", ["x"], ["a"], ep_cache_context="m.bin", main_context=1))
    graph.node.append(node("EPContext", ["x"], ["b"], main_context=0))
    graph.node.append(node("EPContext", ["x"], ["c"], ep_cache_context="n.bin", main_context=1))
    graph.node.append(node("Det", ["x"], ["d"]))
    graph.input.add(name="x")
    graph.initializer.add(name="k")
    found = missing_in_epcontext(
        ["a", "b", "c", "d", "x", "k", "gone"], model.SerializeToString(), "m.bin"
    )
    assert {one.name: one.reason for one in found} == {
        "c": "in another binary",
        "d": "Det on the CPU",
        "x": "an input",
        "k": "a constant",
        "gone": "",
    }


def test_one_output_of_many_is_said_in_the_singular() -> None:
    """The sentence uses the singular for one output and names at most six outputs."""
    one = missing_words((MissingOutput("y"),), 2)
    assert one == "not the whole model: 1 of 2 outputs is not in the context binary: 'y'"
    many = missing_words(tuple(MissingOutput(str(n)) for n in range(8)), 9)
    assert many.endswith("'5', 2 more")


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the QNN library is not installed")
def test_the_real_library_takes_half_and_the_verbs_say_so(model: Path, tmp_path: Path) -> None:
    """Six outputs fold to constants in the real library, and each verb exits with 3."""
    shown = run("footprint", str(model), "--soc=SM8650")
    assert (shown.return_value, shown.stdout.startswith(SAID)) == (3, True)
    judged = run("fit", str(model), "--soc=SM8650")
    assert judged.return_value == 3
    assert judged.stdout.startswith(f"cannot tell for SM8650: {SAID}")
    words = ("--backend=htp", "--soc=SM8650", "-o", str(tmp_path / "a.bin"))
    prepared = run("prepare", str(model), *words)
    assert (prepared.return_value, prepared.stdout.startswith(SAID)) == (3, True)
