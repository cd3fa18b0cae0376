"""Run a small model on HTP through ONNX Runtime, as an example for `qnnmem watch`.

Needs `pip install "qnnmem[htp]"`, Linux on x86-64.
"""

from __future__ import annotations

import numpy
import onnxruntime
import onnxruntime_qnn
from onnx import TensorProto, helper

NAME = "QNNExecutionProvider"
onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in "xy"]
nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = onnxruntime.SessionOptions()
devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
options.add_provider_for_devices(devices[:1], {"backend_type": "htp", "soc_model": "57"})
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
result = session.run(None, {"x": numpy.ones([1, 16], numpy.float32)})[0]
print("right" if numpy.allclose(result, 2, atol=1e-2) else "wrong")
