"""Stored tensors of ONNX files: types, shapes, counts and external data, to the byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from qnnmem.errors import LoadError
from qnnmem.ir import DType
from qnnmem.loader.onnx.tensor import (
    DTYPES,
    MAX_DIM,
    UNKNOWN,
    OnnxType,
    check_shape,
    check_stored,
    type_of,
    value_info,
)
from qnnmem.units import MAX_BYTES

PATH = Path("m.onnx")


def refused(tensor: Any, path: Path = PATH) -> str:
    """Return the sentence with which a tensor is refused; empty if accepted."""
    try:
        check_stored(path, tensor)
    except LoadError as exc:
        return str(exc).partition("m.onnx: ")[2]
    return ""


def stored(kind: int, dims: list[int], **fields: Any) -> Any:
    """Return a tensor named t."""
    tensor = TensorProto(name="t", data_type=kind, dims=dims)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


@pytest.mark.parametrize(
    ("kind", "field", "each"),
    [
        (TensorProto.FLOAT, "float_data", 1),
        (TensorProto.COMPLEX64, "float_data", 2),
        (TensorProto.DOUBLE, "double_data", 1),
        (TensorProto.COMPLEX128, "double_data", 2),
        (TensorProto.INT64, "int64_data", 1),
        (TensorProto.UINT32, "uint64_data", 1),
        (TensorProto.UINT64, "uint64_data", 1),
        (TensorProto.INT32, "int32_data", 1),
        (TensorProto.INT8, "int32_data", 1),
        (TensorProto.BOOL, "int32_data", 1),
        (TensorProto.FLOAT16, "int32_data", 1),
        (TensorProto.BFLOAT16, "int32_data", 1),
    ],
)
def test_each_type_has_its_field_and_count(kind: int, field: str, each: int) -> None:
    """Each type needs exactly its number of values, in the type's own field."""
    assert refused(stored(kind, [2, 3], **{field: [1] * 6 * each})) == ""
    for count in (6 * each - 1, 6 * each + 1, 0):
        words = f"tensor 't' stores {count} values, but its shape needs {6 * each}"
        assert refused(stored(kind, [2, 3], **{field: [1] * count})) == words
    others = {"float_data", "double_data", "int64_data", "uint64_data", "int32_data"} - {field}
    for other in others:
        assert "stores 0 values" in refused(stored(kind, [2, 3], **{other: [1] * 6 * each}))


@pytest.mark.parametrize(("elements", "values"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_two_small_values_share_one(elements: int, values: int) -> None:
    """Two 4-bit values share one stored value."""
    for kind in (TensorProto.INT4, TensorProto.UINT4):
        assert refused(stored(kind, [elements], int32_data=[1] * values)) == ""
        words = f"stores {values + 1} values, but its shape needs {values}"
        assert words in refused(stored(kind, [elements], int32_data=[1] * (values + 1)))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (TensorProto.FLOAT, 24),
        (TensorProto.INT8, 6),
        (TensorProto.INT4, 3),
        (TensorProto.DOUBLE, 48),
        (TensorProto.COMPLEX128, 96),
        (TensorProto.FLOAT8E4M3FN, 6),
    ],
)
def test_raw_bytes_agree_with_the_shape(kind: int, size: int) -> None:
    """Raw data must have exactly the bytes that type and shape require."""
    assert refused(stored(kind, [2, 3], raw_data=bytes(size))) == ""
    for wrong in (size - 1, size + 1, 0):
        words = f"tensor 't' stores {wrong} bytes, but its shape needs {size}"
        assert refused(stored(kind, [2, 3], raw_data=bytes(wrong))) == words


def test_texts_are_counted() -> None:
    """A string tensor needs as many strings as its shape has elements."""
    assert refused(stored(8, [2], string_data=[b"a", b"b"])) == ""
    words = "tensor 't' stores 1 strings, but its shape needs 2"
    assert refused(stored(8, [2], string_data=[b"a"])) == words
    assert "invalid dimension" in refused(stored(8, [-1]))


def test_other_types_and_segments_are_refused() -> None:
    """An unknown element type or a segmented tensor is refused by name."""
    assert refused(stored(0, [1])) == "tensor 't' has element type 0, which is not supported"
    assert refused(stored(99, [1])) == "tensor 't' has element type 99, which is not supported"
    tensor = stored(1, [1], float_data=[1.0])
    tensor.segment.begin = 0
    assert refused(tensor) == "tensor 't' is stored in segments, which are not supported"


def test_every_type_of_onnx_is_known_or_refused() -> None:
    """Every ONNX type is either supported, with onnx's own width, or refused."""
    for kind in TensorProto.DataType.values():
        if kind in DTYPES and kind not in (TensorProto.INT4, TensorProto.UINT4):
            numpy_type = helper.tensor_dtype_to_np_dtype(kind)
            assert DTYPES[kind].bits == 8 * numpy_type.itemsize, kind
    known = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24}
    assert set(DTYPES) == known


def shape_fault(shape: tuple[int, ...], dtype: DType = DType.INT8) -> str:
    """Return the sentence about a shape; empty if it is valid."""
    try:
        check_shape(PATH, "t", shape, dtype)
    except LoadError as exc:
        return str(exc).partition("m.onnx: ")[2]
    return ""


def test_shapes_have_bounds() -> None:
    """Rank and dimensions have limits: the limit passes, one more is refused."""
    assert shape_fault((1,) * 32) == ""
    assert shape_fault((1,) * 33) == "tensor 't' has more than 32 dimensions"
    assert shape_fault((0,)) == shape_fault(()) == ""
    assert shape_fault((-1,)) == "tensor 't' has an invalid dimension: -1"
    assert shape_fault((0, MAX_DIM - 1)) == ""
    assert shape_fault((0, MAX_DIM)) == f"tensor 't' has an invalid dimension: {MAX_DIM}"
    assert MAX_DIM == 1 << 40


