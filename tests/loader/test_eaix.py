from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qnnmem.errors import LoadError
from qnnmem.ir import DType, Effect, Model
from qnnmem.loader import eaix

INPUT, OUTPUT, CONSTANT, HELPER = 1, 2, 4, 0x20
HEADING = "  Index, Start Pad Bytes, Valid Size, Stride Bytes"


def tensor(
    key: int, dims: Iterable[int], dtype: str = "int8", flag: int = 0, layout: str = "", **more: Any
) -> dict[str, Any]:
    """Return a tensor as reports describe it."""
    shape = {"dimensions": list(dims)}
    return {
        "tensor_id": str(key),
        "tensor_name": f"t{key}",
        "flag": hex(flag),
        "type": {"dataLayout": f"{HEADING}{layout}", "dataType": dtype, "shape": shape},
        **more,
    }


def weights(key: int, stored: int) -> dict[str, Any]:
    """Return a constant as reports describe it."""
    return tensor(key, (1, 9999), flag=CONSTANT, data_size=stored)


def ports(tensors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a port for each tensor."""
    return [{"name": f"Port{place}", "value": [item]} for place, item in enumerate(tensors)]


def node(
    order: int,
    operator: str,
    inputs: Iterable[Mapping[str, Any]],
    outputs: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a node that runs at `order`."""
    return {
        "id": order,
        "name": f"{operator}_{order}",
        "operator": operator,
        "actual_order": order,
        "inputs": ports(inputs),
        "outputs": ports(outputs),
    }


def report(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a report of one graph whose inputs and outputs are marked by flags."""
    items = list(nodes)
    values = [p["value"][0] for n in items for p in (*n["inputs"], *n["outputs"])]
    flagged = [[v for v in values if int(v["flag"], 0) & bit] for bit in (INPUT, OUTPUT)]
    graph = {"name": "g", "nodes": items, "inputs": ports(flagged[0]), "outputs": ports(flagged[1])}
    return {"format": "eAI v5.9", "name": "made.eai", "graphs": [graph]}


def read(folder: Path, content: Mapping[str, Any] | bytes) -> Model:
    """Return the model read from a report."""
    path = folder / "made.eaix"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return eaix.read(path)


def anomaly_detection() -> dict[str, Any]:
    """Return the published autoencoder: ten fully connected layers, 640 in, 640 out."""
    sizes = [640, 128, 128, 128, 128, 16, 128, 128, 128, 128, 640]
    chain = [tensor(20 + place, (1, size)) for place, size in enumerate(sizes)]
    chain[0]["flag"], chain[-1]["flag"] = hex(INPUT), hex(OUTPUT)
    return report(
        node(step, "SUPER_GEMM_EAI", [chain[step], weights(step, 8496)], [chain[step + 1]])
        for step in range(10)
    )


def keyword_spotting() -> dict[str, Any]:
    """Return the published keyword spotter: padded input, nine convolutions, pooling, softmax."""
    rows = "</br>[0, 0, 1, 560]</br>[3, 0, 10, 56]</br>[1, 0, 1, 56]</br>[2, 0, {}, 1]"
    t = {key: tensor(key, (1, 64, 25, 5)) for key in range(25, 34)}
    t[21] = tensor(21, (1, 49, 10, 1), flag=INPUT)
    t[22] = tensor(22, (1, 1, 49, 10))
    t[23] = tensor(23, (1, 1, 56, 10), layout=rows.format(56))
    t[24] = tensor(24, (1, 1, 49, 10), layout=rows.format(49))
    t[34], t[35] = tensor(34, (1, 64, 1, 1)), tensor(35, (1, 64))
    t[36], t[37] = tensor(36, (1, 16), "int32"), tensor(37, (1, 12), "int32")
    t[38] = tensor(38, (1, 12), flag=OUTPUT)
    helper = tensor(20, (1, 12), "int32", HELPER, "</br>[0, 0, 1, 12]</br>[1, 0, 12, 1]")
    operators = {0: "TRANSPOSE", 1: "PAD", 2: "NOP", 12: "SUPER_AVGPOOL_EAI", 13: "NOP"}
    operators |= {14: "SUPER_GEMM_EAI", 15: "NOP", 16: "SOFTMAX_EAI"}
    return report(
        node(
            step,
            operators.get(step, "SUPER_CONV_EAI"),
            [t[21 + step], *([helper] if step == 16 else [])],
            [t[22 + step]],
        )
        for step in range(17)
    )


def liveness_bound(model: Model) -> int:
    """Return the largest sum of live buffers at a step, each rounded up to 64; views are free."""
    owner = {name: name for name in model.tensors}
    spans = {name: [-1, -1] for name in model.inputs}
    sizes = {name: -(-t.nbytes // 64) * 64 for name, t in model.tensors.items()}
    for step, op in enumerate(model.ops):
        for name in op.inputs:
            if name not in model.constants:
                spans[owner[name]][1] = step
        if op.effect is Effect.VIEW:
            owner[op.outputs[0]] = owner[op.inputs[0]]
            spans[owner[op.inputs[0]]][1] = step
        else:
            spans.update((name, [step, step]) for name in op.outputs)
    for name in model.outputs:
        spans[owner[name]][1] = len(model.ops)
    steps = range(-1, len(model.ops) + 1)
    live = [[n for n, (first, last) in spans.items() if first <= t <= last] for t in steps]
    return max(sum(sizes[name] for name in names) for names in live)


def test_anomaly_detection_needs_what_the_compiler_says(tmp_path: Path) -> None:
    """The autoencoder's live bytes peak at 768, the size in the compiled binary's header."""
    assert liveness_bound(read(tmp_path, anomaly_detection())) == 768


def test_keyword_spotting_needs_what_the_compiler_says(tmp_path: Path) -> None:
    """The keyword spotter's live bytes peak at 16,000, the size in the compiled binary's header."""
    assert liveness_bound(read(tmp_path, keyword_spotting())) == 16_000


def test_constants_count_as_stored(tmp_path: Path) -> None:
    """Compressed weights count at their stored size, not at the size of their shape."""
    model = read(tmp_path, anomaly_detection())
    assert len(model.constants) == 10
    assert {model.tensors[name].nbytes for name in model.constants} == {8496}


def test_a_constant_without_stored_size_counts_as_its_shape(tmp_path: Path) -> None:
    """A constant without a stored size counts at the size of its shape."""
    model = read(tmp_path, one(reads=tensor(0, (4,), "int32", CONSTANT)))
    assert model.tensors["t0"].nbytes == 16


def test_an_output_that_is_read_again_is_one_tensor(tmp_path: Path) -> None:
    """An output that a later node reads is one tensor, even if only one end marks it as output."""
    first = node(0, "PAD", [tensor(0, (4,), flag=INPUT)], [tensor(1, (4,))])
    last = node(1, "PAD", [tensor(1, (4,), flag=OUTPUT)], [tensor(2, (4,), flag=OUTPUT)])
    assert read(tmp_path, report([first, last])).outputs == ("t1", "t2")


def test_padding_belongs_to_the_buffer(tmp_path: Path) -> None:
    """A tensor with padded rows counts at the size of its layout."""
    tensors = read(tmp_path, keyword_spotting()).tensors
    assert (tensors["t22"].nbytes, tensors["t24"].nbytes) == (490, 560)


def test_a_layout_in_elements_does_not_shrink_a_tensor(tmp_path: Path) -> None:
    """A layout that counts elements does not shrink a tensor: 12 x 32 bits stay 48 bytes."""
    model = read(tmp_path, keyword_spotting())
    assert model.tensors["t20"].nbytes == 48
    assert model.tensors["t20"].dtype is DType.INT32


def test_a_helper_is_working_memory_of_its_step(tmp_path: Path) -> None:
    """A helper input that no node fills counts as an output of its own node."""
    op = read(tmp_path, keyword_spotting()).ops[16]
    assert (op.inputs, op.outputs) == (("t37",), ("t38", "t20"))


def test_nodes_run_in_actual_order(tmp_path: Path) -> None:
    """Nodes run in `actual_order`, whatever their order in the list."""
    made = anomaly_detection()
    made["graphs"][0]["nodes"].reverse()
    model = read(tmp_path, made)
    assert [op.name for op in model.ops] == [f"SUPER_GEMM_EAI_{step}" for step in range(10)]
    assert model.ops[0].sources == (9,)


def test_nop_is_a_view(tmp_path: Path) -> None:
    """A NOP is a view of its input."""
    ops = read(tmp_path, keyword_spotting()).ops
    assert [op.type for op in ops if op.effect is Effect.VIEW] == ["NOP"] * 3


def test_a_nop_that_grows_is_not_a_view(tmp_path: Path) -> None:
    """A NOP whose output is larger than its input is not a view."""
    made = report([node(0, "NOP", [tensor(0, (4,), flag=INPUT)], [tensor(1, (8,), flag=OUTPUT)])])
    assert read(tmp_path, made).ops[0].effect is Effect.COMPUTE


def test_additions_may_run_in_place(tmp_path: Path) -> None:
    """An element-wise node on tensors of equal size may run in place."""
    ins = [tensor(0, (4,), flag=INPUT), tensor(1, (4,), flag=INPUT)]
    made = report([node(0, "SUPER_ELEM_ADD_EAI", ins, [tensor(2, (4,), flag=OUTPUT)])])
    assert read(tmp_path, made).ops[0].effect is Effect.ELEMENTWISE


def test_further_graphs_are_noted(tmp_path: Path) -> None:
    """Only the first graph of a report is read, and a note says so."""
    made = anomaly_detection()
    made["graphs"] *= 3
    model = read(tmp_path, made)
    assert model.notes == ("only the first of 3 graphs in the report was read",)


def test_unknown_flags_are_noted(tmp_path: Path) -> None:
    """Unknown tensor flags are ignored with a note."""
    made = report(
        [node(0, "PAD", [tensor(0, (4,), flag=INPUT | 0x40)], [tensor(1, (4,), flag=OUTPUT)])]
    )
    assert read(tmp_path, made).notes == ("unknown tensor flags 0x40 were ignored",)


def test_equal_names_become_unique(tmp_path: Path) -> None:
    """Two tensors with one name get unique names."""
    ins, outs = tensor(0, (4,), flag=INPUT), tensor(1, (4,), flag=OUTPUT)
    ins["tensor_name"] = outs["tensor_name"] = "same"
    model = read(tmp_path, report([node(0, "PAD", [ins], [outs])]))
    assert (model.inputs, model.outputs) == (("same",), ("same_1",))


def one(
    *, reads: Mapping[str, Any] | None = None, writes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a report of one node."""
    return report(
        [
            node(
                0,
                "PAD",
                [reads or tensor(0, (4,), flag=INPUT)],
                [writes or tensor(1, (4,), flag=OUTPUT)],
            )
        ]
    )


def with_node(**changes: object) -> dict[str, Any]:
    """Return a report whose only node has these fields changed."""
    made = one()
    made["graphs"][0]["nodes"][0].update(changes)
    return made


def later() -> dict[str, Any]:
    """Return a report in which a node reads the result of a later node."""
    middle = tensor(5, (4,))
    first = node(0, "PAD", [middle], [tensor(1, (4,), flag=OUTPUT)])
    return report([first, node(1, "PAD", [tensor(0, (4,), flag=INPUT)], [middle])])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({}, "list 'graphs' is missing"),
        ({"graphs": []}, "list 'graphs' is missing"),
        ({"graphs": [7]}, "the graph has no valid 'nodes'"),
        ({"graphs": [{"nodes": [7], "inputs": [], "outputs": []}]}, "node 0 has no valid"),
        (with_node(actual_order="0"), "node 0 has no valid 'actual_order'"),
        (with_node(actual_order=True), "node 0 has no valid 'actual_order'"),
        (with_node(operator=None), "node 0 has no valid 'operator'"),
        (with_node(inputs=[{"value": [None]}]), "node 0 has no valid 'tensor_id'"),
        (with_node(outputs=[]), "output 't1' is never produced"),
        (one(reads=tensor(0, (4,))), "reads 't0' before"),
        (later(), "reads 't5' before"),
        (one(writes=tensor(0, (4,), flag=INPUT)), "which already has a value"),
        (one(writes=tensor(0, (5,), flag=INPUT)), "described twice, with differences"),
        (one(writes=tensor(1, (-4,), flag=OUTPUT)), "impossible size: -4"),
        (one(writes=tensor(1, (1.5,), flag=OUTPUT)), ("impossible size: a float")),  # type: ignore[arg-type]  # wrong on purpose
        (one(writes=tensor(1, (10**9,) * 3, flag=OUTPUT)), "more than"),
        (one(writes=tensor(1, (1,) * 33, flag=OUTPUT)), "more than 32 dimensions"),
        (one(writes=tensor(1, (4,), "quaternion", OUTPUT)), "unknown type 'quaternion'"),
        (with_node(outputs=ports([tensor(1, (4,)) | {"flag": "many"}])), "no valid 'flag'"),
        (one(reads=weights(0, -1)), "impossible size: -1"),
        (report([*[node(3, "PAD", [], [tensor(k, (4,))]) for k in range(2)]]), "actual_order, 3"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, made: Mapping[str, Any], reason: str) -> None:
    """A report with a missing or contradictory field is refused with the reason."""
    with pytest.raises(LoadError) as caught:
        read(tmp_path, made)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"graphs": NaN}', "NaN is not a valid number"),
        (b'{"graphs": ' + b"9" * 100_000 + b"}", "100000 digits"),
        (b'{"graphs": [', "not valid JSON"),
        (b'{"graphs": "\xff"}', "not valid JSON"),
        (b"[]", "not an object"),
    ],
)
def test_hostile_json_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """JSON that is deeply nested, damaged or not an object is refused in one short sentence."""
    with pytest.raises(LoadError) as caught:
        read(tmp_path, content)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 200


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy: a bit flipped, bytes cut, deleted or repeated, or a word replaced."""
    at, end = sorted((chance.randrange(len(content)), chance.randrange(len(content))))
    kind = chance.randrange(5)
    if kind == 0:
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[min(end, at + 40) :]
    if kind == 3:
        return content[:end] + content[at:]
    old = chance.choice([b"640", b"128", b'"int8"', b'"0x0"', b"[]", b'"value"', b'"flag"'])
    new = chance.choice([b"-1", b"1e9", b"null", b"{}", b"[[]]", b'"x"', b"9" * 18])
    return content.replace(old, new, chance.randint(1, 3))


@pytest.mark.parametrize("make", [anomaly_detection, keyword_spotting])
def test_damaged_reports_are_refused_or_read(tmp_path: Path, make: Any) -> None:
    """200 damaged reports each end in a model or in LoadError, all within 60 seconds."""
    content = json.dumps(make()).encode()
    chance = random.Random(3)  # noqa: S311 - reproducible, not secret
    began = time.monotonic()
    for _ in range(200):
        with suppress(LoadError):
            read(tmp_path, mutate(content, chance) or b"x")
    assert time.monotonic() - began < 60
