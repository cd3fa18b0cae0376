"""`binary_info` has the vendor's structure, and qnnmem's own data under one key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qnnmem.ir import DType, Model, Op, Tensor
from qnnmem.lpai.binary import pack
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph, Constant, Quant
from qnnmem.lpai.inspect import binary_info, data_type
from qnnmem.planner import Io, PoolOptions, plan_model
from qnnmem.qnn.enums import DataType
from qnnmem.results.schema import encode, load_schema
from qnnmem.units import Bytes, Offset

ROOT = Path(__file__).parents[2]


def context(io: Io = Io.INSIDE, program: bytes = b"p") -> CompiledContext:
    """Return a graph with a quantized input, a plain output and a state."""
    tensors = {name: Tensor(name, DType.INT8, (2, 3)) for name in ("x", "w", "h", "n")}
    tensors["y"] = Tensor("y", DType.INT32, ())
    ops = (Op("a", "A", ("x", "w"), ("y",)), Op("b", "B", ("h",), ("n",)))
    model = Model("m", "onnx", tensors, ops, ("h", "x"), ("y", "n"), ("w",))
    states = (("h", "n"),)
    plan = plan_model(model, PoolOptions(io=io, states=states))
    graph = CompiledGraph(
        "g",
        model,
        plan.buffers,
        plan.scratch_bytes,
        plan.persistent_bytes,
        plan.align,
        io,
        states,
        quants={"x": Quant(0.25, -7)},
        constants=tuple(
            Constant(name, 3, (2, 3), Offset(0), Bytes(6), False) for name in ("w", "w again")
        ),
        program=program,
    )
    return CompiledContext((graph,), "v6", "qnnmem 0.1.0", memoryview(bytes(6)))


def described(context: CompiledContext, file_bytes: int | None = None) -> Any:
    """Return the binary info of a context as JSON data."""
    size = file_bytes or sum(map(len, pack(context)))
    return json.loads(encode(binary_info(context, size)))


def test_the_outer_part_is_the_vendors() -> None:
    """Identifiers, versions and counts have the vendor's names and values."""
    found = described(context())
    info = found["info"]
    assert (info["backendId"], info["contextBlobVersion"], info["numGraphs"]) == (12, "1.0.0", 1)
    assert info["buildId"] == "qnnmem 0.1.0"
    assert info["contextBlobSize"] == len(b"".join(pack(context())))
    assert set(found) == {"info", "version", "qnnmem"}


def test_tensors_are_nested_as_the_vendor_nests_them() -> None:
    """States are not listed as graph inputs or outputs, and tensor ids are unique."""
    graph = described(context())["info"]["graphs"][0]["info"]
    (given,), (read,) = graph["graphInputs"], graph["graphOutputs"]
    assert (graph["graphName"], graph["numGraphInputs"], graph["numGraphOutputs"]) == ("g", 1, 1)
    assert (given["info"]["id"], read["info"]["id"]) == (0, 1)
    assert given["info"]["type"] == "QNN_TENSOR_TYPE_APP_WRITE"
    assert read["info"]["type"] == "QNN_TENSOR_TYPE_APP_READ"
    assert (read["info"]["rank"], read["info"]["dimensions"]) == (0, [])
    assert (given["info"]["name"], given["info"]["dimensions"]) == ("x", [2, 3])


def test_the_offset_is_the_zero_point_negated() -> None:
    """The offset is the negated zero point, since QNN computes (integer + offset) * scale."""
    graph = described(context())["info"]["graphs"][0]["info"]
    quant = graph["graphInputs"][0]["info"]["quantizeParams"]
    assert quant == {
        "definition": "QNN_DEFINITION_DEFINED",
        "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
        "scaleOffset": {"scale": 0.25, "offset": 7},
    }
    plain = graph["graphOutputs"][0]["info"]["quantizeParams"]
    assert plain["definition"] == "QNN_DEFINITION_UNDEFINED"


