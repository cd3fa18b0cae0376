"""Makes ONNX Runtime fail at the QNN provider in ways that need no device; prints its log.

    python tools/ort_failures.py no-backend > no-backend.log 2>&1
    python tools/stored_logs.py failed no-backend no-backend.log "tools/ort_failures.py no-backend"

`no-backend` names a library that is not there, `wrong-library` one that is not QNN's, `no-fallback`
needs an operator that HTP refuses, and `fallback` is the same where the CPU may take over.
`not-registered` asks for the provider without loading it first.
"""

from __future__ import annotations

import sys

import onnxruntime
import onnxruntime_qnn
from onnx import TensorProto, helper

PROVIDER = "QNNExecutionProvider"
HTP = {"backend_type": "htp", "soc_model": "57"}
OPTIONS = {
    "no-backend": {"backend_path": "libQnnHtpMissing.so"},
    "wrong-library": {"backend_path": "libm.so.6"},
    "no-fallback": HTP,
    "fallback": HTP,
    "not-registered": {},
}


def main(kind: str) -> None:
    """Opens a session that cannot be opened."""
    onnxruntime.set_default_logger_severity(0)
    if kind == "not-registered":
        onnxruntime.InferenceSession(model(kind), providers=[PROVIDER])
        return
    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    if kind != "fallback":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == PROVIDER]
    options.add_provider_for_devices(devices[:1], OPTIONS[kind])
    try:
        onnxruntime.InferenceSession(model(kind), options)
    except Exception as exc:  # what an application would print
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)


def model(kind: str) -> bytes:
    """One operator; of doubles, which HTP does not take, where it is to be refused."""
    refused = kind.endswith("fallback")
    element = TensorProto.DOUBLE if refused else TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, element, [1, 16]) for name in "xy"]
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [axis])
    opsets = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


if __name__ == "__main__":
    main(sys.argv[1])
