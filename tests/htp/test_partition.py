"""Partitioned models: a suggested partition is tried first, and a written one has run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from told_worker import ToldWorker, done, loaded

from qnnmem.cli.output import Output
from qnnmem.cli.prepare import show_htp
from qnnmem.flags import with_flags
from qnnmem.htp.compile import CompileFailure, CompileOptions, compile_model
from qnnmem.htp.compile.compiled import compared, worst_output
from qnnmem.htp.log import read_line
from qnnmem.htp.requests import CompareReply, CompileReply, CpuDifference, RequestOutcome
from qnnmem.options.prepare import PreparationOptions
from qnnmem.targets.socs import find_soc
from qnnmem.verbs.prepare import epcontext_path

SM8650 = find_soc("SM8650")
REFUSED = (
    "Validation FAILED for 1 nodes",
    "Operator type: Acosh Node name: arc Node index: 1",
    "REASON : Operators of type `Acosh` are not supported by QNN EP.",
)
NOT_FUSED = (
    "2026-11-18 07:04:05.486010776 [E:onnxruntime:, ep_plugin.cc:9 GetCapability] OrtEp for "
    "QNNExecutionProvider set nodes that cannot be fused together. Please ensure that the nodes"
)
SAME = RequestOutcome("done", CompareReply([CpuDifference("y", 0.001, 1.0)]))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a model with a supported and an unsupported node."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "fine"),
        helper.make_node("Acosh", ["r"], ["y"], "arc"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:])
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def told(partitioned: RequestOutcome | None = None, ran: RequestOutcome = SAME) -> Any:
    """Return a worker that refuses a node and gives these outcomes for a partition and its run."""

    def answer(verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        if verb == "compare":
            return ran
        if verb == "load":
            return RequestOutcome("done", loaded(0))
        if options["strict"]:
            return RequestOutcome("refused", log=tuple(map(read_line, REFUSED)))
        return partitioned or done(options, on_cpu=(("arc", "Acosh"),))

    return ToldWorker(answer)


def why(model: Path, worker: Any, **more: Any) -> str:
    """Return the sentence of a refusal."""
    made = compile_model(model, SM8650, worker=worker, **more)
    assert isinstance(made, CompileFailure)
    return with_flags(made.why)


def test_a_cure_that_was_not_tried_says_so(model: Path) -> None:
    """Without a trial the sentence says that --partition was not tried."""
    worker = told()
    assert why(model, worker).endswith("; --partition might compile the rest (not tried)")
    assert all(options["strict"] for _verb, options, _limit in worker.asked)


def test_a_cure_is_compiled_and_run_before_it_is_named(model: Path) -> None:
    """A trial compiles the partition and compares its outputs, each within 60 seconds."""
    worker = told()
    sentence = why(model, worker, try_cures=True)
    assert sentence.endswith(
        "; --partition leaves it on the CPU and compiles the rest; a trial compile succeeded"
    )
    assert [verb for verb, *_ in worker.asked[-2:]] == ["compile", "compare"]
    assert all(limit <= 60 for *_, limit in worker.asked[-2:])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"partitioned": RequestOutcome("refused", sentence="an invalid model")},
            "with it on the CPU the compile fails too: compile failed: an invalid model",
        ),
        (
            {"ran": RequestOutcome("refused", sentence="sizes differ", stage="run")},
            "with it on the CPU the compile fails too: run failed: sizes differ",
        ),
        (
            {
                "partitioned": RequestOutcome(
                    "done",
                    CompileReply([], None, [], 0),
                    log=(read_line(NOT_FUSED),),
                )
            },
            "with it on the CPU the compile fails too: QNN supports no node of the model: QNN "
            "chose nodes that cannot be fused",
        ),
    ],
)
def test_a_cure_that_fails_is_not_named(model: Path, answer: Any, words: str) -> None:
    """If the trial fails, the sentence gives the reason and does not suggest --partition."""
    sentence = why(model, told(**answer), try_cures=True)
    assert words in sentence
    assert "--partition" not in sentence


def test_a_cure_that_takes_too_long_is_said_as_such(model: Path) -> None:
    """A trial that times out leaves open whether --partition would help."""
    late = RequestOutcome("timeout", sentence="not finished within 60 s")
    sentence = why(model, told(late), try_cures=True)
    assert "--partition might compile the rest; a trial ended with: not finished" in sentence


def test_the_reason_of_a_partition_without_nodes_is_shown(model: Path) -> None:
    """The reason for an empty partition comes from an error in ONNX Runtime's log."""
    empty = RequestOutcome("done", CompileReply([], None, [], 0), log=(read_line(NOT_FUSED),))
    made = compile_model(model, SM8650, CompileOptions(partition=True), worker=told(empty))
    assert isinstance(made, CompileFailure)
    assert "nodes that cannot be fused" in made.sentence
    assert "set nodes that cannot be fused" in made.line


def prepare(model: Path, output: Path, worker: Any) -> int:
    """Prepare a partitioned model and return the exit code."""
    options = PreparationOptions(soc="SM8650", partition=True, output=str(output))
    return show_htp((str(model),), options, Output(), worker)


def test_a_partition_is_written_with_its_epcontext_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition is always written with its EPContext model, because CPU nodes are only there."""
    output = tmp_path / "out.bin"
    assert prepare(model, output, told()) == 0
    assert epcontext_path(output).exists()
    assert "verified: ran in ONNX Runtime, outputs within 0.10% of" in capsys.readouterr().out


def test_a_partition_that_does_not_run_is_not_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition that fails to run writes neither the binary nor the EPContext model."""
    output = tmp_path / "out.bin"
    broken = RequestOutcome("refused", sentence="sizes differ", stage="run")
    assert prepare(model, output, told(ran=broken)) == 1
    assert "No binary: run failed: sizes differ" in capsys.readouterr().out
    assert not output.exists()
    assert not epcontext_path(output).exists()


@pytest.mark.parametrize(
    "ran",
    [
        RequestOutcome("timeout", sentence="not finished within 60 s"),
        RequestOutcome("refused", sentence="the index is out of range", stage="sample"),
        RequestOutcome("done", CompareReply([CpuDifference("y", 0.0, 0.0)])),
    ],
)
def test_what_was_not_compared_is_not_called_verified(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ran: RequestOutcome
) -> None:
    """A partition that could not be compared with the CPU is written and called not verified."""
    output = tmp_path / "out.bin"
    assert prepare(model, output, told(ran=ran)) == 0
    shown = capsys.readouterr().out
    assert "  not verified, because the EPContext model was not compared with the CPU: " in shown
    assert output.exists()


def test_the_output_that_differs_most_decides() -> None:
    """The output with the largest relative difference decides; empty outputs do not count."""
    rows = (("a", 0.1, 100.0), ("b", 0.05, 1.0), ("empty", 0.0, 0.0))
    found = worst_output([CpuDifference(*row) for row in rows])
    assert (found.difference, found.verified) == (0.05, False)
    assert "output 'b' is 5.00% off" in found.why
    assert compared(0.001, "a").verified
