"""Write the valid files of `tests/corpus`, which `fuzz.py` damages; all are generated here.

    python tools/fuzz_corpus.py

There is one folder for each target of `fuzz_targets.py`, and `beside` for valid files that commands
need in addition to the damaged file. Existing files are not changed. Regressions are added by hand,
under a name that describes their former effect.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import fuzz_logs
from damage_binaries import embed
from fuzz_targets import CORPUS
from small_files import csv_seeds, eaix_seeds, onnx_seeds, tflite_seeds

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # folder with the writer of binaries

from carrier_writer import Delegate, Method, litert, litertlm, pte, spec, wrapped
from context_writer import example_context, example_graph, old_context, pack_context

_HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
_MODELS = {
    "quantized": """g (int8[1,16] x) => (int8[1,16] y) <float s = {0.5}, int8 z = {0}>
        { f = DequantizeLinear(x, s, z) r = Relu(f) y = QuantizeLinear(r, s, z) }""",
    "float": """g (float[1,16] x) => (float[1,16] y)
        <float[16] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> { m = Mul(x, w) y = Relu(m) }""",
    "free": """g (float[N,4] x) => (float[N,4] y) { h = Tanh(x) y = Add(h, x) }""",
    "loop": """g (float[2] x, int64 n, bool c) => (float[2] y)
        { y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] v) => (bool k2, float[2] v2)
          { k2 = Identity(k) v2 = Add(v, v) }> }""",
}
_NOTES = {
    "formal.md": """+++
id = "own"
title = "Our own limit"
cause = "mem_graph_limit"
stage = "graph"
over = ["graph-limit"]
remedies = ["raise the limit"]
collect = ["the whole log"]

[[line]]
sign = "yak-limit"
text = "yak limit of {limit:KB} KB reached by {name}, code {code:code}"

[[line]]
sign = "yak-herd"
text = "(yak|zebra) herd failed with {*}"

[[when]]
sign = ["yak-limit"]
where = ["limit >= 3 KB", "code == 12 | 13"]
unless = ["yak-herd"]
+++

## Typical Logs

```text
yak limit of 12 KB reached by herd, code 12
```

## Root Cause

Our allocator has a limit.

## Solutions

- Raise the limit.
""",
    "plain.md": """## Our own limit

### Typical Logs
- zebra limit reached by the allocator

### Root Cause
Our allocator has a limit.

### Solutions
- raise the limit
""",
}
_LINES = """[[line]]
sign = "zebra-limit"
text = "zebra limit of {limit:bytes} bytes reached by {name:text}"
call = "graph"
opens = true

