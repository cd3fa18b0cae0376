"""Small ONNX models, and the DLC files that the real library writes for them.

`python tools/dlc_examples.py FOLDER` writes a DLC for each model; it needs the library, so Linux on
x86-64. The tests compare the DLC files with these seeded models on any machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SM8650 = "57"


@dataclass
class Sheet:
    """A model with one output per operator."""

    shape: tuple[int, ...]
    seed: int
    element: int = TensorProto.FLOAT
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def add(self, kind: str, *inputs: Any, count: int = 1, **attributes: Any) -> str:
        """Add a node and return its first result; arrays among its inputs become constants."""
        place = len(self.nodes)
        names = [value if isinstance(value, str) else self.store(value) for value in inputs]
        made = [f"{kind}_{place}_{part}" for part in range(count)]
        self.nodes.append(helper.make_node(kind, names, made, name=made[0], **attributes))
        return made[0]

    def out(self, kind: str, *inputs: Any, **attributes: Any) -> None:
        """Add a node on the input and make its results outputs."""
        made = self.add(kind, *inputs, **attributes)
        self.outputs += [made, *self.nodes[-1].output[1:]]

    def store(self, values: Any) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weights(self, *shape: int) -> Any:
        """Return seeded weights."""
        return self.random.standard_normal(shape).astype("f4")

    def model(self) -> onnx.ModelProto:
        """Return the whole model."""
        graph = helper.make_graph(
            self.nodes,
            "sheet",
            [helper.make_tensor_value_info("x", self.element, self.shape)],
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            self.constants,
        )
        opset = [helper.make_opsetid("", 21)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(made, data_prop=True)
        types = {value.name: value for value in inferred.graph.value_info}
        for output in made.graph.output:
            if output.name in types:
                output.CopyFrom(types[output.name])
        return onnx.shape_inference.infer_shapes(made)


def ints(*values: int) -> Any:
    """Return an int64 array, as ONNX requires."""
    return np.array(values, "i8")


def image() -> onnx.ModelProto:
    """Return layers on an image."""
    sheet = Sheet((1, 6, 10, 12), 1)
    w = sheet.weights
    conv = {"dilations": [2, 1], "pads": [1, 2, 0, 1], "strides": [1, 2]}
    sheet.out("Conv", "x", w(8, 3, 3, 3), w(8), group=2, **conv)
    sheet.out("Conv", "x", w(6, 1, 3, 3), group=6, pads=[1, 1, 1, 1])
    sheet.out("Conv", "x", w(12, 1, 3, 3), group=6)
    deconv = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}
    sheet.out("ConvTranspose", "x", w(6, 4, 3, 3), w(4), **deconv)
    pool = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    sheet.out("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1] * 4)
    sheet.out("AveragePool", "x", count_include_pad=1, **pool)
    sheet.out("AveragePool", "x", **pool)
    sheet.out("GlobalAveragePool", "x")
    sheet.out("GlobalMaxPool", "x")
    sheet.out("BatchNormalization", "x", w(6), w(6), w(6), abs(w(6)) + np.float32(0.1))
    sheet.out("InstanceNormalization", "x", w(6), w(6))
    sheet.out("LRN", "x", size=3, alpha=0.01)
    sheet.out("PRelu", "x", w(6, 1, 1))
    sheet.out("DepthToSpace", sheet.add("Concat", "x", "x", axis=1), blocksize=2)
    sheet.out("DepthToSpace", sheet.add("Concat", "x", "x", axis=1), blocksize=2, mode="CRD")
    sheet.out("SpaceToDepth", "x", blocksize=2)
    return sheet.model()


def resizes() -> onnx.ModelProto:
    """Return an image in other sizes."""
    sheet = Sheet((1, 2, 5, 6), 2)
    floor, round_floor = {"nearest_mode": "floor"}, {"nearest_mode": "round_prefer_floor"}
    for way, mode, more in (
        ("asymmetric", "nearest", floor),
        ("half_pixel", "nearest", round_floor),
        ("half_pixel", "linear", {}),
        ("asymmetric", "linear", {}),
        ("align_corners", "linear", {}),
        ("pytorch_half_pixel", "linear", {}),
        ("half_pixel", "cubic", {}),
    ):
        attributes = {"coordinate_transformation_mode": way, "mode": mode, **more}
        sheet.out("Resize", "x", "", "", ints(1, 2, 10, 12), **attributes)
        sheet.out("Resize", "x", "", "", ints(1, 2, 7, 9), **attributes)
    return sheet.model()


def matrices() -> onnx.ModelProto:
    """Return products, reductions and data movements."""
    sheet = Sheet((2, 5, 7), 3)
    w = sheet.weights
    sheet.out("MatMul", "x", w(7, 4))
    sheet.out("MatMul", "x", sheet.add("Transpose", "x", perm=[0, 2, 1]))
    sheet.out("Gemm", sheet.add("Reshape", "x", ints(2, 35)), w(4, 35), w(4), transB=1)
    sheet.out("LayerNormalization", "x", w(7), w(7), axis=-1)
    sheet.out("Softmax", "x", axis=1)
    sheet.out("LogSoftmax", "x", axis=-1)
    for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"):
        sheet.out(kind, "x", ints(1, 2), keepdims=0)
        sheet.out(kind, "x", ints(1), keepdims=1)
    sheet.out("Cast", sheet.add("ArgMax", "x", axis=1, keepdims=0), to=TensorProto.FLOAT)
    sheet.out("Cast", sheet.add("ArgMin", "x", axis=-1), to=TensorProto.FLOAT)
    sheet.out("Concat", "x", sheet.add("Relu", "x"), axis=1)
    sheet.out("Split", "x", ints(2, 3), count=2, axis=1)
    sheet.out("Slice", "x", ints(0, 6), ints(5, 0), ints(1, 2), ints(2, -2))
    sheet.out("Slice", "x", ints(-1), ints(-100), ints(2), ints(-1))
    pads = ints(0, 1, 2, 0, 2, 1)
    sheet.out("Pad", "x", pads, np.float32(0.5), mode="constant")
    sheet.out("Pad", "x", pads, mode="reflect")
    sheet.out("Pad", "x", pads, mode="edge")
    sheet.out("Gather", "x", np.array([[0, 4], [1, 2]]), axis=1)
    sheet.out("GatherElements", "x", sheet.random.integers(0, 5, (2, 3, 7)), axis=1)
    sheet.out("GatherND", "x", np.array([[0, 4], [1, 2]]))
    sheet.out("ScatterND", "x", np.array([[0, 4], [1, 2]]), w(2, 7))
    sheet.out("Tile", "x", ints(1, 2, 3))
    return sheet.model()


def elements() -> onnx.ModelProto:
    """Return element-wise operators."""
    sheet = Sheet((2, 3, 4), 4)
    kinds = "Abs Atan Ceil Cos Exp Floor Neg Round Sign Sin Relu Sigmoid Tanh HardSwish Elu"
    for kind in (*kinds.split(), "HardSigmoid", "Softplus", "Gelu", "LeakyRelu"):
        sheet.out(kind, "x")
    positive = sheet.add("Sigmoid", "x")
    for kind in ("Sqrt", "Log", "Reciprocal"):
        sheet.out(kind, positive)
    for kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"):
        sheet.out(kind, positive, abs(sheet.weights(3, 1)) + np.float32(0.5))
    for kind in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        sheet.out("Where", sheet.add(kind, "x", sheet.weights(4)), "x", sheet.weights(4))
    one, other = (sheet.add("Greater", "x", sheet.weights(4)) for _ in range(2))
    either = sheet.add("Or", sheet.add("Not", sheet.add("And", one, other)), one)
    sheet.out("Where", either, "x", sheet.weights(4))
    sheet.out("Clip", "x", np.float32(-0.3), np.float32(0.8))
    whole = sheet.add("Cast", "x", to=TensorProto.INT32)
    sheet.out("Cast", whole, to=TensorProto.FLOAT)
    return sheet.model()


def quantized(width: int) -> onnx.ModelProto:
    """Return a small integer network with per-channel weights."""
    kind, element, middle = {
        8: ("u1", TensorProto.UINT8, 128),
        16: ("u2", TensorProto.UINT16, 32768),
    }[width]
    sheet = Sheet((1, 4, 8, 8), width, element)
    step = np.float32(16.0 / (2 << width))
    zero = np.array(middle, kind)

    def real(name: str, scale: Any = step) -> str:
        return sheet.add("DequantizeLinear", name, scale, zero)

    def whole(name: str, scale: Any = step) -> str:
        return sheet.add("QuantizeLinear", name, scale, zero)

    scales = (np.arange(1, 7) / 400).astype("f4")
    kernel = sheet.random.integers(-127, 128, (6, 4, 3, 3)).astype("i1")
    weights = sheet.add("DequantizeLinear", kernel, scales, np.zeros(6, "i1"), axis=0)
    bias = sheet.random.integers(-500, 500, 6).astype("i4")
    both = (scales * step).astype("f4")
    summand = sheet.add("DequantizeLinear", bias, both, np.zeros(6, "i4"), axis=0)
    conv = sheet.add("Conv", real("x"), weights, summand, pads=[1, 1, 1, 1])
    first = whole(conv)
    pooled = whole(sheet.add("MaxPool", real(first), kernel_shape=[2, 2], strides=[2, 2]))
    gate = whole(sheet.add("Sigmoid", real(pooled)), step / np.float32(4))
    mixed = whole(sheet.add("Mul", real(pooled), real(gate, step / np.float32(4))))
    added = whole(sheet.add("Add", real(mixed), real(pooled)))
    joined = whole(sheet.add("Concat", real(added), real(pooled), axis=1))
    sheet.outputs.append(whole(sheet.add("GlobalAveragePool", real(joined))))
    return sheet.model()


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "image": image,
    "resizes": resizes,
    "matrices": matrices,
    "elements": elements,
    "quantized8": lambda: quantized(8),
    "quantized16": lambda: quantized(16),
}


def provider_session(model: bytes | Path, folder: Path, more: dict[str, str] | None = None) -> None:
    """Make the real library write its parts of a model as DLC files into a folder."""
    import onnxruntime
    import onnxruntime_qnn  # type: ignore[import-not-found, unused-ignore]  # optional

    library = Path(onnxruntime_qnn.__file__).parent
    provider = "QNNExecutionProvider"
    if not any(device.ep_name == provider for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(
            provider, str(library / "libonnxruntime_providers_qnn.so")
        )
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == provider]
    session = onnxruntime.SessionOptions()
    session.log_severity_level = 4
    options = {
        "backend_path": str(library / "libQnnHtp.so"),
        "soc_model": SM8650,
        "dump_qnn_ir_dlc": "1",
        "dump_qnn_ir_dlc_dir": str(folder),
        "json_qnn_graph_dir": str(folder),
        "qnn_ir_backend_path": str(library / "libQnnIr.so"),
        **(more or {}),
    }
    session.add_provider_for_devices(devices[:1], options)
    given = str(model) if isinstance(model, Path) else model
    onnxruntime.InferenceSession(given, session)


def write_dlc(model: onnx.ModelProto, target: Path, **more: str) -> None:
    """Make the real library write a model as one DLC; exit if it splits the model.

    `more` holds further options of ONNX Runtime's QNN provider.
    """
    with tempfile.TemporaryDirectory() as folder:
        provider_session(model.SerializeToString(), Path(folder), more)
        made = list(Path(folder).glob("*.dlc"))
        if len(made) != 1:
            raise SystemExit(f"{target.name}: {len(made)} parts")
        target.write_bytes(made[0].read_bytes())


if __name__ == "__main__":
    for name, make in MODELS.items():
        write_dlc(make(), Path(sys.argv[1], f"{name}.dlc"))
