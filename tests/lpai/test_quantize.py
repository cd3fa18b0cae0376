from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qnnmem import load
from qnnmem.child import ChildProcess
from qnnmem.errors import LoadError, OutputError, UsageError
from qnnmem.ir import DType, Model
from qnnmem.loader.onnx import executable
from qnnmem.lpai import quantize
from qnnmem.lpai.compiled import Quant
from qnnmem.lpai.quantize import QuantizeResult, quantize_model
from qnnmem.lpai.quantize.child import QuantizeAdvice
from qnnmem.lpai.quantize.precision import classify, float_io, float_tensors
from qnnmem.lpai.quantize.quantized_graph import ValueRange, encodings, range_of, replace_endless
from qnnmem.results.prepared import QuantizedGraph, TriedWidths

STATE = [("h", "h_new")]


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Return weights that depend only on their name."""
    random = numpy.random.default_rng(list(name.encode()))
    return numpy_helper.from_array(random.normal(0, 0.3, shape).astype("float32"), name)


def save(
    folder: Path, text: str, *stored: onnx.TensorProto, opset: int = 17, name: str = "model"
) -> Path:
    """Write a model in ONNX's text form, with extra stored tensors, and return its path."""
    domains = f'"" : {opset}, "com.microsoft": 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")
    model.graph.initializer.extend(stored)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def convolutions(folder: Path, opset: int = 17) -> Path:
    """Write two convolutions with batch normalisation, activation and pooling."""
    text = """(float[1,3,8,8] x) => (float[1,4,2,2] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1, b1)
        n = BatchNormalization(a, s, b1, m, v)
        r = Relu(n)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        c = Conv<pads=[1,1,1,1]>(p, w2)
        y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(c)
    }"""
    positive = [numpy_helper.from_array(numpy.full(4, 1.5, "float32"), name) for name in "sv"]
    stored = [weights("w1", 4, 3, 3, 3), weights("b1", 4), weights("w2", 4, 4, 3, 3)]
    return save(folder, text, *stored, weights("m", 4), *positive, opset=opset)


def chain(folder: Path) -> Path:
    """Write matrix products with element-wise ops between, as in a small language model."""
    text = """(float[2,8] x) => (float[2,5] y) {
        a = MatMul(x, w1)
        b = Add(a, b1)
        t = Tanh(b)
        g = Sigmoid(b)
        q = Mul(t, g)
        z = Gemm(q, w2, b2)
        y = Softmax(z)
    }"""
    stored = (weights("w1", 8, 6), weights("b1", 6), weights("w2", 6, 5), weights("b2", 5))
    return save(folder, text, *stored)


def recurrent(folder: Path) -> Path:
    """Write a recurrent cell whose caller carries the state."""
    text = """(float[1,4] x, float[1,6] h) => (float[1,3] y, float[1,6] h_new) {
        a = MatMul(x, wx)
        b = MatMul(h, wh)
        s = Add(a, b)
        h_new = Tanh(s)
        y = MatMul(h_new, wy)
    }"""
    stored = (weights("wx", 4, 6), weights("wh", 6, 6), weights("wy", 6, 3))
    return save(folder, text, *stored)


