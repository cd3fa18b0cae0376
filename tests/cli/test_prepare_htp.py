from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import run, sentence
from told_worker import ToldWorker, done, loading

from qnnmem.cli.output import Output
from qnnmem.cli.prepare import show_htp
from qnnmem.errors import MissingSoc, OutputError, UsageError
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.measure import MeasuredModel, measure
from qnnmem.htp.requests import RequestOutcome
from qnnmem.options.prepare import PreparationOptions
from qnnmem.report import bill as report
from qnnmem.results.schema import encode, load_schema
from qnnmem.targets.socs import find_soc
from qnnmem.verbs.prepare import epcontext_path

LOADED = ("Setting context 1 reserved space to 10546688", "PD 0 chosen for context 1")

needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


def for_sm8650(output: Path, **more: Any) -> PreparationOptions:
    """Return the options of a preparation for one SoC."""
    return PreparationOptions(soc="SM8650", output=str(output), **more)


def relu(path: Path, operator: str = "Relu", channels: int = 64) -> str:
    """Return the path of a model with one operator."""
    import onnx
    from onnx import TensorProto, helper

    shape = [1, channels, 16]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], "only")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def told_worker(on_cpu: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return a fake worker that compiles and loads every model."""
    load = loading((0,), *LOADED)

    def answer(verb: str, options: Mapping[str, Any], limit: int | None) -> RequestOutcome:
        compiled = done(options, on_cpu=on_cpu) if verb == "compile" else None
        outcome: RequestOutcome = compiled or load(verb, options, limit)
        return outcome

    return ToldWorker(answer)


def bill_lines(text: str) -> list[str]:
    """Return the lines of a bill without next commands and host RAM."""
    start = text.index("11,483,328 bytes")
    shown = text[start:].splitlines()
    return [line for line in shown if not line.startswith(("next: ", "host RAM "))]


def test_it_ends_with_the_bill_of_footprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names the file, then shows the bill of `footprint MODEL` and a next command."""
    model, output = relu(tmp_path / "relu.onnx"), tmp_path / "out.bin"
    told = told_worker((("odd", "Strange"),))
    assert show_htp((model,), for_sm8650(output), Output(), told) == 0
    shown = capsys.readouterr().out
    first = f"{output}: {output.stat().st_size:,} bytes for SM8650, compiled by onnxruntime-qnn"
    assert shown.startswith(first)
    assert "  on the CPU: odd (Strange)" in shown
    made = measure(Path(model), find_soc("SM8650"), name_weights=True, worker=told_worker())
    assert isinstance(made, MeasuredModel)
    assert bill_lines(shown) == bill_lines(report.render_text(made.bill, compiled=True))
    assert "process domain        10,546,688" in shown
    assert shown.splitlines()[-1].endswith(f"qnnmem footprint {output} --soc SM8650")


def test_its_json_is_that_of_footprint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON is the bill of footprint plus the written files."""
    model, output = relu(tmp_path / "relu.onnx"), tmp_path / "out.bin"
    told = told_worker((("odd", "Strange"),))
    code = show_htp((model,), for_sm8650(output, epcontext=True), Output("json"), told)
    assert code == 0
    values = json.loads(capsys.readouterr().out)
    jsonschema.validate(values, load_schema("qnnmem.footprint/1"))
    written = values.pop("prepared")
    assert written["path"] == str(output)
    assert Path(written["epcontext"]).exists()
    assert written["on_cpu"] == [{"name": "odd", "operator": "Strange", "reason": ""}]
    made = measure(Path(model), find_soc("SM8650"), name_weights=True, worker=told_worker())
    assert isinstance(made, MeasuredModel)
    bill = json.loads(encode(made.bill))
    assert {**values, "host_ram": None} == {**bill, "host_ram": None}


def test_json_is_an_option_for_both_backends(tmp_path: Path) -> None:
    """`--json` and `--format json` are accepted with `--backend htp`."""
    for form in (["--json"], ["--format", "json"]):
        words = [
            "prepare",
            str(tmp_path / "none.onnx"),
            "--backend",
            "htp",
            "--soc",
            "SM8650",
            *form,
        ]
        assert "no such file" in sentence(run(*words, "-o", tmp_path / "out.bin"))


def test_a_refusal_is_told_with_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timeout gives exit code 4, names --time-limit and leaves no file."""
    model, output = relu(tmp_path / "relu.onnx"), tmp_path / "out.bin"
    outcome = RequestOutcome("timeout", sentence="not finished within 1 s")
    told: Any = ToldWorker(lambda *_all: outcome)
    assert show_htp((model,), for_sm8650(output), Output(), told) == 4
    shown = capsys.readouterr().out
    assert shown.startswith("No binary: compile was not finished within 600 s; allow more time ")
    assert "--time-limit, or try" in shown
    assert not output.exists()


@needs_library
@pytest.mark.htp
def test_the_real_bill_is_that_of_footprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real library, `prepare` shows the same numbers as `footprint`."""
    model, output = relu(tmp_path / "relu.onnx"), tmp_path / "out.bin"
    assert show_htp((model,), for_sm8650(output), Output()) == 0
    prepared = capsys.readouterr().out.splitlines()
    words = ["footprint", model, "--soc", "SM8650"]
    footprint = run(*words).stdout.splitlines()
    kept = [line for line in footprint[:-1] if not line.startswith("host RAM")]
    assert [line for line in prepared if line in kept and line] == [line for line in kept if line]


@needs_library
@pytest.mark.htp
def test_a_binary_and_its_epcontext_model_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The binary holds the requested memory hint, and the EPContext model refers to the binary."""
    output = tmp_path / "out.bin"
    model = relu(tmp_path / "relu.onnx")
    options = for_sm8650(output, io_mem_type="memhandle", epcontext=True)
    code = show_htp((model,), options, Output())
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.startswith(f"{output}: {output.stat().st_size:,} bytes for SM8650")
    assert "IO memory type in the file: memhandle" in shown
    assert output.name.encode() in epcontext_path(output).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("out.bin", "out_ctx.onnx", "relu.onnx")
    ]


@needs_library
@pytest.mark.htp
def test_a_refused_model_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unsupported node is named, the exit code is 1 and no file is written."""
    output = tmp_path / "out.bin"
    model = relu(tmp_path / "det.onnx", "Acosh")
    assert show_htp((model,), for_sm8650(output), Output()) == 1
    assert capsys.readouterr().out.startswith(
        "No binary: QNN does not support a node on SM8650: 'only'"
    )
    assert not output.exists()


def test_a_soc_must_be_named(tmp_path: Path) -> None:
    """A missing --soc is refused, as the library would choose one itself."""
    with pytest.raises(MissingSoc, match="choose a SoC"):
        show_htp(("a.onnx",), PreparationOptions(output=str(tmp_path / "out.bin")), Output())


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    """An existing output file is refused before the compilation."""
    output = tmp_path / "out.bin"
    output.write_bytes(b"mine")
    with pytest.raises(OutputError, match="already exists"):
        show_htp(("a.onnx",), for_sm8650(output), Output())
    assert output.read_bytes() == b"mine"


def test_one_file_at_a_time(tmp_path: Path) -> None:
    """More than one file is refused for HTP."""
    with pytest.raises(UsageError, match="one file"):
        show_htp(("a.onnx", "b.onnx"), for_sm8650(tmp_path / "o.bin"), Output())
