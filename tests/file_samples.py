"""One small file of every type that a user may pass to a verb."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from carrier_writer import Method, litert, litertlm, pte, wrapped
from context_writer import example_context, pack_context
from tflite_writer import G, O, T, tflite_bytes


def _zip(*names: str, content: bytes = b"x" * 64) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return made.getvalue()


def _onnx() -> bytes:
    from onnx import TensorProto, helper

    item = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [item("x", TensorProto.FLOAT, [1, 4])],
        [item("y", TensorProto.FLOAT, [1, 4])],
    )
    opset = helper.make_opsetid("", 17)
    made: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    return made


def _epcontext() -> bytes:
    from onnx import TensorProto, helper

    context = pack_context(example_context())
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1, ep_cache_context=context
    )
    item = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [item("x", TensorProto.FLOAT, [1])], [item("y", TensorProto.FLOAT, [1])]
    )
    made: bytes = helper.make_model(graph, ir_version=8).SerializeToString()
    return made


def _lpai() -> bytes:
    import tempfile

    from command_line import run

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "m.csv")
        model.write_text("id,lower,upper,size\na,0,2,64\n")
        assert run("prepare", model, "-o", Path(folder, "m.bin")).exception is None
        return Path(folder, "m.bin").read_bytes()


def _npy() -> bytes:
    import numpy as np

    made = io.BytesIO()
    np.save(made, np.zeros(4, np.float32))
    return made.getvalue()


def _safetensors() -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


EAIX = {
    "format": "eAI v5.9",
    "name": "tiny",
    "graphs": [],
}
GENAI = {"model": {"context_length": 64, "decoder": {"pipeline": []}}}
LOG = b"06-01 12:00:00.000  1  1 I app: started\n06-01 12:00:01.000  1  1 I app: done\n"
TFLITE = G((T("a", (1, 4)), T("b", (1, 4))), (0,), (1,), (O("ABS", (0,), (1,)),))
_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."

# The type as `qnnmem.loader.file_kind` names it, a typical file name, and the content.
SAMPLES: tuple[tuple[str, str, Callable[[], bytes]], ...] = (
    ("onnx", "model.onnx", _onnx),
    ("epcontext", "model_ctx.onnx", _epcontext),
    ("tflite", "model.tflite", lambda: tflite_bytes(TFLITE)),
    ("eaix", "report.eaix", lambda: json.dumps(EAIX).encode()),
    ("csv", "buffers.csv", lambda: b"id,lower,upper,size\na,0,2,64\n"),
    ("lpai", "lpai.bin", _lpai),
    ("htp", "htp.bin", lambda: pack_context(example_context())),
    ("dlc", "model.dlc", lambda: _zip("model", "model.params", "dlc.metadata")),
    ("config", "config.json", lambda: b'{"lpai_backend": {"target_env": "x86"}}'),
    ("json", "any.json", lambda: b'{"a": 1}'),
    ("result", "plan.json", lambda: b'{"schema": "qnnmem.plan/1"}'),
    ("trace", "trace.jsonl", lambda: b'{"schema": "qnnmem.trace/1", "tool": "t", "command": []}'),
    ("contents", "inspect.json", lambda: b'{"info": {"contextBlobSize": 9, "graphs": []}}'),
    ("text", "run.log", lambda: LOG),
    ("npy", "x.npy", _npy),
    ("npz", "x.npz", lambda: _zip("x.npy")),
    ("elf", "libQnnLpai.so", lambda: b"\x7fELF\x02\x01\x01" + bytes(200)),
    ("pe", "QnnHtp.dll", lambda: b"MZ" + bytes(58) + b"\x40\0\0\0PE\0\0" + bytes(200)),
    ("macho", "libQnn.dylib", lambda: b"\xcf\xfa\xed\xfe" + bytes(200)),
    ("safetensors", "model.safetensors", _safetensors),
    ("gguf", "model.gguf", lambda: b"GGUF\x03\0\0\0" + bytes(64)),
    ("pytorch", "model.pt", lambda: _zip("archive/data.pkl", "archive/version", "archive/data/0")),
    ("pytorch", "old.pth", lambda: _PICKLE + bytes(64)),
    ("pt2", "model.pt2", lambda: _zip("serialized_exported_program.json", "version")),
    ("pte", "model.pte", lambda: pte([Method()], [wrapped(pack_context(example_context()))])),
    ("litert", "npu.tflite", lambda: litert(pack_context(example_context()))),
    ("litertlm", "model.litertlm", lambda: litertlm([litert(pack_context(example_context()))])),
    ("genie", "genie_config.json", lambda: json.dumps({"model": {"ctx-bins": ["a"]}}).encode()),
    ("genai", "genai_config.json", lambda: json.dumps(GENAI).encode()),
    ("keras", "model.h5", lambda: b"\x89HDF\r\n\x1a\n" + bytes(64)),
    ("keras", "model.keras", lambda: _zip("metadata.json", "config.json", "model.weights.h5")),
    ("saved_model", "saved_model.pb", lambda: b"\x08\x01\x12\xf2\x03\n\x40*\x05\n\x03Add"),
    ("ort", "model.ort", lambda: b"\x20\0\0\0ORTM" + bytes(64)),
    ("openvino", "model.xml", lambda: b'<?xml version="1.0"?>\n<net name="m">\n</net>\n'),
    ("lfs", "pointer.onnx", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    ("html", "page.onnx", lambda: b"<!DOCTYPE html>\n<html><body>404</body></html>\n"),
    ("packed", "data.gz", lambda: gzip.compress(b"\0\x01\x02" * 64)),
    ("coreml", "model.mlmodel", lambda: b"\x08\x04\x12\x0c\n\x0a\n\x05image\x1a\x01\0"),
    ("task", "face.task", lambda: b"\0\0" + _zip("face_detector.tflite", "landmarks.tflite")),
    ("zip", "things.zip", lambda: _zip("readme.txt")),
    ("tar", "things.tar", lambda: b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + bytes(300)),
    ("image", "picture.png", lambda: b"\x89PNG\r\n\x1a\n" + bytes(64)),
    ("pdf", "paper.pdf", lambda: b"%PDF-1.7\n" + bytes(64)),
    ("binary", "noise.bin", lambda: bytes(range(128, 256)) * 4),
    ("binary", "raw.raw", lambda: bytes(4096)),
)  # fmt: skip


@cache
def sample(place: int) -> bytes:
    """Return the content of a sample."""
    return SAMPLES[place][2]()


def write_samples(folder: Path) -> list[tuple[str, Path]]:
    """Write a file of every type, and an empty file; return types and paths."""
    made = [("empty", folder / "empty.bin")]
    made[0][1].write_bytes(b"")
    for place, (kind, name, _) in enumerate(SAMPLES):
        path = folder / name
        path.write_bytes(sample(place))
        made.append((kind, path))
    return made
