"""A field of a result is declared once and shown wherever the result is shown."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest
import reference

from qnnmem.report.page.sections import section_of
from qnnmem.results import plan
from qnnmem.results.read import read_result, result_types
from qnnmem.results.result import Count, describe
from qnnmem.results.schema import encode, schema_of
from qnnmem.wire import ready
from qnnmem.workbench.show import fragment


class WithNewField(plan.PlanResult, frozen=True, kw_only=True, tag="qnnmem.plan/1"):
    """A plan plus one new number."""

    rounds: Annotated[Count, describe("Rounds of the <search>.")] = 0
    unbounded_bytes: int = 0


VALUES: dict[str, Any] = {
    **{"schema": "qnnmem.plan/1", "tool": "qnnmem", "input": "a.onnx", "scratch_bytes": 4096},
    **{"persistent_bytes": 0, "io_bytes": 0, "constant_bytes": 64, "lower_bound_bytes": 4096},
    **{"optimal": True, "align_bytes": 64, "io": "inside", "buffers": []},
}
ROW = '<code class="result-key">rounds</code></td><td>{}</td><td>Rounds of the &lt;search&gt;.</td>'


@pytest.fixture(autouse=True)
def _new_type(monkeypatch: pytest.MonkeyPatch) -> None:
    # Types that contain plans look up PlanResult on their first use and keep it for good.
    for kind in result_types():
        ready(kind)
    monkeypatch.setattr(plan, "PlanResult", WithNewField)


@pytest.mark.slow
def test_a_new_field_is_in_json_schema_and_reference() -> None:
    """A new field appears in JSON, schema and reference; older results without it are readable."""
    assert '"rounds": 0' in encode(read_result(VALUES, "it"))
    schema = schema_of(WithNewField)
    assert schema["properties"]["rounds"]["description"] == "Rounds of the <search>."
    assert "rounds" in schema["required"]
    written = dict(reference.stale())[reference.SCHEMAS / "plan-1.json"]
    assert json.loads(written)["properties"]["rounds"] == schema["properties"]["rounds"]
    assert "`plan-1`" in reference.PARTS["schemas"]()


def test_a_new_field_is_on_the_page_and_in_the_workbench() -> None:
    """A new field appears on the page and in the workbench with its description."""
    values = {**VALUES, "rounds": 1234}
    assert ROW.format("1,234") in section_of(values, "it").body
    assert ROW.format("1,234") in fragment(values, "it")
    assert ROW.format("0") in section_of(VALUES, "it").body


def test_the_page_lists_every_scalar_and_no_list() -> None:
    """The page lists every scalar: sizes with a rounded form, literals as in JSON, text escaped."""
    body = section_of({**VALUES, "input": "<b>.onnx", "seconds": 0.25}, "it").body
    folded = body.split("<summary>All values</summary>")[1]
    rows = dict(re.findall(r'<td><code class="result-key">(\w+)</code></td><td>(.*?)</td>', folded))
    assert rows["scratch_bytes"].startswith("4,096 <span")
    assert (rows["optimal"], rows["seconds"], rows["bits"]) == ("true", "0.25", "null")
    assert (rows["input"], rows["io"]) == ("&lt;b&gt;.onnx", "inside")
    assert not {"buffers", "ops", "origins"} & set(rows)


def test_a_number_of_any_length_is_shown() -> None:
    """A number of any length is shown in shortened form."""
    body = section_of({**VALUES, "unbounded_bytes": 10**4000}, "it").body
    assert re.search(r"unbounded_bytes</code></td><td[^>]*>10,000,000,", body)
    assert len(body) < 20_000