@pytest.mark.parametrize("over", [0, 1])
def test_bytes_have_a_bound(over: int) -> None:
    """A tensor of exactly 2**60 bytes is accepted; a larger one is refused."""
    most = int(MAX_BYTES)
    found = shape_fault((most >> 30, 2**30 + over))
    assert found == (f"tensor 't' takes more than {most:,} bytes" if over else "")


# --- External data -------------------------------------------------------------------------------


def outside(folder: Path, **entries: str) -> str:
    """Return the sentence about 16 bytes in another file; empty if accepted."""
    tensor = stored(1, [4], data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return refused(tensor, folder / "m.onnx")


def test_the_bytes_must_be_there(tmp_path: Path) -> None:
    """External data must hold all bytes; offset and length are optional."""
    (tmp_path / "w.bin").write_bytes(bytes(24))
    assert outside(tmp_path, location="w.bin") == ""
    assert outside(tmp_path, location="w.bin", offset="8", length="16") == ""
    assert outside(tmp_path, location="w.bin", offset="8") == ""
    words = "external data of tensor 't' ends at byte 25, but 'w.bin' has only 24"
    assert outside(tmp_path, location="w.bin", offset="9") == words
    words = "tensor 't' stores 15 external bytes, but its shape needs 16"
    assert outside(tmp_path, location="w.bin", length="15") == words
    (tmp_path / "w.bin").write_bytes(bytes(15))
    assert "ends at byte 16, but 'w.bin' has only 15" in outside(tmp_path, location="w.bin")


@pytest.mark.parametrize("text", ["-1", "1e3", "0x8", "", " 8", "٣", "1" * 20, "8.0", "+8"])
def test_only_plain_numbers_are_numbers(tmp_path: Path, text: str) -> None:
    """An offset or a length must be plain ASCII digits, at most 19 of them."""
    (tmp_path / "w.bin").write_bytes(bytes(24))
    for key in ("offset", "length"):
        assert f"has {key} " in outside(tmp_path, location="w.bin", **{key: text})
        assert "not a whole number of bytes" in outside(tmp_path, location="w.bin", **{key: text})


def test_nineteen_digits_are_a_number(tmp_path: Path) -> None:
    """An offset of 19 digits is a valid number beyond the end of the file."""
    (tmp_path / "w.bin").write_bytes(bytes(24))
    assert "ends at byte" in outside(tmp_path, location="w.bin", offset="9" * 19)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("", "does not name a usable file"),
        ("a\0b", "does not name a usable file"),
        ("x" * 4097, "does not name a usable file"),
        ("x" * 4096, "is missing"),
        ("/etc/passwd", "an absolute path, which is refused"),
        ("C:\\w.bin", "an absolute path, which is refused"),
        ("\\\\host\\w.bin", "an absolute path, which is refused"),
        ("..", "outside the model's folder, which is refused"),
        ("../w.bin", "outside the model's folder, which is refused"),
        ("sub/../../w.bin", "outside the model's folder, which is refused"),
        ("away.bin", "outside the model's folder, which is refused"),
        (".", "which is not a regular file"),
        ("sub", "which is not a regular file"),
        ("pipe", "which is not a regular file"),
        ("missing.bin", "is missing: 'missing.bin' could not be opened next to the model"),
    ],
)
def test_only_files_below_the_model_are_read(tmp_path: Path, location: str, words: str) -> None:
    """No name, link or special file leads outside the model's folder or blocks the reader."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (folder / "away.bin").symlink_to(tmp_path / "w.bin")
    os.mkfifo(folder / "pipe")
    found = outside(folder, location=location)
    assert words in found or (location == "x" * 4096 and "cannot be resolved" in found)


def test_a_missing_location_is_no_file(tmp_path: Path) -> None:
    """External data without a location is refused."""
    assert outside(tmp_path) == "external data of tensor 't' does not name a usable file"


def test_a_file_in_a_folder_below_is_accepted(tmp_path: Path) -> None:
    """A file in a subfolder is accepted, even through a path with `..`."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(bytes(16))
    assert outside(tmp_path, location="sub/w.bin") == ""
    assert outside(tmp_path, location="sub/../sub/w.bin") == ""


# --- Types ---------------------------------------------------------------------------------------


def test_a_type_is_read_as_it_is_written() -> None:
    """`type_of` reads back what `value_info` writes."""
    for kind in (OnnxType(1, (2, 3)), OnnxType(3, ()), OnnxType(7, (0,)), OnnxType(1, None)):
        assert type_of(value_info("x", kind)) == kind
    assert value_info("x", UNKNOWN).name == "x"


def test_what_is_not_known_is_said() -> None:
    """A missing type is unknown, an open dimension leaves no shape, and a sequence has no type."""
    assert type_of(onnx.ValueInfoProto(name="x")) == UNKNOWN
    assert OnnxType(0, None) == UNKNOWN
    info = value_info("x", OnnxType(1, (2, 3)))
    info.type.tensor_type.shape.dim[0].dim_param = "N"
    assert type_of(info) == OnnxType(1, None)
    info.type.tensor_type.shape.dim[0].dim_value = -1
    assert type_of(info) == OnnxType(1, None)
    info.type.sequence_type.elem_type.tensor_type.elem_type = 1
    assert type_of(info) is None
    assert OnnxType(1, (2,)).is_static
    assert not OnnxType(0, (2,)).is_static
    assert not OnnxType(1, None).is_static
