"""A fix as JSON: the places of all tensors before and after."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from fix_samples import planned_fix

from qnnmem.fix.fixed_model import fixed_model
from qnnmem.report.page.document import render_page
from qnnmem.report.page.sections import section_of
from qnnmem.results.schema import encode, load_schema


def test_both_plans_are_in_it(tmp_path: Path) -> None:
    """The JSON has both plans, and the page draws both maps."""
    values = json.loads(encode(fixed_model(planned_fix(tmp_path))))
    jsonschema.validate(values, load_schema("qnnmem.fix/1"))
    before, after = values["plans"]["before"], values["plans"]["after"]
    assert before["scratch_bytes"] == values["before_bytes"] == 1024
    assert after["scratch_bytes"] == values["after_bytes"] == 768
    assert {one["name"] for one in before["buffers"]} == {"x", "h", "h2", "y"}
    page = render_page([section_of(values, "it")], "it")
    assert page.count("<canvas") == 2
    assert "After (in place" in page
