"""Chains: the manifest, the tensors to free after each part, the peak, and running the parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import onnx
import pytest
from chain_proofs import prove_partition, whole_model
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import LoadError, OutputError, UsageError
from qnnmem.fix.parts.chain import (
    MANIFEST,
    SCHEMA,
    read_chain,
    run_chain,
    write_chain,
)
from qnnmem.fix.parts.op_sequence import read_sequence
from qnnmem.fix.parts.partition import Partition, PlannedParts, partition
from qnnmem.results.chain import Chain
from qnnmem.results.schema import load_schema


def ladder(path: Path) -> Path:
    """Write three products of 64, 16 and 64 numbers in sequence, with a residual connection."""
    random = numpy.random.default_rng(1)
    sizes = ((64, 16), (16, 16), (16, 64))
    weights = [
        numpy_helper.from_array(random.normal(size=size).astype("float32"), f"w{n}")
        for n, size in enumerate(sizes)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "down"),
        helper.make_node("MatMul", ["a", "w1"], ["b"], "flat"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], "up"),
        helper.make_node("Add", ["c", "x"], ["d"], "residual"),
        helper.make_node("ReduceSum", ["a"], ["s"], "sum"),
        helper.make_node("Mul", ["d", "s"], ["y"], "scale"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "ladder",
        [info("x", TensorProto.FLOAT, [1, 64])],
        [info("y", TensorProto.FLOAT, [1, 64]), info("b", TensorProto.FLOAT, [1, 16])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def found(tmp_path: Path) -> Partition:
    """Return the ladder in three parts with one product each."""
    cut = partition(
        read_sequence(ladder(tmp_path / "model.onnx")), PlannedParts({"constants": 4096})
    )
    assert isinstance(cut, Partition)
    assert len(cut.parts) == 3
    return cut


@pytest.fixture
def chain(found: Partition, tmp_path: Path) -> Chain:
    """Write the chain and return it."""
    return write_chain(found, tmp_path / "parts")


def test_a_manifest_obeys_its_schema(chain: Chain, tmp_path: Path) -> None:
    """The manifest satisfies its JSON schema and reads back equal."""
    text = (tmp_path / "parts" / MANIFEST).read_text("utf-8")
    jsonschema.Draft202012Validator(load_schema(SCHEMA)).validate(json.loads(text))
    assert read_chain(tmp_path / "parts") == chain


def test_a_manifest_says_what_crosses(chain: Chain) -> None:
    """Each tensor between parts states type, shape, bytes, producer, role and where it is freed."""
    tensors = {tensor.name: tensor for tensor in chain.tensors}
    assert chain.inputs == ("x",)
    assert chain.outputs == ("y", "b")
    a = tensors["a"]
    assert (a.type, a.shape, a.bytes, a.role, a.from_part) == (
        "float32",
        (1, 16),
        64,
        "boundary",
        1,
    )
    assert (tensors["b"].role, tensors["b"].free_after) == ("output", None)
    assert (tensors["x"].role, tensors["x"].from_part) == ("input", 0)
    assert a.free_after == max(a.to_parts)
    for number, part in enumerate(chain.parts, start=1):
        for name in part.free_after:
            assert tensors[name].free_after == number


def test_nothing_is_freed_before_its_last_reader(chain: Chain) -> None:
    """No part frees a tensor before its last reader."""
    there = set(chain.inputs)
    for part in chain.parts:
        assert there.issuperset(part.inputs)
        there = there.union(part.outputs).difference(part.free_after)
    assert there.issuperset(chain.outputs)


def test_the_peak_is_that_of_parts_in_turn_or_all_resident(chain: Chain) -> None:
    """In turn, the peak counts only the largest part; resident, the peak counts all weights."""
    weights = [part.weights_bytes for part in chain.parts]
    assert sum(weights) == 4096 + 1024 + 4096
    peak = chain.peak
    assert peak.in_turn_bytes < peak.whole_bytes
    assert peak.in_turn_bytes >= max(weights)
    assert sum(weights) < peak.shared_bytes <= peak.resident_bytes


def test_a_chain_computes_what_the_whole_does(
    found: Partition, chain: Chain, tmp_path: Path
) -> None:
    """The chain computes each output of the whole model bit for bit."""
    assert prove_partition(found).identical
    x = numpy.random.default_rng(7).normal(size=(1, 64)).astype("float32")
    given = run_chain(tmp_path / "parts", {"x": x})
    w = {one.name: numpy_helper.to_array(one) for one in found.sequence.proto.graph.initializer}
    a = x @ w["w0"]
    expected = (a @ w["w1"] @ w["w2"] + x) * a.sum()
    assert set(given) == set(chain.outputs)
    numpy.testing.assert_allclose(given["y"], expected, rtol=1e-4)


def test_a_wrong_part_is_noticed(found: Partition) -> None:
    """The proof fails if one number of one part is changed."""
    from qnnmem.fix.proof.prove import prove

    parts = [onnx.load_from_string(blob) for blob in found.models()]
    weight = parts[1].graph.initializer[0]
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += 1
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    proof = prove(whole_model(found.sequence), *parts)
    assert not proof.identical
    assert "b" in proof.differing


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "needs the input 'x'"),
        ({"x": numpy.zeros((1, 63), "float32")}, "must have shape"),
        ({"x": numpy.zeros((1, 64), "float64")}, "must have type float32"),
    ],
)
def test_wrong_inputs_are_refused(
    inputs: dict[str, Any], words: str, chain: Chain, tmp_path: Path
) -> None:
    """A missing input and a wrong shape or type are refused with one sentence."""
    assert chain.parts
    with pytest.raises(UsageError, match=words):
        run_chain(tmp_path / "parts", inputs)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "qnnmem.chain/9"},
        {"parts": 3},
        {"parts": [{}]},
        {"tensors": [{"name": 1}]},
        {"outputs": ["nobody"]},
        {"inputs": []},
        {"inputs": "x"},
        {"peak": None},
        {"crossing_bytes": -1},
        {"tensors": []},
        {"htp": 1},
        {"htp": {}},
    ],
)
def test_a_damaged_manifest_is_refused(
    change: dict[str, Any], chain: Chain, tmp_path: Path
) -> None:
    """A damaged manifest raises a LoadError that names the file."""
    assert chain.parts
    path = tmp_path / "parts" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}))
    with pytest.raises(LoadError, match=r"chain\.json"):
        read_chain(path.parent)


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 10_000, '{"schema": []}', "\x00"])
def test_a_file_that_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    """A file with other content raises a LoadError that says that it is not a manifest."""
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(LoadError, match=r"is not a qnnmem\.chain/1 manifest"):
        read_chain(tmp_path)


@pytest.mark.parametrize("name", ["../part1.onnx", "/etc/passwd", "a/b.onnx", ".."])
def test_parts_lie_beside_their_manifest(name: str, chain: Chain, tmp_path: Path) -> None:
    """A manifest cannot name files outside its folder."""
    assert chain.parts
    path = tmp_path / "parts" / MANIFEST
    values = json.loads(path.read_text("utf-8"))
    values["parts"][0]["file"] = name
    path.write_text(json.dumps(values))
    with pytest.raises(LoadError):
        read_chain(path.parent)


def test_another_file_in_the_place_of_a_part_is_refused(chain: Chain, tmp_path: Path) -> None:
    """A part file whose content differs from the manifest is refused."""
    folder = tmp_path / "parts"
    (folder / chain.parts[0].file).write_bytes((folder / chain.parts[1].file).read_bytes())
    with pytest.raises(LoadError, match="not the file that the manifest describes"):
        read_chain(folder)


def test_files_that_are_there_are_not_replaced(
    found: Partition, chain: Chain, tmp_path: Path
) -> None:
    """A chain does not replace existing files without `force`."""
    folder = tmp_path / "parts"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OutputError, match="already exists"):
        write_chain(found, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert write_chain(found, folder, force=True) == chain
