from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.ir import DType, Tensor

WIDTHS = {
    DType.BOOL: 8,
    DType.INT4: 4,
    DType.UINT4: 4,
    DType.INT8: 8,
    DType.UINT8: 8,
    DType.INT16: 16,
    DType.UINT16: 16,
    DType.INT32: 32,
    DType.UINT32: 32,
    DType.INT64: 64,
    DType.UINT64: 64,
    DType.FLOAT8: 8,
    DType.FLOAT16: 16,
    DType.BFLOAT16: 16,
    DType.FLOAT32: 32,
    DType.FLOAT64: 64,
    DType.COMPLEX64: 64,
    DType.COMPLEX128: 128,
}
FLOATS = {
    DType.FLOAT8,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT32,
    DType.FLOAT64,
    DType.COMPLEX64,
    DType.COMPLEX128,
}


@pytest.mark.parametrize("dtype", DType)
def test_every_element_type_has_its_width(dtype: DType) -> None:
    """Each element type has the bit width that its name states."""
    assert dtype.bits == WIDTHS[dtype]


@pytest.mark.parametrize("dtype", DType)
def test_only_floating_point_types_are_floats(dtype: DType) -> None:
    """Integers and booleans are not floats; complex types are."""
    assert dtype.is_float == (dtype in FLOATS)


@pytest.mark.parametrize("dtype", DType)
def test_a_scalar_is_one_element(dtype: DType) -> None:
    """A scalar takes the bytes of one element, at least one byte."""
    assert Tensor("s", dtype, ()).nbytes == max(1, WIDTHS[dtype] // 8)


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 1), (2, 1), (3, 2), (8, 4), (9, 5)])
def test_four_bit_elements_are_packed(count: int, size: int) -> None:
    """Two 4-bit elements share a byte; a last odd element takes a whole byte."""
    assert Tensor("p", DType.INT4, (count,)).nbytes == size


def test_packing_is_over_the_whole_tensor_not_per_row() -> None:
    """Packing ignores rows: a 3 x 3 tensor of 4-bit elements takes five bytes."""
    assert Tensor("p", DType.UINT4, (3, 3)).nbytes == 5


def test_a_zero_dimension_takes_no_bytes() -> None:
    """A tensor with a zero dimension takes no bytes."""
    assert Tensor("z", DType.FLOAT32, (3, 0, 5)).nbytes == 0


@given(st.lists(st.integers(0, 50), max_size=4), st.sampled_from(list(DType)))
def test_bytes_are_the_fewest_that_hold_all_bits(shape: list[int], dtype: DType) -> None:
    """A tensor's size is the fewest bytes that hold all its bits."""
    tensor = Tensor("t", dtype, tuple(shape))
    bits = tensor.elements * WIDTHS[dtype]
    assert bits <= 8 * tensor.nbytes < bits + 8


def test_another_width_can_be_asked_for() -> None:
    """A float32 tensor stored with 8 bits takes a quarter of its bytes."""
    assert Tensor("t", DType.FLOAT32, (5, 2)).nbytes_at(8) == 10


def test_a_shape_may_hold_integers_of_numpy() -> None:
    """A shape may be a list with NumPy integers; the tensor stores a tuple of plain ints."""
    numpy = pytest.importorskip("numpy")
    tensor = Tensor("x", DType.INT8, [numpy.int64(2), 3])  # type: ignore[arg-type]
    assert tensor.shape == (2, 3)
    assert {type(size) for size in tensor.shape} == {int}
