"""Context binaries inside and beside ONNX models with an EPContext node."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from carrier_writer import epcontext as model
from context_writer import example_context, pack_context
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.errors import LoadError, NotCompiled
from qnnmem.htp.binary.read import read_context

CONTEXT = example_context()
BINARY: bytes = pack_context(CONTEXT)


def test_an_embedded_context_is_found(tmp_path: Path) -> None:
    """A binary embedded in a model is read in place."""
    path = model(tmp_path / "m.onnx", {"embed_mode": 1, "ep_cache_context": BINARY})
    assert read_context(path) == CONTEXT


def test_a_context_beside_the_model_is_found(tmp_path: Path) -> None:
    """The file that an EPContext node names is read relative to the model."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.bin").write_bytes(BINARY)
    path = model(tmp_path / "m.onnx", {"embed_mode": 0, "ep_cache_context": b"sub/c.bin"})
    assert read_context(path) == CONTEXT


def test_nodes_that_refer_to_another_are_skipped(tmp_path: Path) -> None:
    """A node with main_context 0 is skipped, because only a main node holds a context."""
    main: dict[str, Any] = {"embed_mode": 1, "main_context": 1, "ep_cache_context": BINARY}
    other: dict[str, Any] = {"main_context": 0, "ep_cache_context": b"elsewhere"}
    assert read_context(model(tmp_path / "m.onnx", other, main)) == CONTEXT


def test_several_contexts_are_refused(tmp_path: Path) -> None:
    """A model with two context binaries is refused, because neither bill covers the model."""
    node: dict[str, Any] = {"embed_mode": 1, "ep_cache_context": BINARY}
    with pytest.raises(LoadError, match="contains 2 context binaries"):
        read_context(model(tmp_path / "m.onnx", node, node))


@pytest.mark.parametrize(
    "name", [b"../c.bin", b"/etc/passwd", b"C:\\c.bin", b"a/../../c.bin", b"\\\\host\\c", b"a\0b"]
)
def test_names_outside_of_the_folder_are_refused(name: bytes, tmp_path: Path) -> None:
    """A model cannot name a file outside its folder or by an absolute path."""
    path = model(tmp_path / "m.onnx", {"embed_mode": 0, "ep_cache_context": name})
    with pytest.raises(LoadError, match=r"outside the model's|absolute path|name a usable file"):
        read_context(path)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    """A link from the model's folder to a file or folder outside is refused."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "c.bin").write_bytes(BINARY)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "c.bin").symlink_to(tmp_path / "other" / "c.bin")
    (folder / "linked").symlink_to(tmp_path / "other")
    (folder / "inside.bin").write_bytes(BINARY)
    (folder / "fine.bin").symlink_to("inside.bin")
    for name in (b"c.bin", b"linked/c.bin", b"linked\\c.bin"):
        path = model(folder / "m.onnx", {"embed_mode": 0, "ep_cache_context": name})
        with pytest.raises(LoadError, match="outside the model's folder"):
            read_context(path)
    path = model(folder / "m.onnx", {"embed_mode": 0, "ep_cache_context": b"fine.bin"})
    assert read_context(path) == CONTEXT


def test_a_model_that_is_not_compiled_is_told_apart(tmp_path: Path) -> None:
    """A model without an EPContext node raises NotCompiled, not a damage error."""
    with pytest.raises(NotCompiled):
        read_context(model(tmp_path / "m.onnx", {}, op_type="Relu"))


@given(st.binary(min_size=1, max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    """Random bytes with the suffix of a model raise LoadError."""
    from qnnmem.htp.binary.epcontext import find_context
    from qnnmem.htp.binary.pieces import Piece

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(data)
        with pytest.raises(LoadError):
            find_context(Piece.whole(path, "m.onnx"))
