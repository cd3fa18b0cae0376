"""One time limit for all steps, checked in every loop that a file can make long."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest
from tflite_writer import G, O, T, tflite_bytes

import qnnmem
from qnnmem.child import ChildProcess
from qnnmem.deadline import Deadline, ask_deadline, enforced_s, not_in_time
from qnnmem.errors import LoadError, NotInTime, OutOfTime
from qnnmem.loader.dlc.model import as_model
from qnnmem.loader.onnx import well_formed
from qnnmem.qnn.enums import DataType, TensorType
from qnnmem.qnn.graph import ComposedGraph, ComposedOp, ComposedTensor

RELU = G((T("a"), T("b")), (0,), (1,), (O("RELU", (0,), (1,)),))
HEAD = '<ir_version: 8, opset_import: ["" : 18]> '


def test_a_deadline_has_seconds_left_until_it_ends() -> None:
    """A deadline has no seconds left after its end; without a limit each step has its own time."""
    some, none = Deadline.after(50.0, 10.0), Deadline.after(None)
    assert 59 < some.left_s <= 60
    assert 59 < some.left(5.0) <= 60
    assert (none.left(5.0), none.left_s) == (5.0, math.inf)
    assert some.limit_s == 60.0
    assert Deadline.after(-1.0).left_s == 0.0


def test_what_is_late_is_said_with_its_limit() -> None:
    """The error at the deadline names the limit and the option to raise it."""
    with pytest.raises(NotInTime, match="within 2 s; allow more time with time_limit_s"):
        Deadline(2.0, time.monotonic() - 0.001).left(5.0)
    assert isinstance(not_in_time(Path("m.onnx"), "the binary was not loaded"), OutOfTime)


def test_nobody_is_late_where_no_deadline_is_enforced() -> None:
    """`ask_deadline` raises NotInTime only inside a block whose deadline has passed."""
    ask_deadline()
    with Deadline.after(60.0).enforced():
        ask_deadline()
    with pytest.raises(NotInTime), Deadline.after(-1.0).enforced():
        ask_deadline()
    ask_deadline()


@pytest.mark.parametrize(("outer", "inner"), [(-1.0, 60.0), (60.0, -1.0), (-1.0, None)])
def test_the_earlier_of_two_deadlines_holds(outer: float, inner: float | None) -> None:
    """Of two nested deadlines, the earlier one holds."""
    with Deadline.after(outer).enforced():
        with Deadline.after(inner).enforced(), pytest.raises(NotInTime):
            ask_deadline()
        if outer > 0:
            ask_deadline()


def report() -> bytes:
    """Return an eAI report of one node."""
    node = {"name": "n", "operator": "X", "actual_order": 0, "inputs": [], "outputs": []}
    return json.dumps({"graphs": [{"nodes": [node], "inputs": [], "outputs": []}]}).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.onnx", lambda: onnx_bytes("g (float[4] x) => (float[4] y) { y = Relu(x) }")),
        (
            "m.tflite",
            lambda: tflite_bytes(G((T("a"), T("b")), (0,), (1,), (O("RELU", (0,), (1,)),))),
        ),
        ("m.eaix", report),
    ],
)
def test_every_reader_asks(tmp_path: Path, name: str, content: Callable[[], bytes]) -> None:
    """The ONNX, TFLite and eAI readers check the deadline."""
    path = tmp_path / name
    path.write_bytes(content())
    with pytest.raises(NotInTime), Deadline.after(-1.0).enforced():
        qnnmem.load(path)


def test_the_reader_of_composed_graphs_asks() -> None:
    """The reader of composed graphs checks the deadline for each operator."""
    kinds = (TensorType.APP_WRITE, TensorType.APP_READ)
    tensors = tuple(
        ComposedTensor(at, f"t{at}", kind, DataType.FLOAT_32, (4,)) for at, kind in enumerate(kinds)
    )
    op = ComposedOp("r", "qti.aisw", "Relu", (0,), (1,), {}, {})
    with pytest.raises(NotInTime), Deadline.after(-1.0).enforced():
        as_model(Path("g.dlc"), ComposedGraph("g", tensors, (op,)))


def test_a_child_has_no_more_time_than_the_answer() -> None:
    """A child's time limit is at most the time left until the deadline."""
    assert enforced_s() == math.inf
    with Deadline.after(5.0).enforced():
        with ChildProcess("qnnmem.loader.dlc.program", 60.0) as child:
            assert 4 < child.deadline.limit_s <= 5
        with ChildProcess("qnnmem.loader.dlc.program", 2.0) as child:
            assert child.deadline.limit_s == 2.0


# --- Functions ------------------------------------------------------------------------------------


def onnx_bytes(text: str) -> bytes:
    """Return an ONNX model from its text form."""
    content: bytes = onnx.parser.parse_model(HEAD + text).SerializeToString()
    return content


def doubling(levels: int) -> bytes:
    """Return functions that each call the previous one twice: 2**levels nodes."""
    texts = ['<domain: "own", opset_import: ["" : 18]> f0 (a) => (b) { b = Relu(a) }']
    head = '<domain: "own", opset_import: ["" : 18, "own" : 1]>'
    for level in range(1, levels + 1):
        call = f"own.f{level - 1}"
        texts.append(f"{head} f{level} (a) => (b) {{ m = {call}(a) b = {call}(m) }}")
    start = '<ir_version: 8, opset_import: ["" : 18, "own" : 1]>'
    main = f"{start} g (float[4] x) => (float[4] y) {{ y = own.f{levels}(x) }}"
    content: bytes = onnx.parser.parse_model("\n".join((main, *texts))).SerializeToString()
    return content


def test_functions_are_counted_before_they_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are counted before functions are expanded: a billion are refused at once."""
    path = tmp_path / "m.onnx"
    path.write_bytes(doubling(30))
    begun = time.process_time()
    with pytest.raises(LoadError, match="more than 200,000 nodes after its functions are expanded"):
        qnnmem.load(path)
    assert time.process_time() - begun < 5
    monkeypatch.setattr(well_formed, "MAX_NODES", 8)
    path.write_bytes(doubling(3))
    assert len(qnnmem.load(path).ops) == 8
    path.write_bytes(doubling(4))
    with pytest.raises(LoadError, match="more than 8 nodes"):
        qnnmem.load(path)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    """A function that calls itself, directly or through others, is refused."""
    proto = onnx.ModelProto.FromString(doubling(2))
    proto.functions[0].node[0].op_type, proto.functions[0].node[0].domain = "f2", "own"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(LoadError, match="calls itself, directly or through others"):
        qnnmem.load(path)


def test_functions_in_a_long_row_are_counted(tmp_path: Path) -> None:
    """A chain of 3,000 function calls is counted, though it exceeds Python's stack."""
    proto = onnx.ModelProto.FromString(doubling(1))
    function = proto.functions[1]
    del proto.functions[:]
    for number in reversed(range(3000)):
        one = proto.functions.add()
        one.CopyFrom(function)
        one.name = f"f{number + 1}"
        for node in one.node:
            node.op_type = f"f{number}"
    proto.graph.node[0].op_type = "f3000"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(LoadError, match="after its functions are expanded"):
        qnnmem.load(path)
