from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import few
from small_files import SEEDS

import qnnmem
from qnnmem.ir import DType, FixedBuffer, Model, Op, Span, Tensor
from qnnmem.planner import Buffer, Io, MemoryPlan, Plan, Pool, PoolOptions, Problem, verify
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.results.schema import encode, load_schema
from qnnmem.units import Align, Bytes, Offset, Step

SCHEMA = "qnnmem.plan/1"
WANTED = {  # documented keys
    *("schema", "scratch_bytes", "persistent_bytes", "io_bytes", "constant_bytes"),
    *("lower_bound_bytes", "optimal", "seconds", "align_bytes", "peak", "tcm", "buffers"),
    *("notes", "tool", "input"),
}


def report(plan: MemoryPlan, name: str = "model") -> PlannedFile:
    """Return a plan with the file name and the time that the command line adds."""
    return PlannedFile(plan, name, 0.25)


def from_file(kind: str, place: int = 0) -> Callable[[Path], PlannedFile]:
    """Return a function that plans one of the small files."""

    def make(folder: Path) -> PlannedFile:
        path = folder / f"model.{kind}"
        path.write_bytes(SEEDS[kind]()[place])
        return report(qnnmem.plan(qnnmem.load(path), 0.2), str(path))

    return make


def diamond() -> Model:
    """Return a model with two branches, a state-like pair and a constant."""
    names = ("x", "h_in", "w", "a", "b", "y", "h_out")
    tensors = {name: Tensor(name, DType.FLOAT32, (1, 100)) for name in names}
    ops = (
        Op("left", "Conv", ("x", "w"), ("a",)),
        Op("right", "Conv", ("x",), ("b",)),
        Op("join", "Add", ("a", "b"), ("y",)),
        Op("keep", "Tanh", ("h_in",), ("h_out",)),
    )
    return Model("diamond", "onnx", tensors, ops, ("x", "h_in"), ("y", "h_out"), ("w",))


def planned(
    budget: dict[Pool, Bytes] | None = None, **options: Any
) -> Callable[[Path], PlannedFile]:
    """Return a function that plans the diamond with options."""

    def make(folder: Path) -> PlannedFile:
        return report(qnnmem.plan(diamond(), 0.2, options=PoolOptions(**options), budget=budget))

    return make


def listed(*buffers: FixedBuffer, capacity: int | None = None) -> Callable[[Path], PlannedFile]:
    """Return a function that plans a list of buffers."""

    def make(folder: Path) -> PlannedFile:
        budget = None if capacity is None else {Pool.SCRATCH: Bytes(capacity)}
        return report(qnnmem.plan(Model("l", "csv", buffers=buffers), 0.2, budget=budget))

    return make


def undecided(folder: Path) -> PlannedFile:
    """Return a result with an undecided budget."""
    made = planned({Pool.SCRATCH: Bytes(100)})(folder)
    verdict = replace(made.plan.budgets[0], need=Bytes(200), at_least=Bytes(50))
    return replace(made, plan=replace(made.plan, budgets=(verdict,)))


def fixed(name: str, size: int, lower: int, upper: int, align: int = 1) -> FixedBuffer:
    """Return a buffer of a list."""
    return FixedBuffer(name, Bytes(size), Span(Step(lower), Step(upper)), Align(align))


ALL_POOLS = {pool: Bytes(1) for pool in Pool}
CASES: dict[str, Callable[[Path], PlannedFile]] = {
    "onnx branch": from_file("onnx"),
    "onnx quantized": from_file("onnx", 1),
    "tflite": from_file("tflite"),
    "tflite variable": from_file("tflite", 1),
    "eaix": from_file("eaix"),
    "csv": from_file("csv"),
    "csv with alignment": from_file("csv", 1),
    "csv infeasible": listed(fixed("a", 8, 0, 2), fixed("b", 8, 1, 3), capacity=15),
    "csv feasible": listed(fixed("a", 8, 0, 2), fixed("b", 8, -5, 3), capacity=16),
    "csv of nothing": listed(),
    "csv of no bytes": listed(fixed("a", 0, 0, 1)),
    "budgets that hold": planned({Pool.SCRATCH: Bytes(1 << 20)}),
    "budgets that break": planned(ALL_POOLS, io=Io.OUTSIDE, states=(("h_in", "h_out"),)),
    "budget undecided": undecided,
    "states": planned(states=(("h_in", "h_out"),)),
    "io outside": planned(io=Io.OUTSIDE),
    "reordered": planned(reorder=True),
    "8 bits": planned(bits=8, align=Align(128)),
    "in place": planned(inplace=True),
    "model of nothing": lambda folder: report(qnnmem.plan(Model("empty", "onnx"))),
}


def problems(values: Any) -> list[str]:
    """Return the schema's complaints about a document."""
    validator = jsonschema.Draft202012Validator(load_schema(SCHEMA))
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(values)]


def scratch_plan(values: dict[str, Any], pool: str) -> Plan:
    """Return a plan built only from the JSON."""
    rows = [row for row in values["buffers"] if row["pool"] == pool]
    buffers = tuple(
        Buffer(
            row["name"],
            Bytes(row["size_bytes"]),
            Span(Step(row["lower"]), Step(row["upper"])),
            Align(values["align_bytes"]),
        )
        for row in rows
    )
    bound = values["lower_bound_bytes"] if pool == "scratch" else 0
    offsets = tuple(Offset(row["offset_bytes"]) for row in rows)
    return Plan(Problem(buffers), offsets, Bytes(bound))


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_result_satisfies_the_schema(case: str, tmp_path: Path) -> None:
    """Results of every reader and option follow the shipped schema."""
    text = encode(CASES[case](tmp_path).result)
    assert problems(json.loads(text)) == []