[[line]]
sign = "zebra-loose"
text = "zebra is too large"
also = ["limit|bound", "graph|context"]
"""
_TOOL = {
    "backend_extensions": {
        "shared_library_path": "libQnnLpaiNetRunExtensions.so",
        "config_file_path": "eaiParams_direct.conf",
    },
    "context_configs": {"is_persistent_binary": True, "enable_graphs": ["g"]},
    "graph_configs": [{"graph_name": "g", "graph_priority": "normal"}],
}
_LPAI = {
    "lpai_backend": {"target_env": "adsp", "enable_hw_ver": "v6"},
    "lpai_graph": {
        "prepare": {"enable_layer_fusion": True, "exclude_io": False},
        "execute": {"fps": 1, "ftrt_ratio": 10, "client_type": "real_time", "mem_type": "ddr"},
    },
}
_WORDS = (
    b"1002\n0x3ea\n0x80000406\n-12\nQNN_COMMON_ERROR_MEM_ALLOC\nENOMEM",
    b"graph prepare failed 13\nSM8650\n57\nSnapdragon 8 Gen 3\ngraph-limit",
)


def model(name: str) -> bytes:
    """Return a generated ONNX model."""
    import onnx.parser

    return bytes(onnx.parser.parse_model(_HEAD + _MODELS[name]).SerializeToString())


def external() -> bytes:
    """Return a model with its weights in a separate file."""
    import onnx

    found = onnx.ModelProto.FromString(model("float"))
    weights = found.graph.initializer[0]
    weights.ClearField("float_data")
    weights.ClearField("raw_data")
    weights.data_location = 1
    for key, value in (("location", "weights.data"), ("offset", "0"), ("length", "64")):
        weights.external_data.add(key=key, value=value)
    return bytes(found.SerializeToString())


def models() -> Mapping[str, bytes]:
    """Return models and lists of every format, by path."""
    files = {f"onnx/{name}.onnx": model(name) for name in _MODELS}
    files["onnx/external.onnx"] = external()
    for kind, make in {
        "onnx": onnx_seeds,
        "tflite": tflite_seeds,
        "eaix": eaix_seeds,
        "csv": csv_seeds,
    }.items():
        files |= {f"{kind}/{n}.{kind}": data for n, data in enumerate(make())}
    return files


def contexts() -> Mapping[str, bytes]:
    """Return context binaries for HTP by path: alone, inside a model and next to a model."""
    two = example_context(example_graph("a"), example_graph("b"), blob_bytes=64)
    binaries = {
        "one": pack_context(example_context(blob_bytes=64)),
        "two": pack_context(two),
        "old": pack_context(old_context(blob_bytes=64)),
    }
    beside = _epcontext(b"beside.bin", 0)
    return {
        **{f"htp/{name}.bin": data for name, data in binaries.items()},
        "epcontext/inside.onnx": embed(random.Random(1), binaries["one"]),  # noqa: S311
        "epcontext/beside.onnx": beside,
        "epcontext/link.onnx": _epcontext(b"link.bin", 0),
        "beside/htp.bin": binaries["one"],
    }


def _epcontext(content: bytes, mode: int) -> bytes:
    from onnx import TensorProto, helper

    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=mode, ep_cache_context=content
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    return bytes(helper.make_model(helper.make_graph([node], "g", [x], [y])).SerializeToString())


def carriers() -> Mapping[str, bytes]:
    """Return files that contain context binaries, and archives of them, by path."""
    small = pack_context(example_context())
    other = pack_context(example_context(example_graph("other", const=7)))
    methods = [Method("prefill", planned=(0, 64), operators=["aten::add"]), Method("decode")]
    program = pte([*methods, Method("get_max_context_len", (), returns=128)], [wrapped(small)])
    inline = pte([Method("m", [Delegate(inline=True, spec=spec(most_spill=1))])], (), [small])
    model = litert(small + other, [("a", 0, len(small)), ("b", len(small), len(other))])
    engine = {
        "model": {"binary": {"ctx-bins": ["a.bin", "b.bin"]}},
        "backend": {"QnnHtp": {"spill-fill-bufsize": 4096}, "extensions": "htp.json"},
    }
    genie = json.dumps({"dialog": {"context": {"size": 128}, "engine": engine}}).encode()
    made = {
        "pte/segment.pte": program,
        "pte/inline.pte": inline,
        "litert/two.tflite": model,
        "litertlm/one.litertlm": litertlm([litert(small)]),
        "genie/genie_config.json": genie,
    }
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            members = {"a.pte": program, "m/genie_config.json": genie, "m/a.bin": small}
            for member, data in {**members, "m/b.bin": other, "c.tflite": model}.items():
                archive.writestr(zipfile.ZipInfo(member), data, method)
        made[f"app/{name}.zip"] = packed.getvalue()
    return made


def texts() -> Mapping[str, bytes]:
    """Return configs, lists, notes, logs and words, by path."""
    rng = random.Random(0)  # noqa: S311  repeatable on purpose
    log = "\n".join(fuzz_logs.line(rng) for _ in range(40)).encode("utf-8", "replace")
    healthy = b"<V> Sanitizing the value for hvx_threads\n<I> graph prepared\n"
    tool, lpai = json.dumps(_TOOL, indent=1).encode(), json.dumps(_LPAI, indent=1).encode()
    return {
        "config/tool.json": tool,
        "lpai_config/eaiParams_direct.conf": lpai,
        "inputs/named.txt": b"x:=x.raw\nx:=x.raw\n",
        "inputs/headed.txt": b"#y\n%x\nx.raw\n",
        "calibration_list/list.txt": b"x:=x.raw\nx.raw\n",
        **{f"notes/{name}": text.encode() for name, text in _NOTES.items()},
        "lines/common.toml": _LINES.encode(),
        "logs/templates.log": log,
        "logs/healthy.log": healthy,
        "packed/templates.log": log[:2000],
        **{f"words/{n}.txt": words for n, words in enumerate(_WORDS)},
        "beside/tool.json": tool,
        "beside/eaiParams_direct.conf": lpai,
        "beside/run.log": healthy + fuzz_logs.line(rng).encode("utf-8", "replace") + b"\n",
        "beside/list.txt": b"x:=x.raw\n",
    }


def samples() -> Mapping[str, bytes]:
    """Return arrays as files, by path."""
    import numpy as np

    array, npy, npz = (
        np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16),
        io.BytesIO(),
        io.BytesIO(),
    )
    np.save(npy, array)
    with zipfile.ZipFile(npz, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("x.npy"), npy.getvalue())
    raw = array.tobytes()
    return {
        "calibration/x.npy": npy.getvalue(),
        "calibration_zip/x.npz": npz.getvalue(),
        "raw/x.raw": raw,
        "beside/x.raw": raw,
    }


def prepared() -> Mapping[str, bytes]:
    """Return context binaries for LPAI, written by `qnnmem prepare`, by path."""
    files = {"beside/quantized.onnx": model("quantized"), "beside/float.onnx": model("float")}
    made = {
        "quantized": ["beside/quantized.onnx"],
        "float": ["beside/float.onnx", "--float"],
        "layout": ["csv/1.csv"],
        "state": ["onnx/2.onnx", "--float", "--state", "h_in=h_out"],
        "two": ["beside/float.onnx", "onnx/2.onnx", "--float"],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, data in {**models(), **files}.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        for name, words in made.items():
            command = [sys.executable, "-m", "qnnmem", "prepare", *words, "-o", f"{name}.bin"]
            subprocess.run(command, check=True, cwd=folder, capture_output=True)  # noqa: S603
            files[f"lpai/{name}.bin"] = Path(folder, f"{name}.bin").read_bytes()
    return files | {"beside/run.bin": files["lpai/float.bin"]}


def main() -> None:
    """Write the missing files."""
    for name, data in {
        **models(),
        **contexts(),
        **carriers(),
        **texts(),
        **samples(),
        **prepared(),
    }.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
            print(f"Wrote {path.relative_to(CORPUS.parent)}")


if __name__ == "__main__":
    main()
