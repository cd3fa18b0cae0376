"""A plan as a trace: counters over steps, in the JSON format of Chrome's trace viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from command_line import exit_code, run

EXAMPLES = Path(__file__).parents[2] / "examples"
# The keys that the format requires of the phases used: metadata, counters and instants.
EVENT = {
    "type": "object",
    "required": ["ph", "name", "pid"],
    "properties": {"ph": {"enum": ["M", "C", "i"]}, "name": {"type": "string"}},
    "allOf": [
        {
            "if": {"properties": {"ph": {"const": "M"}}},
            "then": {"properties": {"name": {"enum": ["process_name", "thread_name"]}}},
            "else": {"required": ["ts"], "properties": {"ts": {"type": "number", "minimum": 0}}},
        },
        {
            "if": {"properties": {"ph": {"const": "C"}}},
            "then": {
                "properties": {
                    "args": {"minProperties": 1, "additionalProperties": {"type": "number"}}
                }
            },
        },
        {
            "if": {"properties": {"ph": {"const": "i"}}},
            "then": {"required": ["s", "tid"], "properties": {"s": {"enum": ["g", "p", "t"]}}},
        },
    ],
}
TRACE = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {"type": "array", "items": EVENT},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
    },
}


def trace(file: Path, *more: str) -> dict[str, Any]:
    """Return the trace of a plan, validated against the format."""
    done = run("plan", file, "--format", "perfetto", *more)
    assert exit_code(done) == 0
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(found, TRACE)
    return found


def counter(found: dict[str, Any], name: str) -> dict[int, int]:
    """Return a counter's values by time."""
    events = (one for one in found["traceEvents"] if one["name"] == name)
    return {one["ts"]: one["args"]["bytes"] for one in events}


@pytest.mark.parametrize("file", ["tiny.eaix", "keyword_spotting.csv"])
def test_counters_say_what_is_alive(file: str) -> None:
    """The highest counter value is the plan's peak, the last is 0, and no duration is claimed."""
    found = trace(EXAMPLES / file)
    plan = json.loads(run("plan", EXAMPLES / file, "--json").stdout)
    alive = counter(found, "scratch alive")
    assert max(alive.values()) == plan["peak"]["bytes"]
    assert alive[max(alive)] == 0
    assert set(counter(found, "scratch size").values()) == {plan["scratch_bytes"]}
    assert "1 us is one step" in found["otherData"]["time"]
    assert "dur" not in json.dumps(found)


def test_ops_are_marks_in_order(tmp_path: Path) -> None:
    """Each op is a mark at its step; a .json file with --format perfetto gets no note."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["h"], name='"first"\n'),
        onnx.helper.make_node("Tanh", ["h"], ["y"], name="second"),
    ]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), tmp_path / "m")
    done = run("plan", tmp_path / "m", "--format", "perfetto", "-o", tmp_path / "trace.json")
    assert "suffix" not in done.stderr
    found = json.loads(Path(tmp_path, "trace.json").read_text("utf-8"))
    jsonschema.validate(found, TRACE)
    marks = [one for one in found["traceEvents"] if one["ph"] == "i" and one["s"] == "t"]
    assert [one["args"] for one in marks] == [
        {"step": 0, "type": "Relu"},
        {"step": 1, "type": "Tanh"},
    ]
    assert [one["ts"] for one in marks] == [1, 2]  # inputs are written one step earlier