@pytest.mark.parametrize("case", CASES)
def test_offsets_in_the_json_are_a_plan(case: str, tmp_path: Path) -> None:
    """A plan rebuilt from the JSON passes the verifier with the stated sizes, in every pool."""
    values = json.loads(encode(CASES[case](tmp_path).result))
    for pool in ("scratch", "persistent", "io"):
        plan = scratch_plan(values, pool)
        assert verify(plan) is None
        assert plan.peak == values[f"{pool}_bytes"]
    assert values["optimal"] == (values["scratch_bytes"] == values["lower_bound_bytes"])


@given(
    st.lists(
        st.tuples(
            st.text(max_size=8), st.integers(0, 1 << 40), st.integers(-9, 9), st.integers(1, 9)
        ),
        max_size=8,
        unique_by=lambda row: row[0],
    )
)
@settings(max_examples=few(40))
def test_any_list_of_buffers_survives_the_round_trip(rows: list[tuple[str, int, int, int]]) -> None:
    """The JSON of any buffer list follows the schema and holds the same buffers."""
    buffers = tuple(fixed(name, size, low, low + length) for name, size, low, length in rows)
    values = json.loads(encode(listed(*buffers)(Path()).result))
    assert problems(values) == []
    plan = scratch_plan(values, "scratch")
    assert verify(plan) is None
    assert [(b.name, b.size, b.live) for b in plan.problem.buffers] == [
        (b.name, b.size, b.live) for b in buffers
    ]


def test_the_schema_is_a_schema() -> None:
    """The schema is valid JSON Schema 2020-12."""
    jsonschema.Draft202012Validator.check_schema(load_schema(SCHEMA))


def test_the_schema_names_the_format_that_is_written() -> None:
    """The schema and the renderer use the same format name and version."""
    assert load_schema(SCHEMA)["properties"]["schema"]["const"] == SCHEMA


def test_promised_keys_are_required() -> None:
    """The schema requires every documented key."""
    assert set(load_schema(SCHEMA)["required"]) >= WANTED


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all object schemas inside a schema."""
    yield from (part for part in (schema, *schema["$defs"].values()) if "properties" in part)


def test_every_object_of_the_schema_is_closed() -> None:
    """No object of the schema allows undescribed keys."""
    found = list(objects(load_schema(SCHEMA)))
    assert len(found) == 8
    assert all(item["additionalProperties"] is False for item in found)


def test_every_key_is_described_in_a_sentence() -> None:
    """Each key of the schema has a description that ends in a full stop."""
    for item in objects(load_schema(SCHEMA)):
        for key, inner in item["properties"].items():
            assert inner["description"].endswith("."), key


def test_every_size_names_its_unit() -> None:
    """Each key that ends in `bytes` is a non-negative integer, and its description says bytes."""
    for item in objects(load_schema(SCHEMA)):
        for key, inner in item["properties"].items():
            if key.endswith("bytes") and inner.get("type") == "integer":
                assert "bytes" in inner["description"].lower(), key
                assert inner["minimum"] >= 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"more": 1}, "'more' was unexpected"),
        ({"scratch_bytes": 1.5}, "is not of type 'integer'"),
        ({"scratch_bytes": -1}, "is less than the minimum"),
        ({"schema": "qnnmem.plan/2"}, "was expected"),
        ({"bits": 4}, "is not valid under any of the given schemas"),
        ({"buffers": [{"name": "a"}]}, "is a required property"),
    ],
)
def test_the_schema_refuses_what_is_not_a_plan(
    change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """The schema refuses unknown keys, fractional bytes, other versions and incomplete buffers."""
    values = json.loads(encode(CASES["io outside"](tmp_path).result))
    assert any(complaint in problem for problem in problems({**values, **change}))


def test_a_plan_without_a_key_is_refused(tmp_path: Path) -> None:
    """Every key is required; a plan without one is refused."""
    values = json.loads(encode(CASES["io outside"](tmp_path).result))
    for key in values.keys() - {"proof"}:  # results of 0.1.0 do not have `proof`
        short = {k: v for k, v in values.items() if k != key}
        assert problems(short) == [f"$: {key!r} is a required property"]


def test_the_json_is_plain_ascii(tmp_path: Path) -> None:
    """The JSON is ASCII: control characters and lone surrogates of names are escaped."""
    name = "\x1b[31m\u202e\ud800é<script>"
    text = encode(listed(fixed(name, 4, 0, 1))(tmp_path).result)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["buffers"][0]["name"] == name


def test_limits_carry_their_source(tmp_path: Path) -> None:
    """The origin of the TCM limit is `documented`, that of the scratch size `computed`."""
    origins = json.loads(encode(CASES["io outside"](tmp_path).result))["origins"]
    assert origins["scratch_bytes"] == "computed"
    assert origins["tcm.limit_bytes"].startswith("documented: ")


def test_the_peak_names_op_and_tensors(tmp_path: Path) -> None:
    """The peak lists its op and the live tensors, whose sizes add up to the peak."""
    peak = json.loads(encode(CASES["io outside"](tmp_path).result))["peak"]
    assert peak["op"].startswith(("left", "right", "join"))
    assert sum(row["bytes"] for row in peak["live"]) == peak["bytes"]