def run(path: Path, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a run without optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def quantized(value: NDArray[Any], encoding: Quant, dtype: str) -> NDArray[Any]:
    """Return the integers that represent a float array."""
    limits = numpy.iinfo(dtype)
    codes = numpy.round(value / encoding.scale) + encoding.zero_point
    return numpy.clip(codes, limits.min, limits.max).astype(dtype)


def real(value: NDArray[Any], encoding: Quant) -> NDArray[Any]:
    """Return the real values that integers represent."""
    return (value.astype("float32") - encoding.zero_point) * numpy.float32(encoding.scale)


def kinds(model: Model) -> set[DType]:
    """Return the types of all tensors that the model's ops write."""
    return {model.tensors[name].dtype for op in model.ops for name in op.outputs}


class Made(NamedTuple):
    """A model, its quantized copy, the result, and the progress lines."""

    path: Path
    out: Path
    result: QuantizeResult
    said: list[str]


@pytest.fixture(scope="module")
def chain16(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the chain of matrix products, quantized to 16 bits."""
    folder = tmp_path_factory.mktemp("chain")
    path, out, said = chain(folder), folder / "out.onnx", list[str]()
    return Made(path, out, quantize_model(path, out, bits=16, progress=said.append), said)


@pytest.mark.parametrize(("bits", "kind"), [(8, DType.UINT8), (16, DType.UINT16)])
@pytest.mark.parametrize("make", [convolutions, chain])
def test_a_quantized_model_computes_on_integers(
    make: Any, bits: Any, kind: DType, tmp_path: Path
) -> None:
    """All ops and graph outputs of a quantized model have the requested integer type."""
    out = tmp_path / "out.onnx"
    result = quantize_model(make(tmp_path), out, bits=bits)
    model = load(out)
    assert classify(model).is_quantized
    assert float_tensors(model) == ()
    assert kinds(model) == {kind}
    assert result.worst_error is not None
    assert result.worst_error < 0.1


def test_integers_mean_what_the_metadata_says(chain16: Made) -> None:
    """With the scales in the metadata, quantized runs give nearly the float result."""
    path, out, result, _ = chain16
    x = numpy.random.default_rng(5).normal(0, 1, (2, 8)).astype("float32").clip(-2, 2)
    codes = quantized(x, result.io["x"], "uint16")
    y = real(run(out, {"x": codes})["y"], result.io["y"])
    assert abs(y - run(path, {"x": x})["y"]).max() < 0.02
    assert encodings(onnx.load(out)) == dict(result.io)
    assert encodings(executable(out)) == dict(result.io)


def test_the_border_may_stay_float(tmp_path: Path) -> None:
    """With float IO, only the quantize and dequantize ops at the border are float.

    Quantizing such a model again is refused.
    """
    out = tmp_path / "out.onnx"
    quantize_model(chain(tmp_path), out, bits=8, integer_io=False)
    model = load(out)
    assert (model.ops[0].type, model.ops[-1].type) == ("QuantizeLinear", "DequantizeLinear")
    assert float_io(model) == ("x", "y")
    assert classify(model).is_quantized
    assert encodings(onnx.load(out)) == {}
    with pytest.raises(
        LoadError,
        match=(
            r"already partly quantized, as QuantizeLinear 'x_QuantizeLinear' shows; quantize the "
            r"original float model, or do not quantize"
        ),
    ):
        quantize_model(out, tmp_path / "twice.onnx", bits=8)


def test_a_model_without_one_operator_of_onnx_is_refused(tmp_path: Path) -> None:
    """A model with only ai.onnx.ml operators is refused with that domain as the reason."""
    text = """<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]> g (float[1,2] x) => (float[1,2] y)
        { y = ai.onnx.ml.Scaler <offset = [0.5, 1.5], scale = [2.0, 3.0]> (x) }"""
    path = tmp_path / "scaler.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(LoadError, match=r"all operators belong to domain 'ai\.onnx\.ml'"):
        quantize_model(path, tmp_path / "out.onnx", bits=8)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("opset", [9, 21])
def test_old_and_new_operator_sets_work(opset: int, bits: Any, tmp_path: Path) -> None:
    """Operator sets 9 and 21 both work; old sets use com.microsoft's quantize ops."""
    out = tmp_path / "out.onnx"
    quantize_model(convolutions(tmp_path, opset), out, bits=bits)
    assert classify(load(out)).is_quantized
    codes = numpy.full((1, 3, 8, 8), 7, f"uint{bits}")
    assert run(out, {"x": codes})["y"].dtype == codes.dtype


def test_weights_are_signed_symmetric_and_per_tensor(chain16: Made) -> None:
    """Weights are signed 8-bit with one scale and zero point 0, even beside 16-bit activations."""
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(chain16.out).graph.initializer}
    assert stored["w1_quantized"].dtype == numpy.int8
    assert stored["w1_zero_point"] == 0
    assert stored["w1_scale"].size == 1


def test_weights_of_16_bits_are_nearer_to_the_float_model(chain16: Made, tmp_path: Path) -> None:
    """16-bit weights reduce the error to less than a tenth."""
    wide = quantize_model(chain16.path, tmp_path / "out.onnx", bits=16, weight_bits=16)
    assert wide.worst_error is not None
    assert chain16.result.worst_error is not None
    assert wide.worst_error < chain16.result.worst_error / 10


def test_the_same_seed_gives_the_same_bytes(chain16: Made, tmp_path: Path) -> None:
    """The quantized file depends only on the model and the seed."""
    same, other = tmp_path / "same.onnx", tmp_path / "other.onnx"
    quantize_model(chain16.path, same, bits=16)
    quantize_model(chain16.path, other, bits=16, seed=1)
    assert same.read_bytes() == chain16.out.read_bytes()
    assert other.read_bytes() != chain16.out.read_bytes()


