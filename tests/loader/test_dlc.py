"""DLC files: read by the vendor's reader, planned, translated and computed."""

from __future__ import annotations

import json
import random
import re
from ctypes import pointer, sizeof  # noqa: TID251 - structs that the library fills
from pathlib import Path
from typing import Any

import dlc_examples
import jsonschema
import numpy as np
import pytest
from command_line import exit_code, run, sentence
from msgspec.structs import replace

from qnnmem.child import ChildProcess
from qnnmem.errors import CannotTell, ChildLost, LoadError
from qnnmem.installation import package_folder
from qnnmem.ir import Effect
from qnnmem.loader import dlc, load
from qnnmem.loader.dlc import composed
from qnnmem.loader.dlc.model import as_model
from qnnmem.loader.dlc.operators import OPERATORS, translate
from qnnmem.loader.dlc.recorder import origins
from qnnmem.planner import plan_model
from qnnmem.qnn.abi import CMapping, CMappingPair, COpMapping, COpMappingV1
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor
from qnnmem.qnn.tensor import Quantization
from qnnmem.quiet_onnxruntime import exact_session
from qnnmem.results.schema import load_schema

FILES = Path(__file__).parent / "dlc"
NAMES = sorted(dlc_examples.MODELS)
reads_dlc = pytest.mark.skipif(
    package_folder(["libQnnSystem.so"]) is None,
    reason="needs libQnnSystem of onnxruntime-qnn",
)


def same_name(name: str) -> str:
    """Return the name as QNN stores it."""
    return re.sub(r"\W", "_", name).lstrip("_")


def feed(model: Any) -> dict[str, Any]:
    """Return seeded values for the model's only input."""
    (value,) = model.graph.input
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    rng = np.random.default_rng(5)
    if kind.elem_type == 1:
        return {value.name: rng.standard_normal(shape).astype("f4")}
    most, form = {2: (256, "u1"), 4: (65536, "u2")}[kind.elem_type]
    return {value.name: rng.integers(0, most, shape).astype(form)}


