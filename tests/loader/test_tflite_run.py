"""Programs made from TFLite files compute the results of TFLite's reference kernels."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_writer import FLOAT32, INT8, INT32, RESOURCE, G, O, T, tflite_bytes, write_tflite

from qnnmem import lpai
from qnnmem.errors import LoadError, QnnMemError
from qnnmem.ir import Model
from qnnmem.loader.tflite import read_with_graph
from qnnmem.loader.tflite.operators import OPERATORS
from qnnmem.quiet_onnxruntime import import_onnxruntime

MODELS = Path(__file__).parents[2] / ".cache" / "models"
# 8-bit models: every element must be equal.
EXACT = (
    *("alexa", "hey_jarvis", "hey_mycroft", "anomaly_detection", "keyword_spotting"),
    *("audio_example1", "tflite_micro_speech", "keyword_spotting_on_off"),
)
STEP = 1 / 255  # of a float output, relative to its largest value or to 1
UINT8, INT64, INT16 = 3, 4, 7


class Program:
    """A TFLite file as ONNX nodes, with its states kept between runs."""

    def __init__(self, path: Path, *, reals: bool = False) -> None:
        self.model, proto, self.states = read_with_graph(path, shapes={}, reals=reals)
        assert proto is not None, self.model.notes[-1]
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self.session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.kept = {old: self.start(old) for old, _ in self.states}
        self.inputs = [name for name in self.model.inputs if name not in self.kept]
        made = {new for _, new in self.states}
        self.outputs = [name for name in self.model.outputs if name not in made]

    def start(self, name: str) -> Any:
        """Return the initial value of a variable."""
        tensor = self.model.tensors[name]
        zero = self.model.encodings.get(name, (1.0, 0))[1]
        return np.full(tensor.shape, zero, tensor.dtype.value)

    def run(self, feeds: list[Any]) -> list[Any]:
        """Return the outputs in the file's order."""
        given = dict(zip(self.inputs, feeds, strict=True))
        names = [item.name for item in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(None, {**given, **self.kept}), strict=True))
        self.kept = {old: found[new] for old, new in self.states}
        return [found[name] for name in self.outputs]


class Reference:
    """The same file in TFLite's interpreter with its reference kernels."""

    def __init__(self, path: Path) -> None:
        litert = pytest.importorskip(
            "ai_edge_litert.interpreter", reason="ai-edge-litert is not here"
        )
        way = litert.OpResolverType.BUILTIN_REF
        self.interpreter = litert.Interpreter(str(path), experimental_op_resolver_type=way)
        self.interpreter.allocate_tensors()
        self.inputs = self.interpreter.get_input_details()

    def run(self, feeds: list[Any]) -> list[Any]:
        """Return the outputs in the file's order."""
        for one, value in zip(self.inputs, feeds, strict=True):
            self.interpreter.set_tensor(one["index"], value)
        self.interpreter.invoke()
        details = self.interpreter.get_output_details()
        return [self.interpreter.get_tensor(one["index"]) for one in details]

    def feeds(self, numbers: np.random.Generator) -> list[Any]:
        """Return random inputs."""
        return [made_up(numbers, one["shape"], one["dtype"]) for one in self.inputs]


def made_up(numbers: np.random.Generator, shape: Any, dtype: Any) -> Any:
    """Return random values: 8-bit integers of any value, floats between -1 and 1."""
    if np.dtype(dtype).kind == "f":
        return numbers.uniform(-1, 1, shape).astype(dtype)
    kind = np.iinfo(dtype)
    high = kind.max + 1 if np.dtype(dtype).itemsize < 4 else 4
    return numbers.integers(kind.min if high > 4 else 0, high, shape).astype(dtype)


def compare(path: Path, *, runs: int = 5, steps: int = 0, seed: int = 0) -> None:
    """Compare both: integers may differ by `steps`, floats by a tenth of an 8-bit step."""
    reference, program = Reference(path), Program(path)
    numbers = np.random.default_rng(seed)
    for _ in range(runs):
        feeds = reference.feeds(numbers)
        pairs = zip(program.run(feeds), reference.run(feeds), strict=True)
        for found, wanted in pairs:
            assert found.shape == wanted.shape
            assert found.dtype == wanted.dtype
            apart = np.abs(found.astype("f8") - wanted.astype("f8")).max(initial=0)
            most = np.abs(wanted).max(initial=1) * STEP / 10 if wanted.dtype.kind == "f" else steps
            assert apart <= most


