"""The output tree of net-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnmem.atomic_file import write_whole
from qnnmem.errors import OutputError, UsageError
from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.compiled import CompiledGraph, Quant
from qnnmem.lpai.net_run.files import OutputForm, OutputTree, ResultWriter
from qnnmem.planner import plan_model


def graph(
    dtype: DType = DType.INT8, elements: int = 4, quant: Quant | None = None
) -> CompiledGraph:
    """Return a compiled graph from x to y."""
    tensors = {name: Tensor(name, dtype, (elements,)) for name in "xy"}
    model = Model("m", "onnx", tensors, (Op("a", "A", ("x",), ("y",)),), ("x",), ("y",))
    plan = plan_model(model)
    quants = {} if quant is None else {"y": quant}
    pools = plan.scratch_bytes, plan.persistent_bytes
    return CompiledGraph("g", plan.model, plan.buffers, *pools, plan.align, quants=quants)


def bytes_of(*values: int) -> dict[str, NDArray[Any]]:
    """Return the output in the form that the runtime returns."""
    return {"y": np.array(values, np.int8).view(np.uint8)}


def test_outputs_are_real_numbers_and_stored_ones(tmp_path: Path) -> None:
    """The float file holds the real values, the native file the stored integers."""
    form = OutputForm(as_float=True, native=True)
    writer = ResultWriter(tmp_path, graph(quant=Quant(0.5, 2)), form, None)
    writer.write(3, bytes_of(-128, 0, 2, 127))
    found = np.fromfile(tmp_path / "Result_3/y.raw", "<f4")
    assert found.tolist() == [-65.0, -1.0, 0.0, 62.5]
    assert np.fromfile(tmp_path / "Result_3/y_native.raw", np.int8).tolist() == [-128, 0, 2, 127]


def test_a_type_without_numbers_is_written_native_only(tmp_path: Path) -> None:
    """An output type without a float form is refused before the run; native files work."""
    strange = graph(DType.BFLOAT16)
    with pytest.raises(UsageError, match="add --use_native_output_files"):
        ResultWriter(tmp_path, strange, OutputForm(), None)
    writer = ResultWriter(tmp_path, strange, OutputForm(as_float=False, native=True), None)
    writer.write(0, {"y": np.arange(8, dtype=np.uint8)})
    assert (tmp_path / "Result_0/y_native.raw").read_bytes() == bytes(range(8))


def test_a_file_in_the_way_is_an_error_in_words(tmp_path: Path) -> None:
    """A file where a folder belongs, or the reverse, raises OutputError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="exists and is not a folder"):
        OutputTree(tmp_path / "file", OutputForm())
    with pytest.raises(OutputError, match="cannot be created"):
        OutputTree(tmp_path / "a\0b", OutputForm())
    (tmp_path / "Result_0/y.raw").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"y\.raw is not a regular file"):
        ResultWriter(tmp_path, graph(), OutputForm(), None).write(0, bytes_of(1, 2, 3, 4))
    assert [path.name for path in (tmp_path / "Result_0").iterdir()] == ["y.raw"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    """A failed write leaves no file."""
    with pytest.raises(TypeError):
        write_whole(tmp_path / "x", "no bytes")  # type: ignore[arg-type]  # tested
    assert list(tmp_path.iterdir()) == []