def outputs(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the results of onnxruntime by output name."""
    session = exact_session(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return {same_name(n): v for n, v in zip(names, session.run(names, given), strict=True)}


@reads_dlc
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_computes_what_its_source_computes(name: str) -> None:
    """A translated DLC computes the results of the ONNX model that it was converted from."""
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
    """A DLC returns the source's weights byte for byte, with QNN's order of axes."""
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
    """A DLC is planned with QNN's layouts; op parameters are not constants of the plan."""
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
    """A quantized DLC runs in planned memory with the source's results, at most one step off."""
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
@pytest.mark.parametrize("name", ["quantized8", "quantized16"])
def test_a_binary_keeps_what_the_integers_of_a_file_mean(name: str, tmp_path: Path) -> None:
    """A prepared DLC takes and returns floats in the scales and offsets that the file states."""
    (graph,) = dlc.compose(FILES / f"{name}.dlc")
    border = {one.name: one for one in graph.tensors if one.type.name.startswith("APP_")}
    binary = tmp_path / "net.bin"
    assert exit_code(run("prepare", FILES / f"{name}.dlc", "-o", binary)) == 0
    shown = run("inspect", binary).output
    for one in border.values():
        assert f"{one.name}  {one.data_type.name} " in shown
    source = dlc_examples.MODELS[name]()
    codes = feed(source)["x"]
    ((scale,), (offset,)) = (getattr(border["x"].quantization, k) for k in ("scales", "offsets"))
    ((codes.astype("f4") + offset) * np.float32(scale)).astype("<f4").tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text(f"x:={tmp_path / 'x.raw'}\n")
    given = ("--input_list", tmp_path / "list.txt", "--output_dir", tmp_path / "out")
    assert exit_code(run("net-run", binary, *given)) == 0
    (file,) = (tmp_path / "out" / "Result_0").glob("*.raw")
    ((output, wanted),) = outputs(source, {"x": codes}).items()
    step = border[output].quantization.scales[0]  # type: ignore[union-attr]
    real = (wanted.reshape(-1).astype("f8") + border[output].quantization.offsets[0]) * step  # type: ignore[union-attr]
    assert np.abs(np.fromfile(file, "<f4") - real).max() <= step * 1.01


@reads_dlc
def test_a_float_file_is_refused_by_lpai(tmp_path: Path) -> None:
    """LPAI refuses a DLC with float tensors and names the vendor's quantizer as the way out."""
    done = run("prepare", str(FILES / "resizes.dlc"), "-o", str(tmp_path / "net.bin"))
    assert exit_code(done) == 2
    assert "the vendor's quantizer" in sentence(done)
    assert "--quantize" not in sentence(done)
    assert not list(tmp_path.iterdir())


@reads_dlc
@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_get_one_sentence(seed: int, tmp_path: Path) -> None:
    """A damaged DLC is planned or refused in one line, without a traceback."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
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


@pytest.mark.parametrize(
    "words",
    [
        "libc++abi: terminating with uncaught exception of type std::runtime_error: no a::b",
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no a::b",
    ],
)
def test_a_reader_that_dies_is_told_from_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """If the vendor's reader dies, its C++ exception is quoted; otherwise a crash is reported."""
    path = tmp_path / "net.dlc"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(composed, "package_folder", lambda _names: tmp_path)
    said = [f"{words}\n".encode()]

    def silent(_self: ChildProcess, *_: object, **__: object) -> None:
        raise ChildLost("the reader crashed")

    class Talking(ChildProcess):
        def __init__(self, *arguments: Any, errors: Any) -> None:
            super().__init__(*arguments, errors=errors)
            errors.write(said[0])

    monkeypatch.setattr(ChildProcess, "ask", silent)
    monkeypatch.setattr(composed, "ChildProcess", Talking)
    with pytest.raises(LoadError, match="rejected the file: no a::b"):
        composed.compose(path)
    said[0] = b"something\n"
    with pytest.raises(LoadError, match="crashed on the"):
        composed.compose(path)


def test_without_the_reader_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without libQnnSystem, the message names the package and the command that installs it."""
    path = tmp_path / "net.dlc"
    path.write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(composed, "package_folder", lambda _names: None)
    with pytest.raises(CannotTell, match=r"libQnnSystem of onnxruntime-qnn.*install"):
        composed.compose(path)


def tensor(number: int, kind: TensorType, **more: Any) -> ComposedTensor:
    """Return a small tensor."""
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
        (
            ComposedOp("a", "qti.aisw", "Relu", (1,), (2,), {"slope": 0.1}, {}),
            "parameter 'slope' of 'Relu' is not supported",
        ),
        (
            ComposedOp(
                "a", "qti.aisw", "Tanh", (1,), (2,), {}, {"gain": tensor(3, TensorType.STATIC)}
            ),
            "parameter 'gain' of 'Tanh' is not supported",
        ),
        (
            ComposedOp("a", "qti.aisw", "Softplus", (1,), (2,), {"threshold": 1.0}, {}),
            "threshold 1.0",
        ),
    ],
)
def test_what_is_not_in_the_table_is_named(op: ComposedOp, words: str) -> None:
    """An unsupported operator, parameter or value is named; the plan is still made."""
    tensors = (tensor(1, TensorType.APP_WRITE), tensor(2, TensorType.APP_READ))
    graph = ComposedGraph("g", tensors, (op,))
    model = as_model(Path("g.dlc"), graph)
    assert plan_model(model).scratch_bytes == 128
    with pytest.raises(Exception, match=re.escape(words)):
        translate(graph, model)


def test_names_may_be_missing_or_twice() -> None:
    """Tensors with no name or a repeated name get unique names; a null tensor gets none."""
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
    """The reference page lists exactly the operators that the translation supports."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "reference" / "dlc.md").read_text("utf-8")
    listed = page.split("<!-- operators -->")[1]
    assert set(re.findall(r"`(\w+)`", listed)) == set(OPERATORS)


def two_graphs() -> tuple[ComposedGraph, ...]:
    """Return the two graphs of a file."""
    tensors = (tensor(1, TensorType.APP_WRITE), tensor(2, TensorType.APP_READ))
    op = ComposedOp("a", "qti.aisw", "Relu", (1,), (2,), {}, {})
    return tuple(ComposedGraph(name, tensors, (op,)) for name in ("first", "second"))


def test_every_graph_of_a_file_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All graphs of a DLC are planned unless one is named; an unknown name lists the graphs."""
    path = tmp_path / "net.dlc"
    path.write_bytes((FILES / "quantized8.dlc").read_bytes())
    monkeypatch.setattr(dlc, "compose", lambda *_, **__: two_graphs())
    assert [model.name for model in dlc.read_all(path)] == ["first", "second"]
    assert dlc.read(path, "second").name == "second"
    done = run("plan", str(path))
    assert exit_code(done) == 0
    assert re.search(r"net.dlc first .*\n.*net.dlc second ", done.stdout)
    assert "--graph first" in done.stdout
    done = run("plan", str(path), "--graph", "second")
    assert "scratch 128 bytes" in done.stdout
    done = run("plan", str(path), "--graph", "third")
    assert exit_code(done) == 2
    assert "no graph 'third'; its graphs are 'first', 'second'" in sentence(done)
    done = run("plan", str(path), "--format", "svg")
    assert "one graph, not for 2" in sentence(done)


def test_names_of_graphs_are_shown_as_they_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long graph names are printed in full, so they can be pasted after `--graph`."""
    path = tmp_path / "net.dlc"
    path.write_bytes((FILES / "quantized8.dlc").read_bytes())
    names = [f"{'Provider_' * 9}{number}{'_0' * 40}" for number in (1, 2)]
    graphs = tuple(replace(one, name=n) for one, n in zip(two_graphs(), names, strict=True))
    for module in (dlc, composed):
        monkeypatch.setattr(module, "compose", lambda *_, **__: graphs)
    shown = run("plan", str(path)).stdout, run("inspect", str(path)).stdout
    refused = sentence(run("plan", str(path), "--graph", names[0] + "x"))
    assert all(name in text for name in names for text in (*shown, refused))
    assert exit_code(run("plan", str(path), "--graph", names[1])) == 0


def test_a_sweep_of_a_file_varies_settings_alone(tmp_path: Path) -> None:
    """A sweep of a DLC varies only settings; a misspelled setting gets a suggestion."""
    words = ("sweep", FILES / "quantized8.dlc", "--soc", "SM8650", "--vary")
    done = run(*words, "vtcm=2,4,8")
    assert exit_code(done) == 2
    assert "did you mean vtcm_mb?" in sentence(done)
    assert "--dim" not in sentence(done)
    assert "opt_level, precision, vtcm_mb" in sentence(run(*words, "batch=1,2"))


@pytest.mark.parametrize("scales", [(), (0.5, 0.25)])
def test_integers_at_the_border_have_one_meaning(scales: tuple[float, ...]) -> None:
    """A quantized input without exactly one scale is refused."""
    quant = Quantization(0 if not scales else 1, scales, (0,) * len(scales), 0 if scales else None)
    x, y = (
        replace(tensor(n, kind), data_type=DataType.UFIXED_POINT_8, quantization=quant)
        for n, kind in ((1, TensorType.APP_WRITE), (2, TensorType.APP_READ))
    )
    graph = ComposedGraph(
        "g", (x, y), (ComposedOp("a", "qti.aisw", "Reshape", (1,), (2,), {}, {}),)
    )
    with pytest.raises(Exception, match="has no single scale for all its elements"):
        translate(graph, as_model(Path("g.dlc"), graph))


def test_a_name_of_a_graph_is_for_files_that_have_several(tmp_path: Path) -> None:
    """`--graph` is refused for a buffer list, and `--as qnn` for anything but ONNX."""
    path = tmp_path / "net.csv"
    path.write_text("id,lower,upper,size\na,0,1,4\n")
    assert "--graph works only for a DLC" in sentence(run("plan", str(path), "--graph", "x"))
    assert "--as qnn is only for ONNX models" in sentence(run("plan", str(path), "--as", "qnn"))


def test_names_of_the_source_are_shown() -> None:
    """The source's operator names, as the vendor's converter records them, appear in op names."""
    pairs = (CMappingPair * 2)(CMappingPair(b"/net/Conv", 1), CMappingPair(b"weights", 0))
    ops = (CMapping * 1)(CMapping(b"a", pairs, 2))
    body = COpMappingV1(b"first", ops, 1, None, 0)
    listed = (COpMapping * 1)(COpMapping(1, pointer(body)))
    found = origins(listed, 1)
    assert found == {"first": {"a": ["/net/Conv"]}}
    assert [sizeof(one) for one in (CMappingPair, CMapping, COpMappingV1, COpMapping)] == [
        *(16, 24, 40, 16)
    ]
    graph = two_graphs()[0]
    op = replace(graph.ops[0], origins=("/net/Conv",))
    model = as_model(Path("g.dlc"), replace(graph, ops=(op,)))
    assert model.ops[0].name == "a (from /net/Conv)"


@reads_dlc
def test_a_cut_file_is_called_damaged(tmp_path: Path) -> None:
    """A truncated DLC is reported as damaged, not as a code of the vendor's reader."""
    data = (FILES / "quantized8.dlc").read_bytes()
    path = tmp_path / "net.dlc"
    for part in (0.3, 0.8, 0.99):
        path.write_bytes(data[: int(len(data) * part)])
        assert "damaged" in sentence(run("plan", str(path)))


@reads_dlc
def test_a_file_is_inspected() -> None:
    """`inspect` lists graphs, operators, tensors and quantization; its JSON fits the schema."""
    file = str(FILES / "quantized8.dlc")
    done = run("inspect", file)
    assert "x  UFIXED_POINT_8 1x4x8x8, 256 bytes, scale 0.03125 offset -128" in done.stdout
    assert "1 Conv2d" in done.stdout
    found = json.loads(run("inspect", file, "--json").stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.inspect-dlc/1")).validate(found)
    (graph,) = found["graphs"]
    (kernel,) = (
        one
        for one in graph["tensors"]
        if one["type"].endswith("_STATIC") and len(one["dimensions"]) == 4
    )
    assert len(kernel["quantization"]["scales"]) == 6


def stored(number: int, values: Any) -> ComposedTensor:
    """Return a constant."""
    data = np.asarray(values, "f4")
    kind = DataType.FLOAT_32
    size = data.nbytes
    return ComposedTensor(
        *(number, f"t{number}", TensorType.STATIC, kind, data.shape),
        stored_bytes=size,
        data=data.tobytes(),
    )


def computed(tensors: list[ComposedTensor], op: ComposedOp, given: Any) -> list[Any]:
    """Return the results of the ONNX nodes for one operator."""
    graph = ComposedGraph("g", tuple(tensors), (op,))
    _, proto = translate(graph, as_model(Path("g.dlc"), graph))
    return list(exact_session(proto.SerializeToString()).run(None, {"t1": given}))


def floats(number: int, kind: TensorType, *shape: int) -> ComposedTensor:
    """Return an input or output tensor of floats."""
    return ComposedTensor(number, f"t{number}", kind, DataType.FLOAT_32, shape)


def test_a_convolution_along_one_axis() -> None:
    """Conv1d is computed with channels last and single numbers for stride and dilation."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 9, 2)).astype("f4"), rng.standard_normal((3, 2, 4)).astype("f4")
    tensors = [floats(1, TensorType.APP_WRITE, 1, 9, 2), stored(2, w)]
    tensors.append(floats(3, TensorType.APP_READ, 1, 4, 4))
    pads = ComposedTensor(
        *(9, "p", TensorType.STATIC, DataType.UINT_32, (2,)),
        stored_bytes=8,
        data=np.array([1, 0], "u4").tobytes(),
    )
    scalars = {"stride": 2, "dilation": 1}
    op = ComposedOp("a", "qti.aisw", "Conv1d", (1, 2), (3,), scalars, {"pad_amount": pads})
    (found,) = computed(tensors, op, x)
    padded = np.pad(x[0], ((1, 0), (0, 0)))
    wanted = [np.einsum("kc,kco->o", padded[at : at + 3], w) for at in (0, 2, 4, 6)]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "last", "given", "wanted"),
    [
        (DataType.BOOL_8, DataType.UFIXED_POINT_8, [True, False], [6, 4]),
        (DataType.INT_32, DataType.UFIXED_POINT_8, [3, -9], [10, 0]),
        (DataType.UFIXED_POINT_8, DataType.INT_32, [10, 6], [3, 1]),
    ],
)
def test_casts_between_whole_and_fixed_point_numbers(
    first: DataType, last: DataType, given: list[Any], wanted: list[int]
) -> None:
    """Casts between integers and fixed-point numbers convert the real value."""
    scaled = Quantization(0, (0.5,), (-4,))
    tensors = [
        ComposedTensor(
            number, f"t{number}", kind, data, (2,), scaled if data.is_quantized else None
        )
        for number, kind, data in (
            (1, TensorType.APP_WRITE, first),
            (2, TensorType.APP_READ, last),
        )
    ]
    op = ComposedOp("a", "qti.aisw", "Cast", (1,), (2,), {}, {})
    (found,) = computed(tensors, op, np.asarray(given, first.numpy_name))
    assert found.tolist() == wanted


def test_a_recurrent_cell() -> None:
    """One LSTM step matches its gates; an unsupported clip threshold is named."""
    rng = np.random.default_rng(1)
    shapes: dict[int, tuple[int, ...]]
    shapes = {**dict.fromkeys((1, 2, 3, 16), (3, 2)), **dict.fromkeys((4, 5, 6, 17), (3, 3))}
    shapes |= {**dict.fromkeys((7, 8, 9, 21), (3,)), **dict.fromkeys((10, 11), (1, 3))}
    values = {place: rng.standard_normal(shape).astype("f4") for place, shape in shapes.items()}
    x = rng.standard_normal((1, 2)).astype("f4")
    tensors = [floats(1, TensorType.APP_WRITE, 1, 2)]
    tensors += [stored(100 + place, value) for place, value in values.items()]
    tensors.append(ComposedTensor(99, "", TensorType.NULL, DataType.FLOAT_32, (0,)))
    tensors += [floats(number, TensorType.APP_READ, 1, 3) for number in (201, 202, 203)]
    inputs = (1, *(100 + place if place in values else 99 for place in range(1, 24)))
    op = ComposedOp("a", "qti.aisw", "Lstm", inputs, (201, 202, 203), {"direction": 0}, {})
    every, cell, hidden = computed(tensors, op, x)

    def gate(w: int, r: int, b: int) -> Any:
        return x @ values[w].T + values[10] @ values[r].T + values[b]

    def sigmoid(value: Any) -> Any:
        return 1 / (1 + np.exp(-value))

    kept = sigmoid(gate(1, 4, 7)) * values[11]
    wanted = kept + sigmoid(gate(16, 17, 21)) * np.tanh(gate(2, 5, 8))
    np.testing.assert_allclose(cell, wanted, rtol=1e-4, atol=1e-5)
    shown = sigmoid(gate(3, 6, 9)) * np.tanh(wanted)
    np.testing.assert_allclose(hidden, shown, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(every, hidden)
    clipped = replace(op, scalars={"cell_clip_threshold": 1.0})
    with pytest.raises(Exception, match=r"cell_clip_threshold 1.0 is not supported"):
        computed(tensors, clipped, x)
