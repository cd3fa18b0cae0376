"""The nesting of qnn-context-binary-utility, from a context that was read."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

from qnnmem.htp.binary.utility_json import context_info
from qnnmem.qnn.enums import TensorMemType

WRITER: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "tools" / "context_writer.py")
)
context, graph, tensor = (WRITER[f"example_{kind}"] for kind in ("context", "graph", "tensor"))


def test_the_paths_that_public_readers_use() -> None:
    """Graph name, both records and the tensors stand where the vendor's tool has them."""
    info = context_info(context())["info"]["graphs"][0]["info"]
    assert info["graphName"] == "graph"
    assert info["graphBlobInfo"]["info"]["spillFillBufferSize"] == 65_536
    assert info["graphBlobInfo"]["info"]["vtcmSize"] == 8
    assert info["graphBlobInfoV2"]["info"]["constSize"] == 3_000_000
    assert info["graphInputs"][0]["info"]["dimensions"] == [1, 40, 200]
    scale = info["graphInputs"][0]["info"]["quantizeParams"]["scaleOffset"]
    assert scale == {"scale": 0.5, "offset": -128}


def test_the_memory_type_is_shown_for_each_tensor() -> None:
    """Whether an input was prepared for a memory handle can be read from the JSON."""
    inputs = (tensor("a", 1, mem_type=TensorMemType.MEMHANDLE), tensor("b", 2))
    info = context_info(context(graph(inputs=inputs)))
    shown = [t["info"]["memType"] for t in info["info"]["graphs"][0]["info"]["graphInputs"]]
    assert shown == ["QNN_TENSORMEMTYPE_MEMHANDLE", "QNN_TENSORMEMTYPE_RAW"]
    assert info["qnnmem"]["graphs"][0]["mem_types"] == ["memhandle", "raw"]


def test_files_of_old_sdks_have_no_records() -> None:
    """What the file does not say is left out."""
    info = context_info(WRITER["old_context"]())["info"]
    assert "socModel" not in info
    assert "graphBlobInfo" not in info["graphs"][0]["info"]


def test_it_is_json() -> None:
    """The values survive JSON."""
    info = context_info(context())
    assert json.loads(json.dumps(info, allow_nan=False)) == info