@pytest.mark.parametrize(
    ("dtype", "quantized", "name"),
    [
        (DType.INT8, True, "SFIXED_POINT_8"),
        (DType.UINT8, True, "UFIXED_POINT_8"),
        (DType.INT16, True, "SFIXED_POINT_16"),
        (DType.UINT16, True, "UFIXED_POINT_16"),
        (DType.INT32, True, "SFIXED_POINT_32"),
        (DType.INT8, False, "INT_8"),
        (DType.UINT8, False, "UINT_8"),
        (DType.INT64, True, "INT_64"),
        (DType.FLOAT32, True, "FLOAT_32"),
        (DType.FLOAT16, False, "FLOAT_16"),
        (DType.BOOL, False, "BOOL_8"),
        (DType.INT4, True, "SFIXED_POINT_4"),
        (DType.UINT4, False, "UFIXED_POINT_4"),
        (DType.COMPLEX64, False, "UNDEFINED"),
    ],
)
def test_types_have_qnns_names(dtype: DType, quantized: bool, name: str) -> None:
    """Integers with a scale are fixed-point types; types that QNN lacks are UNDEFINED."""
    assert data_type(dtype, quantized) is DataType[name]


def test_every_type_has_an_answer() -> None:
    """Every element type maps to a QNN type of the same width, or to none."""
    widths = {d: data_type(d, True).bits for d in DType if data_type(d, True).bits}
    assert all(dtype.bits == width for dtype, width in widths.items())
    assert len(widths) == len(DType) - 4  # float8, bfloat16 and the complex types


@pytest.mark.parametrize("io", list(Io))
def test_our_part_has_pools_and_places(io: Io) -> None:
    """Pool sizes and tensor offsets are listed under qnnmem's key; shared constants count once."""
    given = context(io)
    ours = described(given)["qnnmem"]
    graph, places = ours["graphs"][0], given.graphs[0].buffer_of
    pools = {"scratch", "persistent", "constants"} | ({"io"} if io is Io.OUTSIDE else set())
    assert set(graph["pools"]) == pools
    assert graph["pools"]["scratch"] == given.graphs[0].scratch_bytes
    assert graph["pools"]["constants"] == 6
    rows = [*graph["inputs"], *graph["outputs"], *graph["states"][0].values()]
    assert {row["name"]: (row["pool"], row["offset"]) for row in rows} == {
        name: (places[name].pool.value, places[name].offset) for name in ("x", "y", "h", "n")
    }
    assert (ours["hw_version"], ours["format_version"]) == ("v6", "1.0")


def test_the_tcm_account_is_that_of_the_judge() -> None:
    """The TCM account covers each graph and all graphs; states have no buffer in the pool."""
    ours = described(context(), 1000)["qnnmem"]
    account = {
        "fits": True,
        "need_bytes": 1024 + 64 + 64,
        "limit_bytes": 2_035_712,
        "buffers": 3,
        "max_buffers": 32,
    }
    assert ours["tcm"] == ours["graphs"][0]["tcm"] == account


def test_a_layout_has_no_tcm_account() -> None:
    """A layout has no TCM account, since its binary lacks the constants."""
    ours = described(context(program=b""), 1000)["qnnmem"]
    assert (ours["tcm"], ours["graphs"][0]["tcm"]) == (None, None)


def test_everything_is_json() -> None:
    """The binary info survives a round trip through JSON."""
    info = described(context(), 1000)
    assert json.loads(json.dumps(info)) == info
    assert info["info"]["contextBlobSize"] == info["qnnmem"]["file_bytes"] == 1000


@pytest.mark.parametrize("program", [b"p", b""])
@pytest.mark.parametrize("io", list(Io))
def test_the_schema_holds(io: Io, program: bytes) -> None:
    """The binary info fits its shipped schema, which refuses any extra key."""
    schema = load_schema("qnnmem.inspect/1")
    jsonschema.Draft202012Validator.check_schema(schema)
    info = json.loads(encode(binary_info(context(io, program), 1000)))
    jsonschema.validate(info, schema)
    info["qnnmem"]["graphs"][0]["extra"] = 1
    with pytest.raises(jsonschema.ValidationError, match="extra"):
        jsonschema.validate(info, schema)
