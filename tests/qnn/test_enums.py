from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from qnnmem.errors import UsageError
from qnnmem.qnn.enums import (
    PROVIDER_NAME,
    UNDEFINED,
    BackendId,
    BackendOption,
    BackendProperty,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    CoreAffinity,
    DataType,
    GraphConfigOption,
    GraphOption,
    GraphProperty,
    HwVersion,
    LogLevel,
    MemRegisterType,
    MemType,
    Priority,
    Target,
    TensorMemType,
    TensorType,
)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (BackendId.LPAI, 12),
        (BackendId.LPAI_ISLAND, 16),
        (BackendOption.CUSTOM_CFG_HW_INFO, 0),
        (BackendProperty.GET_PROP_ALIGNMENT_REQ, 0),
        (BackendProperty.GET_PROP_REQUIRE_PERSISTENT_BINARY, 1),
        (BackendProperty.GET_PROP_ENPU_CORE_NUM, 200),
        (ContextOption.ENABLE_GRAPHS, 5),
        (ContextOption.PERSISTENT_BINARY, 7),
        (ContextCustomOption.MODEL_BUFFER_MEM_TYPE, 1),
        (ContextCustomOption.ENABLE_ISLAND, 11),
        (GraphConfigOption.PRIORITY, 3),
        (GraphOption.SET_CFG_SCRATCH_MEM, 1),
        (GraphOption.SET_CFG_PERSISTENT_MEM, 101),
        (GraphOption.SET_CFG_PERF_CFG, 201),
        (GraphOption.SET_CFG_CORE_AFFINITY, 301),
        (GraphOption.SET_CFG_PREPARE, 10001),
        (GraphProperty.GET_PROP_SCRATCH_MEM_SIZE, 1),
        (GraphProperty.GET_PROP_PERSISTENT_MEM_SIZE, 101),
        (MemType.DDR, 1),
        (MemType.PSRAM, 4),
        (ClientPerfType.NON_REAL_TIME, 2),
        (CoreAffinity.HARD, 2),
        (Priority.DEFAULT, 100),
        (TensorMemType.MEMHANDLE, 1),
        (TensorType.OPTIONAL_APP_READWRITE, 13),
        (MemRegisterType.DMA_BUF, 3),
        (LogLevel.DEBUG, 5),
        (Target.ADSP, 2),
        (HwVersion.V5_1, 0x00010005),
        (DataType.UFIXED_POINT_16, 0x416),
    ],
)
def test_numbers_are_those_of_the_headers(member: int, value: int) -> None:
    """An enum member has the number of the C headers."""
    assert int(member) == value


@pytest.mark.parametrize(
    "kind", [GraphOption, GraphProperty, MemType, ClientPerfType, CoreAffinity, HwVersion]
)
def test_what_was_never_set_is_undefined(kind: type[GraphOption]) -> None:
    """The headers' value for an unset field is a member of each enum."""
    assert kind(UNDEFINED).value == 0x7FFFFFFF


def test_the_provider_has_the_name_of_the_backend() -> None:
    """The provider name is LPAI_QTI_AISW, by which a client chooses it."""
    assert PROVIDER_NAME == "LPAI_QTI_AISW"


def test_hardware_versions_sort_by_age() -> None:
    """Hardware versions sort by age: v5_1 lies between v5 and v6, and unknown is first."""
    words = ["na", "v1", "v2", "v3", "v4", "v5", "v5_1", "v6", "v7"]
    versions = [HwVersion.UNKNOWN, *(HwVersion[word.upper()] for word in words)]
    assert sorted(HwVersion) == versions
    for older, newer in pairwise(versions):
        assert older < newer
        assert older <= newer
        assert newer > older
        assert newer >= older
        assert not newer <= older
        assert not older >= newer


def test_a_hardware_version_compares_with_a_plain_number_by_value() -> None:
    """A hardware version compares with a plain number by its value."""
    assert 7 < HwVersion.V5_1 < 0x7FFF0000
    assert HwVersion.V6 <= 6


@pytest.mark.parametrize(
    ("word", "version"), [("v5_1", HwVersion.V5_1), ("V6", HwVersion.V6), (" v7 ", HwVersion.V7)]
)
def test_a_hardware_version_is_read_as_files_write_it(word: str, version: HwVersion) -> None:
    """A hardware version is parsed from its word in any letter case."""
    assert HwVersion.parse(word) is version
    assert HwVersion.parse(version.word) is version


@pytest.mark.parametrize("word", ["", "6", "v8", "v5.1", "unknown", "undefined", "na", "v6\x1b"])
def test_another_word_is_no_hardware_version(word: str) -> None:
    """An unknown version word is refused, and the error names the known versions."""
    with pytest.raises(UsageError, match="v5_1, v6, v7"):
        HwVersion.parse(word)


@pytest.mark.parametrize("data", [d for d in DataType if d.bits >= 8])
def test_a_data_type_has_the_width_of_its_numpy_type(data: DataType) -> None:
    """A data type takes the same bytes as its NumPy type."""
    assert np.zeros(3, data.numpy_name).nbytes == data.nbytes(3)


@pytest.mark.parametrize("data", [d for d in DataType if d.bits >= 8])
def test_numpy_names_lead_back_to_the_data_type(data: DataType) -> None:
    """A NumPy name and the quantization identify a data type."""
    assert DataType.from_numpy(data.numpy_name, data.is_quantized) is data


def test_elements_below_one_byte_are_packed() -> None:
    """Three elements of four bits take two bytes; NumPy has no such type."""
    assert DataType.SFIXED_POINT_4.nbytes(3) == 2
    with pytest.raises(UsageError, match="QNN_DATATYPE_SFIXED_POINT_4"):
        _ = DataType.SFIXED_POINT_4.numpy_name


def test_a_type_that_qnn_does_not_have_is_refused() -> None:
    """Complex numbers and quantized floats have no data type and are refused."""
    with pytest.raises(UsageError, match="complex64"):
        DataType.from_numpy("complex64")
    with pytest.raises(UsageError, match="quantized"):
        DataType.from_numpy("float32", quantized=True)


def test_only_floating_point_types_are_floats() -> None:
    """Exactly FLOAT_16, FLOAT_32 and FLOAT_64 are floats, the types that LPAI refuses."""
    assert {d.name for d in DataType if d.is_float} == {"FLOAT_16", "FLOAT_32", "FLOAT_64"}
