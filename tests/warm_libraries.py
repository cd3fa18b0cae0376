"""What onnx and ONNX Runtime set up at their first use, done by an import; see `warm_start`.

The definitions and kernels of all operators take 20 ms, more than most children need otherwise.
"""

from __future__ import annotations

import onnx.parser
from onnx import shape_inference

from qnnmem.quiet_onnxruntime import exact_session

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
)
shape_inference.infer_shapes(MODEL)
exact_session(MODEL.SerializeToString())
