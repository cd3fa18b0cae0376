from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.cli.prepare_htp import epcontext_path, prepare_htp
from qnnmem.errors import OutputError, UsageError
from qnnmem.htp.library import INSTALL, library_there

needs_library = pytest.mark.skipif(
    not library_there(), reason=f"the HTP library is not here; {INSTALL}"
)


def relu(path: Path, operator: str = "Relu", channels: int = 64) -> str:
    """Write a model of one operator."""
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


@needs_library
@pytest.mark.htp
def test_a_binary_and_its_epcontext_model_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line names file, bytes and SoC; the hint asked for is in the file."""
    output = tmp_path / "out.bin"
    model = relu(tmp_path / "relu.onnx")
    code = prepare_htp(
        (model,), str(output), force=False, soc="SM8650", io_mem_type="memhandle", epcontext=True
    )
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
    """The node that QNN cannot take is named, the exit code is 1 and nothing is written."""
    output = tmp_path / "out.bin"
    model = relu(tmp_path / "det.onnx", "Acosh")
    assert prepare_htp((model,), str(output), force=False, soc="SM8650") == 1
    assert capsys.readouterr().out.startswith("No binary: QNN cannot take 1 node on SM8650: 'only'")
    assert not output.exists()


def test_a_soc_must_be_named(tmp_path: Path) -> None:
    """Without a SoC the library would compile for one of its own choice."""
    with pytest.raises(UsageError, match="--soc"):
        prepare_htp(("a.onnx",), str(tmp_path / "out.bin"), force=False, soc=None)


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    """A file in the way is noticed before the work, not after."""
    output = tmp_path / "out.bin"
    output.write_bytes(b"mine")
    with pytest.raises(OutputError, match="--force"):
        prepare_htp(("a.onnx",), str(output), force=False, soc="SM8650")
    assert output.read_bytes() == b"mine"


def test_one_file_at_a_time(tmp_path: Path) -> None:
    """Several graphs in one context are not offered."""
    with pytest.raises(UsageError, match="one file"):
        prepare_htp(("a.onnx", "b.onnx"), str(tmp_path / "o.bin"), force=False, soc="SM8650")