@pytest.mark.parametrize("bits", [8, 16])
def test_a_state_has_one_meaning_at_both_ends(bits: Any, tmp_path: Path) -> None:
    """A state has one scale at both ends, so its bytes can be fed back for ten frames."""
    path, out = recurrent(tmp_path), tmp_path / "out.onnx"
    result = quantize_model(path, out, bits=bits, states=STATE)
    assert result.io["h"] == result.io["h_new"]
    dtype, random = f"uint{bits}", numpy.random.default_rng(3)
    h = numpy.zeros((1, 6), "float32")
    codes = quantized(h, result.io["h"], dtype)
    for _ in range(10):
        x = random.uniform(-1, 1, (1, 4)).astype("float32")
        h = run(path, {"x": x, "h": h})["h_new"]
        codes = run(out, {"x": quantized(x, result.io["x"], dtype), "h": codes})["h_new"]
        assert abs(real(codes, result.io["h_new"]) - h).max() < 0.05


def test_a_state_that_shares_the_scale_of_another_tensor_is_requantized(tmp_path: Path) -> None:
    """A state tied to another tensor's scale is requantized, with a note."""
    text = """(float[1,4] x, float[4,1] h) => (float[4,1] y, float[4,1] h_new) {
        s = Mul(x, k)
        y = Tanh(h)
        h_new = Transpose<perm=[1,0]>(s)
    }"""
    path = save(tmp_path, text, numpy_helper.from_array(numpy.array(9, "float32"), "k"))
    sample = tmp_path / "data"
    sample.mkdir()
    numpy.savez(sample / "a.npz", x=numpy.ones((1, 4), "f4"), h=-50 * numpy.ones((4, 1), "f4"))
    result = quantize_model(path, tmp_path / "out.onnx", bits=8, calibration=sample, states=STATE)
    assert result.io["h"] == result.io["h_new"]
    assert any("requantized" in note for note in result.notes)
    assert classify(load(tmp_path / "out.onnx")).is_quantized


def test_a_relu_behind_a_state_still_cuts(tmp_path: Path) -> None:
    """A Relu on a state still clips at zero, even if the state's range goes below."""
    text = "(float[1,4] x, float[1,4] h) => (float[1,4] h_new) { a = Add(x, h) h_new = Relu(a) }"
    data = tmp_path / "data"
    data.mkdir()
    numpy.savez(data / "a.npz", x=-numpy.ones((1, 4), "f4"), h=-numpy.ones((1, 4), "f4"))
    out = tmp_path / "out.onnx"
    path = save(tmp_path, text)
    result = quantize_model(path, out, bits=8, calibration=data, states=STATE)
    feeds = {n: quantized(-numpy.ones((1, 4)), result.io[n], "uint8") for n in ("x", "h")}
    assert (real(run(out, feeds)["h_new"], result.io["h_new"]) == 0).all()


def test_a_recurrent_op_is_quantized_at_its_ends(tmp_path: Path) -> None:
    """An LSTM reads and writes integers with 8-bit weights; a note names its float part."""
    text = """(float[3,1,4] x, float[1,1,2] h, float[1,1,2] c) =>
        (float[1,1,2] h_new, float[1,1,2] c_new) {
        y, h_new, c_new = LSTM<hidden_size=2>(x, w, r, b, , h, c)
    }"""
    stored = (weights("w", 1, 8, 4), weights("r", 1, 8, 2), weights("b", 1, 16))
    out = tmp_path / "out.onnx"
    states = [*STATE, ("c", "c_new")]
    result = quantize_model(save(tmp_path, text, *stored), out, bits=16, states=states)
    model = load(out)
    assert classify(model).is_quantized
    assert model.tensors["w_quantized"].dtype is DType.INT8
    assert result.io["c"] == result.io["c_new"]
    assert any("recurrent ops" in note for note in result.notes)


def test_what_stays_float_is_said(tmp_path: Path) -> None:
    """Ops inside branches stay float, and the notes and the verdict say so."""
    text = """(float[2] x, bool c) => (float[2] y) {
        a = Tanh(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Exp(a) },
                   else_branch = e () => (float[2] q) { q = Neg(a) }>
    }"""
    out = tmp_path / "out.onnx"
    result = quantize_model(save(tmp_path, text), out, bits=8)
    assert "branches and loops whose bodies remain in floating point: 1" in result.notes
    assert "'y' stays floating point" in result.notes
    assert {op.type for op in classify(load(out)).float_ops} >= {"If", "Exp", "Neg"}


def test_infinite_constants_do_not_spoil_scales(tmp_path: Path) -> None:
    """An infinite constant is replaced, so that it does not distort the scale."""
    low = numpy_helper.from_array(numpy.array(-numpy.inf, "float32"), "low")
    path = save(tmp_path, "(float[2,4] x) => (float[2,4] y) { y = Max(x, low) }", low)
    result = quantize_model(path, tmp_path / "out.onnx", bits=8)
    assert result.worst_error is not None
    assert result.worst_error < 0.01
    assert any("infinity" in note for note in result.notes)