@pytest.mark.parametrize("name", EXACT)
def test_quantized_models_give_the_same_bits(name: str) -> None:
    """Real 8-bit models compute the same bits as TFLite over five frames, states included."""
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"model {name} is not here; fetch it with tools/models.py")
    compare(path)


def q(name: str, shape: tuple[int, ...], scale: float = 0.05, zero: int = 3, **more: Any) -> T:
    """Return an 8-bit tensor with a scale."""
    return T(name, shape, more.pop("type", INT8), scales=(scale,), zeros=(zero,), **more)


def ints(name: str, *values: int) -> T:
    """Return a constant of integers."""
    return T(name, (len(values),), INT32, np.array(values, "<i4").tobytes())


def weights(shape: tuple[int, ...], axis: int, seed: int = 1) -> T:
    """Return 8-bit weights with one scale per channel."""
    numbers = np.random.default_rng(seed)
    count = shape[axis]
    scales = tuple(float(one) for one in numbers.uniform(0.001, 0.02, count))
    data = numbers.integers(-127, 128, shape).astype("i1").tobytes()
    return T("weights", shape, INT8, data, scales=scales, zeros=(0,) * count, axis=axis)


def bias(count: int) -> T:
    """Return a 32-bit bias."""
    values = np.random.default_rng(2).integers(-900, 900, count).astype("<i4")
    return T("bias", (count,), INT32, values.tobytes(), scales=(0.001,), zeros=(0,))


def single(op: O, tensors: tuple[T, ...], inputs: tuple[int, ...]) -> G:
    """Return a graph of one operator."""
    return G(tensors, inputs, op.outputs, (op,))


def w(name: str, shape: tuple[int, ...], scale: float) -> T:
    """Return a 16-bit tensor."""
    return T(name, shape, INT16, scales=(scale,), zeros=(0,))


def wide_bias(count: int, scale: float = 0.001) -> T:
    """Return a 64-bit bias."""
    values = np.random.default_rng(2).integers(-90_000, 90_000, count).astype("<i8")
    return T("bias", (count,), INT64, values.tobytes(), scales=(scale,), zeros=(0,))


