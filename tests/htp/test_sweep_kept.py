"""Cached sweep results are never trusted and never required."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qnnmem.cache import ResultCache
from qnnmem.errors import OutputError
from qnnmem.htp.compile_cache import model_digest, to_builtins
from qnnmem.htp.sweep import SweepOutcome, cached_outcome

KEY = "ab" * 32


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    """A cached result reads back equal, including unknown numbers."""
    cache, result = (
        ResultCache(tmp_path),
        SweepOutcome("over", "too large", code=1002, pd_need=5, seconds=1.5),
    )
    cache.put(KEY, to_builtins(result))
    assert cached_outcome(cache.get(KEY)) == result


ODD: dict[str, tuple[Any, ...]] = {
    "ram": (1e999, float("nan"), 1.5, True, "1", [], 1 << 70),
    "seconds": (-1.0, float("nan"), float("inf"), None, "1", True),
    "state": ("failed", "", "unheard of", 1, None, []),
    "reason": (1, None, {}, [1], [{"name": 1, "value": ""}]),
}


@pytest.mark.parametrize(
    "changes", [{name: value} for name, values in ODD.items() for value in values]
)
def test_a_result_of_another_shape_is_none(changes: dict[str, Any]) -> None:
    """A cached result with a wrong type or an impossible number counts as missing."""
    assert cached_outcome(to_builtins(SweepOutcome("fits"))) == SweepOutcome("fits")
    assert cached_outcome({**to_builtins(SweepOutcome("fits")), **changes}) is None


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "deep", "other key", "large", "zero"])
def test_what_is_no_kept_file_counts_as_missing(tmp_path: Path, kind: str) -> None:
    """A pipe, a link, a folder or other content in place of a cached file counts as missing."""
    cache = ResultCache(tmp_path)
    cache.put(KEY, to_builtins(SweepOutcome("fits")))
    path = tmp_path / "sweep" / KEY[:2] / f"{KEY}.json"
    data = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "moved").write_bytes(data)
        path.symlink_to(tmp_path / "moved")
    elif kind == "folder":
        path.mkdir()
    elif kind == "deep":
        path.write_bytes(b"[" * 100_000)
    elif kind == "other key":
        path.write_text(json.dumps({**json.loads(data), "key": "cd" * 32}))
    elif kind == "large":
        path.write_bytes(data + b" " * (1 << 20))
    else:
        path.symlink_to("/dev/zero")
    assert cache.get(KEY) is None


def test_a_folder_that_takes_nothing_matters_only_where_it_was_named(tmp_path: Path) -> None:
    """An unwritable default cache is ignored; an unwritable cache from the user is an error."""
    (tmp_path / "sweep").write_text("a file")
    ResultCache(tmp_path, must_keep=False).put(KEY, {})
    assert ResultCache(tmp_path, must_keep=False).get(KEY) is None
    with pytest.raises(OutputError, match="cannot be written"):
        ResultCache(tmp_path).put(KEY, {})


def test_weights_of_inner_graphs_belong_to_the_model(tmp_path: Path) -> None:
    """External weights in a subgraph belong to the digest of the model."""
    from onnx import TensorProto, helper, save

    weight = TensorProto(
        name="w", dims=[1], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="w.bin")
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])], "inner", [], [out], [weight]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    save(helper.make_model(graph), tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"1234")
    before = model_digest(tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"1235")
    assert model_digest(tmp_path / "m.onnx") != before
