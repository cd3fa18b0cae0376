"""DLC files: read by the vendor's reader, planned, translated and computed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import dlc_examples
import numpy as np
import pytest
from command_line import exit_code, run, sentence

from qnnmem.child import ChildProcess
from qnnmem.errors import CannotTell, LoadError
from qnnmem.ir import Effect
from qnnmem.load import dlc, load
from qnnmem.load.dlc import composed
from qnnmem.load.dlc.model import as_model
from qnnmem.load.dlc.operators import OPERATORS
from qnnmem.load.dlc.translate import translate
from qnnmem.plan import plan_model
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor
from qnnmem.qnn.package import package_folder
from qnnmem.quiet_onnxruntime import exact_session

FILES = Path(__file__).parent / "dlc"
NAMES = sorted(dlc_examples.MODELS)
reads_dlc = pytest.mark.skipif(
    package_folder(["libQnnSystem.so"]) is None,
    reason="needs libQnnSystem of onnxruntime-qnn",
)


def same_name(name: str) -> str:
    """A name as QNN keeps it."""
    return re.sub(r"\W", "_", name).lstrip("_")


def feed(model: Any) -> dict[str, Any]:
    """Seeded values for the one input."""
    (value,) = model.graph.input
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    rng = np.random.default_rng(5)
    if kind.elem_type == 1:
        return {value.name: rng.standard_normal(shape).astype("f4")}
    most, form = {2: (256, "u1"), 4: (65536, "u2")}[kind.elem_type]
    return {value.name: rng.integers(0, most, shape).astype(form)}


def outputs(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What onnxruntime computes, by name."""
    session = exact_session(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return {same_name(n): v for n, v in zip(names, session.run(names, given), strict=True)}


@reads_dlc
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_computes_what_its_source_computes(name: str) -> None:
    """Every operator of the file through the table, against the model it was made from."""
    source = dlc_examples.MODELS[name]()
    model, proto = dlc.read_with_graph(FILES / f"{name}.dlc", 60.0)
    assert proto is not None, model.notes
    given = feed(source)
    wanted, found = outputs(source, given), outputs(proto, given)
    assert wanted.keys() == found.keys()
    for output, values in wanted.items():
        if values.dtype.kind == "u":
            steps = np.abs(values.astype("i8") - found[output].astype("i8"))
            assert steps.max() <= 1, output
        else:
            np.testing.assert_allclose(found[output], values, rtol=1e-4, atol=1e-5, err_msg=output)


@reads_dlc
def test_constants_arrive_byte_for_byte() -> None:
    """Weights of the source are in the file, in QNN's order of axes."""
    source = dlc_examples.MODELS["quantized8"]()
    (graph,) = dlc.compose(FILES / "quantized8.dlc", with_data=True)
    (kernel,) = (one for one in source.graph.initializer if len(one.dims) == 4)
    (found,) = (t for t in graph.tensors if t.type is TensorType.STATIC and len(t.dimensions) == 4)
    values = np.frombuffer(kernel.raw_data, "i1").reshape(6, 4, 3, 3).transpose(2, 3, 1, 0)
    assert found.data == values.tobytes()
    assert found.dimensions == (3, 3, 4, 6)
    assert found.data_type is DataType.SFIXED_POINT_8
    assert found.quantization is not None
    assert found.quantization.axis == 3
    np.testing.assert_allclose(found.quantization.scales, np.arange(1, 7) / 400, rtol=1e-6)
    assert set(found.quantization.offsets) == {0}


@reads_dlc
def test_a_file_is_planned_as_qnn_sees_it(tmp_path: Path) -> None:
    """Layouts of QNN, views without memory, parameters that are no constants."""
    model = load(FILES / "quantized8.dlc")
    assert (model.format, model.inputs) == ("dlc", ("x",))
    kinds = {op.type: op.effect for op in model.ops}
    assert kinds["ElementWiseBinary"] is Effect.ELEMENTWISE
    assert kinds["Conv2d"] is Effect.COMPUTE
    read = {name for op in model.ops for name in op.inputs}
    assert set(model.constants) <= read
    assert not [name for name in model.tensors if "pad_amount" in name or "perm" in name]
    assert plan_model(model).scratch_bytes > 0
    done = run("plan", str(FILES / "quantized8.dlc"), "--format", "json")
    assert exit_code(done) == 0
    assert '"quantized8"' in done.stdout or "quantized8.dlc" in done.stdout


@reads_dlc
def test_a_quantized_file_runs_in_planned_memory(tmp_path: Path) -> None:
    """From the file to a binary to results, equal to the model it came from."""
    binary = tmp_path / "net.bin"
    done = run("prepare", str(FILES / "quantized8.dlc"), "-o", str(binary))
    assert exit_code(done) == 0, done.exception
    source = dlc_examples.MODELS["quantized8"]()
    given = feed(source)
    given["x"].tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(f"x:={tmp_path / 'x.raw'}\n")
    done = run(
        *("net-run", str(binary), "--input_list", str(tmp_path / "list.txt")),
        *("--output_dir", str(tmp_path / "out"), "--use_native_output_files"),
        "--use_native_input_files",
    )
    assert exit_code(done) == 0, done.exception
    (file,) = (tmp_path / "out" / "Result_0").glob("*.raw")
    (wanted,) = outputs(source, given).values()
    found = np.fromfile(file, "u1").astype("i8")
    assert np.abs(found - wanted.reshape(-1).astype("i8")).max() <= 1


@reads_dlc
def test_a_float_file_is_refused_by_lpai(tmp_path: Path) -> None:
    """With the way out, which is not ours: the vendor's quantizer."""
    done = run("prepare", str(FILES / "resizes.dlc"), "-o", str(tmp_path / "net.bin"))
    assert exit_code(done) == 2
    assert "the vendor's quantizer" in sentence(done)
    assert "--quantize" not in sentence(done)
    assert not list(tmp_path.iterdir())


@reads_dlc
@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_get_one_sentence(seed: int, tmp_path: Path) -> None:
    """Cut, with bytes changed or doubled: read or refused, whatever the reader does."""
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    data = bytearray((FILES / "quantized8.dlc").read_bytes())
    if seed % 3 == 0:
        del data[rng.randrange(64, len(data)) :]
    for _ in range(rng.randrange(1, 40)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path = tmp_path / "net.dlc"
    path.write_bytes(data)
    done = run("plan", str(path))
    assert exit_code(done) in (0, 2)
    if exit_code(done):
        assert sentence(done).count("\n") == 0
        assert "Traceback" not in sentence(done)


def test_a_reader_that_dies_is_told_from_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words are quoted; without any the file is called damaged."""
    path = tmp_path / "net.dlc"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(composed, "package_folder", lambda _names: tmp_path)
    said = [b"libc++abi: terminating with uncaught exception of type std::runtime_error: no a::b\n"]

    def silent(_self: ChildProcess, *_: object, **__: object) -> None:
        return None

    class Talking(ChildProcess):
        def __init__(self, *arguments: Any, errors: Any) -> None:
            super().__init__(*arguments, errors=errors)
            errors.write(said[0])

    monkeypatch.setattr(ChildProcess, "ask", silent)
    monkeypatch.setattr(composed, "ChildProcess", Talking)
    with pytest.raises(LoadError, match="gave up on it: no a::b"):
        composed.compose(path)
    said[0] = b"something\n"
    with pytest.raises(LoadError, match="crashed on it"):
        composed.compose(path)


def test_without_the_reader_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package, and the command that installs it."""
    path = tmp_path / "net.dlc"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(composed, "package_folder", lambda _names: None)
    with pytest.raises(CannotTell, match=r"libQnnSystem of onnxruntime-qnn.*install"):
        composed.compose(path)


def tensor(number: int, kind: TensorType, **more: Any) -> ComposedTensor:
    """A small tensor."""
    return ComposedTensor(number, f"t{number}", kind, DataType.FLOAT_32, (2, 3), **more)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (ComposedOp("a", "qti.aisw", "Nonsense", (1,), (2,), {}, {}), "operator 'Nonsense' is not"),
        (ComposedOp("a", "mine", "Relu", (1,), (2,), {}, {}), "of package 'mine'"),
        (
            ComposedOp("a", "qti.aisw", "ElementWiseBinary", (1,), (2,), {"operation": 99}, {}),
            "operation 99",
        ),
        (ComposedOp("a", "qti.aisw", "Transpose", (1,), (2,), {}, {}), "no parameter 'perm'"),
        (ComposedOp("a", "qti.aisw", "Pad", (1,), (2,), {"scheme": 1}, {}), "scheme 1"),
    ],
)
def test_what_is_not_in_the_table_is_named(op: ComposedOp, words: str) -> None:
    """The operator, the parameter or its value; the layout is there all the same."""
    tensors = (tensor(1, TensorType.APP_WRITE), tensor(2, TensorType.APP_READ))
    graph = ComposedGraph("g", tensors, (op,))
    model = as_model(Path("g.dlc"), graph)
    assert plan_model(model).scratch_bytes == 128
    with pytest.raises(Exception, match=re.escape(words)):
        translate(graph, model)