def test_a_mask_ends_one_range_below_the_values() -> None:
    """An infinite mask value becomes one range below the values, and the result's range widens."""
    mask = numpy.array([0, -3.4e38], "float32")
    graph = helper.make_graph([helper.make_node("Add", ["x", "m"], ["y"])], "g", [], [])
    graph.initializer.append(numpy_helper.from_array(mask, "m"))
    ranges = {"x": ValueRange(-1.0, 3.0), "y": ValueRange(-1.0, 3.0)}
    assert len(replace_endless(graph, ranges)) == 1
    assert list(numpy_helper.to_array(graph.initializer[0])) == [0, -5]
    assert ranges["y"] == ValueRange(-5.0, 3.0)


def test_ranges_count_finite_values_only() -> None:
    """Ranges ignore infinities, mask values and NaN."""
    values = numpy.array([1.5, -numpy.inf, numpy.nan, 3.4e38, -2.0], "float32")
    assert range_of(values) == ValueRange(-2.0, 1.5)
    assert range_of(values[1:4]) == ValueRange(0.0, 0.0)


def test_a_bias_of_two_ops_is_copied_under_a_free_name(tmp_path: Path) -> None:
    """A bias that two ops share is copied under a name that is not in use."""
    text = """(float[1,3,4,4] x) => (float[1,4,4,4] y) {
        b0 = Conv<kernel_shape=[1,1]>(x, w, b)
        b1 = Conv<kernel_shape=[1,1]>(b0, v, b)
        y = Sub(b0, b1)
    }"""
    stored = (weights("w", 4, 3, 1, 1), weights("v", 4, 4, 1, 1), weights("b", 4))
    result = quantize_model(save(tmp_path, text, *stored), tmp_path / "out.onnx", bits=16)
    assert result.worst_error is not None
    assert result.worst_error < 0.05


def test_an_output_that_is_read_again_becomes_integer_too(tmp_path: Path) -> None:
    """A graph output that another op reads becomes an integer tensor too."""
    text = "(float[1,4] x) => (float[1,4] y, float[1,4] z) { y = Tanh(x) z = Exp(y) }"
    out = tmp_path / "out.onnx"
    result = quantize_model(save(tmp_path, text), out, bits=8)
    assert set(result.io) == {"x", "y", "z"}
    assert kinds(load(out)) == {DType.UINT8}


def test_random_ranges_are_called_random(chain16: Made) -> None:
    """Without calibration data, the first note says that the ranges are random."""
    assert chain16.result.seeded_random
    assert chain16.result.samples == 8
    assert "random" in chain16.result.notes[0]


def test_progress_is_told(chain16: Made) -> None:
    """The progress callback gets each sample and the final comparison."""
    assert chain16.said[:8] == [f"calibrating sample {number} of 8" for number in range(1, 9)]
    assert chain16.said[-1] == "comparing with the float model"


def test_weights_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    """External weights give the same quantized file as weights inside the model."""
    model = onnx.load(chain(tmp_path))
    path, outs = tmp_path / "split.onnx", [tmp_path / "1.onnx", tmp_path / "2.onnx"]
    quantize_model(tmp_path / "model.onnx", outs[0], bits=8)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    quantize_model(path, outs[1], bits=8)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_free_dimensions_are_fixed_first(tmp_path: Path) -> None:
    """Open dimensions are fixed before quantization."""
    path = save(tmp_path, "(float[n,4] x) => (float[n,4] y) { y = Tanh(x) }")
    quantize_model(path, tmp_path / "out.onnx", bits=8, dims={"n": 3})
    assert load(tmp_path / "out.onnx").tensors["x"].shape == (3, 4)


def test_the_file_gives_way_to_the_result_only_when_it_is_whole(tmp_path: Path) -> None:
    """A failed quantization leaves no file, and a missing folder is named."""
    path = chain(tmp_path)
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        quantize_model(path, tmp_path / "no" / "out.onnx", bits=8)
    with pytest.raises(LoadError, match=r"did not finish within 0\.01 s"):
        quantize_model(path, tmp_path / "out.onnx", bits=8, time_limit_s=0.01)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4}, "4 bits are not supported"),
        ({"bits": 8, "weight_bits": 32}, "32 bits are not supported"),
        ({"bits": 8, "states": [("x", "h")]}, "state 'x'='h' must be an input and an output"),
    ],
)
def test_impossible_wishes_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    """An unsupported width or an invalid state pair raises UsageError."""
    with pytest.raises(UsageError, match=message):
        quantize_model(chain(tmp_path), tmp_path / "out.onnx", **options)