IMAGE = (1, 7, 6, 4)
# Option field slots and option table numbers follow the TFLite schema.
CASES: Mapping[str, tuple[G, int]] = {
    "conv of 16 bits": (
        single(
            O("CONV_2D", (0, 1, 2), (3,), {0: 0, 1: 2, 2: 2, 3: 1}, table=1),
            (
                *(w("x", IMAGE, 1e-4), weights((5, 3, 3, 4), 0), wide_bias(5)),
                w("y", (1, 4, 3, 5), 3e-4),
            ),
            (0,),
        ),
        0,
    ),
    "depthwise of 16 bits": (
        single(
            O("DEPTHWISE_CONV_2D", (0, 1, 2), (3,), {0: 1, 1: 1, 2: 1, 3: 2, 4: 0}, table=2),
            (
                *(w("x", IMAGE, 1e-4), weights((1, 3, 3, 8), 3), wide_bias(8)),
                w("y", (1, 5, 4, 8), 2e-4),
            ),
            (0,),
        ),
        0,
    ),
    "connected of 16 bits": (
        single(
            O("FULLY_CONNECTED", (0, 1, 2), (3,), {0: 0}, table=8),
            (
                w("x", (6, 16), 1e-4),
                T("weights", (9, 16), INT8, bytes(range(144)), scales=(0.01,), zeros=(0,)),
                *(wide_bias(9, 1e-6), w("y", (6, 9), 5e-4)),
            ),
            (0,),
        ),
        0,
    ),
    "mul of 16 bits": (
        single(
            O("MUL", (0, 1), (2,), {0: 0}, table=21),
            (w("a", IMAGE, 1e-4), w("b", IMAGE, 2e-4), w("y", IMAGE, 3e-4)),
            (0, 1),
        ),
        0,
    ),
    "conv": (
        single(
            O("CONV_2D", (0, 1, 2), (3,), {0: 0, 1: 2, 2: 2, 3: 1}, table=1),
            (q("x", IMAGE), weights((5, 3, 3, 4), 0), bias(5), q("y", (1, 4, 3, 5), 0.11, -7)),
            (0,),
        ),
        0,
    ),
    "depthwise": (
        single(
            O("DEPTHWISE_CONV_2D", (0, 1, 2), (3,), {0: 1, 1: 1, 2: 1, 3: 2, 4: 3}, table=2),
            (q("x", IMAGE), weights((1, 3, 3, 8), 3), bias(8), q("y", (1, 5, 4, 8), 0.04, -100)),
            (0,),
        ),
        0,
    ),
    "connected": (
        single(
            O("FULLY_CONNECTED", (0, 1, 2), (3,), {0: 0}, table=8),
            (
                q("x", (6, 16)),
                T("weights", (9, 16), INT8, bytes(range(144)), scales=(0.01,), zeros=(0,)),
                bias(9),
                q("y", (6, 9), 0.2, 5),
            ),
            (0,),
        ),
        0,
    ),
    "add": (
        single(
            O("ADD", (0, 1), (2,), {0: 1}, table=11),
            (q("a", IMAGE), q("b", (1, 1, 6, 4), 0.031, -9), q("y", IMAGE, 0.07, -20)),
            (0, 1),
        ),
        0,
    ),
    "sub": (
        single(
            O("SUB", (0, 1), (2,), {0: 0}, table=28),
            (q("a", IMAGE), q("b", IMAGE, 0.013, 40), q("y", IMAGE, 0.02, 1)),
            (0, 1),
        ),
        0,
    ),
    "mul": (
        single(
            O("MUL", (0, 1), (2,), {0: 3}, table=21),
            (q("a", IMAGE), q("b", IMAGE, 0.013, 40), q("y", IMAGE, 0.03, -50)),
            (0, 1),
        ),
        0,
    ),
    "average": (
        single(
            O("AVERAGE_POOL_2D", (0,), (1,), {0: 0, 1: 2, 2: 2, 3: 3, 4: 3}, table=5),
            (q("x", IMAGE), q("y", (1, 4, 3, 4))),
            (0,),
        ),
        0,
    ),
    "most": (
        single(
            O("MAX_POOL_2D", (0,), (1,), {0: 1, 1: 2, 2: 2, 3: 2, 4: 2}, table=5),
            (q("x", IMAGE), q("y", (1, 3, 3, 4))),
            (0,),
        ),
        0,
    ),
    "softmax": (
        single(
            O("SOFTMAX", (0,), (1,), {0: 1.0}, table=9),
            (q("x", (5, 11), 0.09, 10), q("y", (5, 11), 1 / 256, -128)),
            (0,),
        ),
        0,
    ),
    "flat softmax": (
        single(
            O("SOFTMAX", (0,), (1,), {0: 0.5}, table=9),
            (q("x", (2, 300), 0.002, 10), q("y", (2, 300), 1 / 256, -128)),
            (0,),
        ),
        0,
    ),
    "logistic": (
        single(
            O("LOGISTIC", (0,), (1,)), (q("x", (256,), 0.06), q("y", (256,), 1 / 256, -128)), (0,)
        ),
        0,
    ),
    "tanh": (
        single(O("TANH", (0,), (1,)), (q("x", (256,), 0.03), q("y", (256,), 1 / 128, 0)), (0,)),
        0,
    ),
    "relu": (
        single(O("RELU", (0,), (1,)), (q("x", (256,), 0.06), q("y", (256,), 0.031, -128)), (0,)),
        0,
    ),
    "relu6": (
        single(O("RELU6", (0,), (1,)), (q("x", (256,), 0.06), q("y", (256,), 0.031, -128)), (0,)),
        0,
    ),
    "leaky": (
        single(
            O("LEAKY_RELU", (0,), (1,), {0: 0.2}, table=75),
            (q("x", (256,), 0.06), q("y", (256,), 0.05, 4)),
            (0,),
        ),
        0,
    ),
    "quantize": (
        single(
            O("QUANTIZE", (0,), (1,)),
            (q("x", (256,), 0.06), q("y", (256,), 0.05, 200, type=UINT8)),
            (0,),
        ),
        0,
    ),
    "from float": (
        single(O("QUANTIZE", (0,), (1,)), (T("x", (300,), FLOAT32), q("y", (300,), 0.01)), (0,)),
        0,
    ),
    "mean": (
        single(
            O("MEAN", (0, 1), (2,), {0: 1}, table=27),
            (q("x", IMAGE), ints("axes", 1, 2), q("y", (1, 1, 1, 4), 0.02, 9)),
            (0,),
        ),
        1,
    ),
    "pad": (
        single(
            O("PAD", (0, 1), (2,)),
            (
                q("x", (1, 3)),
                T("by", (2, 2), INT32, np.array([0, 1, 2, 0], "<i4").tobytes()),
                q("y", (2, 5)),
            ),
            (0,),
        ),
        0,
    ),
    "strided": (
        single(
            O("STRIDED_SLICE", (0, 1, 2, 3), (4,), {0: 0, 1: 1, 4: 2}, table=32),
            (
                *(q("x", (5, 3)), ints("from", 3, 1), ints("to", 0, 2), ints("by", -1, 1)),
                q("y", (4,)),
            ),
            (0,),
        ),
        0,
    ),
    "concat": (
        single(
            O("CONCATENATION", (0, 1), (2,), {0: 1}, table=10),
            (q("a", (2, 3)), q("b", (2, 1)), q("y", (2, 4))),
            (0, 1),
        ),
        0,
    ),
    "split": (
        single(
            O("SPLIT", (1, 0), (2, 3), {0: 2}, table=35),
            (
                q("x", (4, 3)),
                T("axis", (), INT32, bytes(4), has_rank=True),
                q("y", (2, 3)),
                q("z", (2, 3)),
            ),
            (0,),
        ),
        0,
    ),
    "resize": (
        single(
            O("RESIZE_NEAREST_NEIGHBOR", (0, 1), (2,), {}, table=74),
            (q("x", (1, 3, 4, 2)), ints("size", 7, 5), q("y", (1, 7, 5, 2))),
            (0,),
        ),
        0,
    ),
    "bilinear": (
        single(
            O("RESIZE_BILINEAR", (0, 1), (2,), {3: 1}, table=15),
            (T("x", (1, 3, 4, 2)), ints("size", 7, 5), T("y", (1, 7, 5, 2))),
            (0,),
        ),
        0,
    ),
    "float transposed": (
        single(
            O("TRANSPOSE_CONV", (0, 1, 2), (3,), {0: 0, 1: 2, 2: 2}, table=49),
            (
                ints("size", 1, 7, 6, 2),
                T("w", (2, 3, 3, 4), FLOAT32, np.linspace(-1, 1, 72, dtype="<f4").tobytes()),
                *(T("x", (1, 4, 3, 4)), T("y", (1, 7, 6, 2))),
            ),
            (2,),
        ),
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_the_reference_kernel_gives(name: str, tmp_path: Path) -> None:
    """Operators with unusual scales, pads and strides match TFLite's kernels on five inputs."""
    graph, steps = CASES[name]
    compare(write_tflite(tmp_path / "one.tflite", graph), steps=steps)


def test_real_numbers_are_a_step_off_at_most(tmp_path: Path) -> None:
    """The float form that `fix` changes differs from integer arithmetic by at most one step."""
    numbers = np.random.default_rng(5)
    for name, (graph, _) in CASES.items():
        path = write_tflite(tmp_path / "one.tflite", graph)
        exact, form = Program(path), Program(path, reals=True)
        tensors = [exact.model.tensors[one] for one in exact.inputs]
        feeds = [made_up(numbers, one.shape, one.dtype.value) for one in tensors]
        for found, wanted in zip(form.run(feeds), exact.run(feeds), strict=True):
            apart = np.abs(found.astype("f8") - wanted.astype("f8")).max(initial=0)
            assert (found.dtype, apart <= 1) == (wanted.dtype, True), name


def streaming(start: int) -> tuple[G, G]:
    """Return a model that adds each input to a variable, and the graph that sets the variable."""
    value: dict[str, Any] = {"scales": (0.05,), "zeros": (3,)}
    tensors = (
        T("x", (6,), INT8, **value),
        T("handle", (), RESOURCE),
        T("before", (6,), INT8, **value),
        T("y", (6,), INT8, **value),
    )
    ops = (
        O("CALL_ONCE", (), (), {0: 1}, table=103),
        O("VAR_HANDLE", (), (1,), {1: "sum"}, table=111),
        O("READ_VARIABLE", (1,), (2,)),
        O("ADD", (0, 2), (3,), {0: 0}, table=11),
        O("ASSIGN_VARIABLE", (1, 3), ()),
    )
    first = (T("handle0", (), RESOURCE), T("zero", (6,), INT8, bytes([start] * 6), **value))
    once = (O("VAR_HANDLE", (), (0,), {1: "sum"}, table=111), O("ASSIGN_VARIABLE", (0, 1), ()))
    return G(tensors, (0,), (3,), ops), G(first, (), (), once)


def test_variables_are_persistent_state(tmp_path: Path) -> None:
    """A prepared model keeps its variable in persistent memory between executions."""
    path = write_tflite(tmp_path / "sum.tflite", *streaming(3))
    prepared = lpai.prepare(path, lpai.PrepareOptions(time_limit_s=60.0))
    assert prepared.plans[0].persistent_bytes == 64
    reference = Reference(path)
    prepared.write(tmp_path / "sum.bin")
    with lpai.open(tmp_path / "sum.bin") as session:
        for turn in range(4):
            frame = np.arange(6, dtype="i1") * turn
            (wanted,) = reference.run([frame])
            real = (wanted.astype("f4") - 3) * np.float32(0.05)
            assert session.run({"x": frame})["y"].tolist() == real.tolist()


def test_a_variable_that_starts_with_something_else_is_refused(tmp_path: Path) -> None:
    """A variable with a nonzero start is refused, since LPAI's memory starts at zero."""
    path = write_tflite(tmp_path / "sum.tflite", *streaming(4))
    model, proto, _ = read_with_graph(path, shapes={})
    assert proto is None
    assert "variable 'sum' starts with a value other than 0" in model.notes[-1]


def refusal(path: Path) -> str:
    """Return the reason why a file has no program."""
    model, proto, _ = read_with_graph(path, shapes={})
    assert proto is None
    return model.notes[-1]


def test_an_operator_without_a_row_is_named(tmp_path: Path) -> None:
    """An unsupported operator is named."""
    graph = G((T("x"), T("y")), (0,), (1,), (O("ATAN2", (0, 0), (1,)),))
    said = refusal(write_tflite(tmp_path / "a.tflite", graph))
    assert "operator 0 ('ATAN2') is not supported" in said
    own = G((T("x"), T("y")), (0,), (1,), (O("CUSTOM", (0,), (1,), custom="Mine"),))
    assert "operator 0 ('Mine') is a custom operator" in refusal(
        write_tflite(tmp_path / "b.tflite", own)
    )


def test_contradicting_shapes_are_refused_in_our_words(tmp_path: Path) -> None:
    """An operator that cannot return the stored shape is refused before the model runs."""
    graph = G(
        (T("x", (2, 3)), T("y", (2, 3)), T("z", (2, 5))), (0, 1), (2,), (O("MUL", (0, 1), (2,)),)
    )
    path = write_tflite(tmp_path / "a.tflite", graph)
    with pytest.raises(
        LoadError, match=r"operator 0 \('MUL'\) returns 2x3, but the file states 2x5"
    ):
        read_with_graph(path, shapes={})


def test_floats_with_quantized_weights_are_refused(tmp_path: Path) -> None:
    """Floats with quantized weights are refused, since TFLite quantizes such inputs at run time."""
    tensors = (T("x", (1, 16)), weights((4, 16), 0), T("y", (1, 4)))
    graph = G(tensors, (0,), (2,), (O("FULLY_CONNECTED", (0, 1, -1), (2,), {0: 0}, table=8),))
    assert "computes with floats and quantized weights" in refusal(
        write_tflite(tmp_path / "a.tflite", graph)
    )


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    """A file with random bytes changed gives a model or a QnnMemError, never another error."""
    chooser = random.Random(7)  # noqa: S311 - reproducible, not secret
    names = sorted(CASES)
    for _ in range(300):
        content = bytearray(tflite_bytes(CASES[chooser.choice(names)][0]))
        for _ in range(chooser.randint(1, 4)):
            content[chooser.randrange(8, len(content))] = chooser.randrange(256)
        path = tmp_path / "damaged.tflite"
        path.write_bytes(content)
        try:
            model, _, _ = read_with_graph(path, shapes={})
        except QnnMemError:
            continue
        assert isinstance(model, Model)


def test_rows_are_named_after_operators_of_tflite() -> None:
    """Every row of the operator table has a name that TFLite knows."""
    from tflite.BuiltinOperator import BuiltinOperator

    assert {*OPERATORS} <= {*vars(BuiltinOperator)}
