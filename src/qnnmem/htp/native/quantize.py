"""Quantize a float model the way ONNX Runtime prepares models for QNN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnmem.calibration import Input, find_samples, random_sample, read_sample
from qnnmem.errors import Refused
from qnnmem.htp.requests import QuantizeReply, QuantizeRequest
from qnnmem.quiet_onnxruntime import import_onnxruntime

if TYPE_CHECKING:
    import onnx

# Activation and weight types by their names in onnxruntime.quantization.
PRECISIONS = {"int8": ("QUInt8", "QUInt8"), "w8a16": ("QUInt16", "QUInt8")}


def quantize(request: QuantizeRequest) -> QuantizeReply:
    """Write a model with Q and DQ nodes; every shape of the given one must be fixed."""
    quantization = import_onnxruntime("quantization")
    for_qnn = import_onnxruntime("quantization.execution_providers.qnn")
    folded = _folded(request)
    source, target = request.scratch / "preprocessed.onnx", request.output
    if not for_qnn.qnn_preprocess_model(folded, source):
        source = folded
    activation, weight = PRECISIONS[request.precision]
    samples = _Samples(source, request)
    config = for_qnn.get_qnn_qdq_config(
        source,
        samples,
        activation_type=quantization.QuantType[activation],
        weight_type=quantization.QuantType[weight],
    )
    quantization.quantize(source, target, config)
    return QuantizeReply(target, samples.count)


def _folded(request: QuantizeRequest) -> Path:
    """The model with constants folded: Q and DQ around constant arithmetic would keep it alive."""
    import onnx

    from qnnmem.loader.onnx.tensor import embed, tensors

    onnxruntime = import_onnxruntime()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = levels.ORT_ENABLE_BASIC
    target = request.scratch / "folded.onnx"
    settings.optimized_model_filepath = str(target)
    settings.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(request.folder)
    )
    blob = request.model.read_bytes()
    onnxruntime.InferenceSession(blob, settings, providers=["CPUExecutionProvider"])
    model = onnx.load(target, load_external_data=False)
    # What ONNX Runtime did not fold still names files, which lie in the folder of the user's model.
    for tensor in tensors(model):
        embed(request.folder / target.name, tensor)
    # The preprocessing of ONNX Runtime 1.31 fails on any model with metadata.
    del model.metadata_props[:]
    _check_float(model)
    onnx.save(model, target)
    return target


def _check_float(model: onnx.ModelProto) -> None:
    quantized = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"}
    if any(node.op_type in quantized for node in model.graph.node):
        raise Refused(
            "quantize", "the model is quantized already; compile it as it is with precision fp16"
        )


class _Samples:
    """What ONNX Runtime calls a calibration data reader."""

    def __init__(self, model: Path, request: QuantizeRequest) -> None:
        self.count = 0
        self._feeds = self._read(list(model_inputs(model)), request)

    def _read(self, inputs: list[Input], request: QuantizeRequest) -> Iterator[dict[str, Any]]:
        if request.calibration is None and request.files is None:
            for number in range(request.samples):
                self.count += 1
                yield random_sample(inputs, request.seed, number)
            return
        samples = request.files or ()
        if request.calibration is not None:  # else found already, by another machine
            samples = find_samples(request.calibration, inputs, request.here or Path())
        for sample in samples:
            self.count += 1
            yield read_sample(sample, inputs)

    def get_next(self) -> dict[str, Any] | None:
        """One sample, or None after the last."""
        return next(self._feeds, None)

    def rewind(self) -> None:
        """Needed by the interface; there is one pass."""

    def set_range(self, start_index: int, end_index: int) -> None:
        """Needed by the interface, for strides, which are not used."""

    def __len__(self) -> int:
        return self.count


def model_inputs(path: Path) -> Iterator[Input]:
    """The inputs of a model whose shapes are fixed."""
    import onnx
    from onnx import helper

    from qnnmem.loader.onnx.inputs import index_limits

    graph = onnx.load(path, load_external_data=False).graph
    rows = index_limits(graph)
    constants = {item.name for item in graph.initializer}
    for item in graph.input:
        if item.name not in constants:
            kind = item.type.tensor_type
            shape = tuple(size.dim_value for size in kind.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
            yield Input(item.name, dtype, shape, below=rows.get(item.name))