def test_names_may_be_missing_or_twice() -> None:
    """Each tensor gets a name of its own, and one that stands for nothing gets none."""
    kinds = (TensorType.APP_WRITE, TensorType.NATIVE, TensorType.NULL, TensorType.APP_READ)
    tensors = [tensor(number, kind) for number, kind in enumerate(kinds, 1)]
    tensors = [ComposedTensor(t.id, "t" if t.id > 1 else "", *_rest(t)) for t in tensors]
    ops = (
        ComposedOp("a", "qti.aisw", "Relu", (1, 3), (2,), {}, {}),
        ComposedOp("b", "qti.aisw", "Relu", (2,), (4,), {}, {}),
    )
    model = as_model(Path("g.dlc"), ComposedGraph("g", tuple(tensors), ops), ("h",))
    assert list(model.tensors) == ["tensor 1", "t", "t (4)"]
    assert model.ops[0].inputs == ("tensor 1",)
    assert "1 more graph: 'h'" in model.notes[0]


def _rest(one: ComposedTensor) -> tuple[Any, ...]:
    return one.type, one.data_type, one.dimensions


def test_the_page_lists_the_table() -> None:
    """Operators that are executed are those of the documentation."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "reference" / "dlc.md").read_text("utf-8")
    listed = page.split("<!-- operators -->")[1]
    assert set(re.findall(r"`(\w+)`", listed)) == set(OPERATORS)