def test_results_are_frozen() -> None:
    """The scales in a result are read-only."""
    result = QuantizeResult((), 1, False, None, {"x": Quant(1.0, 0)})
    with pytest.raises(TypeError):
        result.io["x"] = Quant(2.0, 0)  # type: ignore[index]  # tested


def test_calibration_data_sets_the_ranges(tmp_path: Path) -> None:
    """The calibration samples alone set an input's range; a state needs no samples."""
    data = tmp_path / "data"
    data.mkdir()
    for number, value in enumerate((-4.0, 6.2)):
        numpy.savez(data / f"{number}.npz", x=numpy.full((1, 4), value, "float32"))
    out = tmp_path / "out.onnx"
    result = quantize_model(recurrent(tmp_path), out, bits=8, calibration=data, states=STATE)
    assert not result.seeded_random
    assert result.samples == 2
    assert result.io["x"].scale == pytest.approx(10.2 / 255)
    assert result.io["x"].zero_point == 100


def test_bad_calibration_data_stops_quantizing(tmp_path: Path) -> None:
    """Wrong calibration data raises UsageError and leaves no file."""
    data = tmp_path / "data"
    data.mkdir()
    numpy.save(data / "a.npy", numpy.ones((9, 8), "float32"))
    with pytest.raises(UsageError, match=r"a\.npy: float32 of shape 9x8 given"):
        quantize_model(chain(tmp_path), tmp_path / "out.onnx", bits=8, calibration=data)
    assert not (tmp_path / "out.onnx").exists()


def fading(folder: Path) -> Path:
    """Write a product with one large weight, which leaves no precision for the used weights."""
    values = numpy.full((4, 4), 1e-3, "float32")
    values[0, 0] = 1.0
    text = "(float[1,4] x) => (float[1,3] y) { a = MatMul(x, w) y = Slice(a, from, to, axis) }"
    numbers = {"from": [1], "to": [4], "axis": [1]}
    stored = [numpy_helper.from_array(numpy.array(v, "int64"), k) for k, v in numbers.items()]
    return save(folder, text, numpy_helper.from_array(values, "w"), *stored)


def test_what_helps_against_a_large_error_was_tried(tmp_path: Path) -> None:
    """For a large error, wider types are tried, and their errors equal those of a real run."""
    model, out = fading(tmp_path), tmp_path / "out.onnx"
    poor = quantize_model(model, out, bits=8)
    assert poor.worst_error is not None
    assert poor.worst_error > 0.2
    assert [widths(tried) for tried in poor.tried] == [(8, 16), (16, 8), (16, 16)]
    for tried in poor.tried:
        wide = quantize_model(
            model,
            out,
            bits=16 if tried.bits == 16 else 8,
            weight_bits=16 if tried.weight_bits == 16 else 8,
        )
        assert wide.worst_error == tried.error
    found = QuantizedGraph(
        bits=8,
        weight_bits=8,
        error=poor.worst_error,
        error_is_large=True,
        made_up_samples=True,
        tried=poor.tried,
    )
    cures = [widths(cure) for cure in found.cures]
    assert cures[-1] == (16, 16)
    assert (16, 8) not in cures


def widths(tried: TriedWidths) -> tuple[int, int]:
    """Return the bits of activations and of weights."""
    return tried.bits, tried.weight_bits


def test_nothing_is_tried_where_the_error_is_small(chain16: Made) -> None:
    """With a small error, no wider types are tried."""
    assert chain16.result.tried == ()


def test_advice_takes_no_time_that_the_work_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without enough time left, no wider types are tried."""
    monkeypatch.setattr(quantize, "_ADVICE_S", 0.0)
    assert quantize_model(fading(tmp_path), tmp_path / "out.onnx", bits=8).tried == ()


def test_a_child_that_ends_while_it_looks_for_advice_has_done_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the child ends while it tries wider types, the quantized model is still written."""
    monkeypatch.setattr(ChildProcess, "receive", receive_no_advice(ChildProcess.receive))
    out = tmp_path / "out.onnx"
    assert quantize_model(fading(tmp_path), out, bits=8).tried == ()
    assert out.stat().st_size > 100


def receive_no_advice(receive: Any) -> Any:
    """Return a receive function that gives None instead of advice, as after a child's exit."""

    def instead(child: ChildProcess, *wanted: Any) -> Any:
        frame = receive(child, *wanted)
        return None if frame is not None and isinstance(frame[0], QuantizeAdvice) else frame

    return instead
