"""ExecuTorch's own client of QNN, without torch: `drive_executorch.py [BINARY]`.

With a context binary the client restores the binary; without one it starts to compose a graph.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONS = {
    "soc_info": {"soc_model": "SM8850", "lpai_info": {"lpai_hardware_version": "V6"}},
    "backend_options": {
        "backend_type": "kLpaiBackend",
        "lpai_options": {"fps": 1, "ftrt_ratio": 10, "client_perf_type": "kRealTime"},
    },
    "library_path": "libQnnLpai.so",
}


def adaptor(package: Path) -> Any:
    """Return the module with the client, loaded alone."""
    name = "PyQnnManagerAdaptor"
    file = next((package / "backends/qualcomm/python").glob(f"{name}*.so"))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(package: Path) -> bytes:
    """Return the client's options in its binary format."""
    schema = package / "backends/qualcomm/serialization/qc_compiler_spec.fbs"
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "told.json").write_text(json.dumps(OPTIONS), "utf-8")
        words = [str(package / "data/bin/flatc"), "-b", "--strict-json", str(schema), "told.json"]
        subprocess.run(words, cwd=folder, env=environment, check=True)
        return Path(folder, "told.bin").read_bytes()


def main() -> None:
    """Print the answer of each step."""
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    package = Path(next(iter(spec.submodule_search_locations or ())))
    module, told = adaptor(package), options(package)
    if len(sys.argv) > 1:
        data = Path(sys.argv[1]).read_bytes()
        wrapped = bytes(module.QnnManager(told).MakeBinaryInfo(data))
        client = module.QnnManager(told, wrapped)  # the client does not keep these bytes alive
        print("InitBackend", client.InitBackend())
        print("InitContextCache", client.InitContextCache())
        for name in client.GetGraphNames():
            print("AllocateTensor", name, client.AllocateTensor(name))
    else:
        client = module.QnnManager(told)
        print("InitBackend", client.InitBackend())
        print("InitContext", client.InitContext(["forward"]))
    client.Destroy()


main()
