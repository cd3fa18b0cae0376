"""The JSON of a context has the nesting of qnn-context-binary-utility."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from context_writer import example_context as context
from context_writer import example_graph as graph
from context_writer import example_tensor as tensor
from context_writer import old_context

from qnnmem.htp.binary.context import HtpContext, describe_context
from qnnmem.qnn.enums import TensorMemType
from qnnmem.results.schema import encode, load_schema

SCHEMA = "qnnmem.inspect-htp/1"


def as_values(made: HtpContext) -> Any:
    """Return the JSON values of a context."""
    return json.loads(encode(describe_context(made)))


def test_the_paths_that_public_readers_use() -> None:
    """Graph name, both size records and the tensors have the paths of the vendor's tool."""
    info = as_values(context())["info"]["graphs"][0]["info"]
    assert info["graphName"] == "graph"
    assert info["graphBlobInfo"]["info"]["spillFillBufferSize"] == 65_536
    assert info["graphBlobInfo"]["info"]["vtcmSize"] == 8
    assert info["graphBlobInfoV2"]["info"]["constSize"] == 3_000_000
    assert info["graphInputs"][0]["info"]["dimensions"] == [1, 40, 200]
    scale = info["graphInputs"][0]["info"]["quantizeParams"]["scaleOffset"]
    assert scale == {"scale": 0.5, "offset": -128}


def test_the_memory_type_is_shown_for_each_tensor() -> None:
    """The JSON shows for each tensor whether it was prepared for a memory handle."""
    inputs = (tensor("a", 1, mem_type=TensorMemType.MEMHANDLE), tensor("b", 2))
    info = as_values(context(graph(inputs=inputs)))
    shown = [t["info"]["memType"] for t in info["info"]["graphs"][0]["info"]["graphInputs"]]
    assert shown == ["QNN_TENSORMEMTYPE_MEMHANDLE", "QNN_TENSORMEMTYPE_RAW"]
    assert info["qnnmem"]["graphs"][0]["mem_types"] == ["memhandle", "raw"]


def test_files_of_old_sdks_have_no_records() -> None:
    """Fields that an old file does not state are absent from the JSON."""
    info = as_values(old_context())["info"]
    assert "socModel" not in info
    assert "graphBlobInfo" not in info["graphs"][0]["info"]


def test_it_is_json() -> None:
    """The description of a context contains only finite JSON values."""
    info = as_values(context())
    assert json.loads(json.dumps(info, allow_nan=False)) == info


@pytest.mark.parametrize("made", [context(), old_context(), context(graph(const=None))])
def test_it_keeps_to_its_schema(made: HtpContext) -> None:
    """The JSON of a context satisfies the shipped schema, for files of every SDK age."""
    schema = load_schema(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(as_values(made))
    assert as_values(made)["qnnmem"]["schema"] == SCHEMA == schema["title"]
