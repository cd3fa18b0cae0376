"""The workbench in a real browser: upload, view, settings, comparison, keys, dark and narrow."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import OpensPages
from served import Served

from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library

if TYPE_CHECKING:
    from playwright.sync_api import Page

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRATCH = "window.qnnmemMaps?.[0]?.data.scratch"
# Simulates a file dropped on the page.
DROP = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const dragged = new DataTransfer();
  dragged.items.add(new File([bytes], name));
  const how = { dataTransfer: dragged, bubbles: true, cancelable: true };
  document.body.dispatchEvent(new DragEvent("drop", how));
}"""


def drop(page: Page, name: str, content: bytes) -> None:
    """Drop a file on the page."""
    page.evaluate(DROP, [name, base64.b64encode(content).decode()])


def plan_of(name: str, boxes: int, tensor: str = "t") -> bytes:
    """Return the JSON of a plan with this many tensors."""
    buffers: list[dict[str, Any]] = [
        {
            **{"name": f"{tensor}{at}", "pool": "scratch", "size_bytes": 64, "aliases": []},
            **{"lower": at, "upper": at + 3, "offset_bytes": 64 * (at % 3)},
        }
        for at in range(boxes)
    ]
    return json.dumps(
        {
            **{"schema": "qnnmem.plan/1", "tool": "qnnmem", "input": name, "scratch_bytes": 192},
            **{"persistent_bytes": 0, "io_bytes": 0, "constant_bytes": 0, "align_bytes": 64},
            **{"lower_bound_bytes": 192, "optimal": True, "io": "inside", "buffers": buffers},
        }
    ).encode()


def test_a_model_is_dropped_and_its_plan_halves_with_its_bits(
    served: Served, open_page: OpensPages
) -> None:
    """A dropped model is planned with its dimension filled in; 16 bits halve its scratch."""
    page = open_page(served.address)
    drop(page, "small.onnx", (EXAMPLES / "small.onnx").read_bytes())
    page.wait_for_function(f"() => {SCRATCH} === 3072")
    assert page.inner_text("#chosen") == "Batch and dimensions: N=1"
    page.click("#settings")
    assert page.input_value("#set-dims-0") == "1"
    page.locator("#shown .peaks button").first.click()
    assert "alive at the peak" in page.inner_text("#shown .told")
    page.select_option("#set-bits", "16")
    page.wait_for_function(f"() => {SCRATCH} === 1536")
    assert "−50.0 %" in page.inner_text("#told")  # noqa: RUF001 - a minus sign
    assert "--bits 16" in page.inner_text("#command")
    for at in (0, 1):
        page.locator("#history input").nth(at).check()
    page.click("#compare")
    page.wait_for_function("() => window.qnnmemMaps.length === 2")
    assert "not worse" in page.inner_text("#shown")


def test_a_log_is_dropped_and_its_cause_read(served: Served, open_page: OpensPages) -> None:
    """A dropped log shows its cause; markup in its name and lines stays text after a reload."""
    name = "<img src=x onerror=window.caught=1><script>window.caught=1</script>.log"
    text = (EXAMPLES / "graph_limit.log").read_bytes()
    page = open_page(served.address, dark=True)
    drop(page, name, text.replace(b"fa_alloc", b"<script>window.caught=1</script>fa_alloc"))
    page.wait_for_selector("#shown .evidence .decides")
    assert "over the compiler's limit" in page.inner_text("#shown .answer >> nth=0")
    page.reload()
    page.locator("#history .entry", has_text="script").first.click()
    page.wait_for_selector("#shown .evidence")
    assert page.evaluate("window.caught") is None
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


def test_what_changed_since_the_last_time_takes_two_steps(
    served: Served, open_page: OpensPages
) -> None:
    """A new upload can be compared with the earlier result in one click."""
    rows = ["id,lower,upper,size", "a,0,2,640", "b,1,3,640"]
    assert served.drop("daily.csv", "\n".join(rows).encode()).status == 201
    page = open_page(served.address, width=390, height=844)
    page.wait_for_selector("#history .entry")
    assert page.is_hidden("#earlier")
    drop(page, "daily.csv", "\n".join([*rows, "c,1,3,640"]).encode())
    page.wait_for_selector("#earlier")
    page.click("#earlier")
    page.wait_for_function("() => window.qnnmemMaps.length === 2")
    for what in ("#shown .badge.bad", "#shown .bars"):
        box = page.locator(what).first.bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 844 - box["height"], what
    assert "640 bytes more" in page.inner_text("#shown .answer")


def test_a_shape_has_a_field_for_each_dimension(served: Served, open_page: OpensPages) -> None:
    """Each dimension of a shape has a field, and the command holds all of them."""
    page = open_page(served.address)
    drop(page, "axes.onnx", unnamed_dimensions())
    page.wait_for_function(f"() => {SCRATCH} !== undefined")
    page.click("#settings")
    fields = page.locator("#form .size input")
    sizes = [one.input_value() for one in fields.all()]
    assert len(sizes) == 3
    for one in fields.all():
        assert one.evaluate("one => one.scrollWidth <= one.clientWidth")
    before = page.evaluate(SCRATCH)
    fields.nth(1).fill(str(2 * int(sizes[1])))
    page.wait_for_function(f"() => {SCRATCH} > {before}")
    assert f"--shape x={sizes[0]}x{2 * int(sizes[1])}x{sizes[2]}" in page.inner_text("#command")


def unnamed_dimensions() -> bytes:
    """Return a model whose input has two open dimensions without names."""
    import onnx
    from onnx import TensorProto, helper

    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None, None])
        for name in ("x", "y")
    ]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    made: bytes = model.SerializeToString()
    return made


def test_everything_can_be_done_with_keys(served: Served, open_page: OpensPages) -> None:
    """The page works by keyboard alone, from the top to the boxes of a map."""
    assert served.drop("keys.json", plan_of("keys.csv", 5)).status == 201
    page = open_page(served.address)
    page.wait_for_selector("#history .entry")
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        at = "document.activeElement.id || document.activeElement.className"
        seen.append(page.evaluate(at))
        if seen[-1] == "entry":
            break
    assert {"skip", "home", "pick", "find", "entry"} <= set(seen)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector("#shown canvas")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    page.keyboard.press("n")
    assert page.inner_text("#shown .told").startswith("t0: 64 bytes")


def test_ten_thousand_boxes_in_a_narrow_window(served: Served, open_page: OpensPages) -> None:
    """Ten thousand boxes with markup in their names fit a narrow window."""
    served.drop("many.json", plan_of("many.csv", 10_000, "<script>window.caught=1</script>"))
    page = open_page(served.address, width=390, height=800)
    page.locator("#history .entry", has_text="many.json").click()
    page.wait_for_function("() => window.qnnmemMaps?.[0]?.boxes.length === 10000")
    page.wait_for_function("() => window.qnnmemMaps[0].painted > 0")
    page.locator("#shown canvas").focus()
    page.keyboard.press("n")
    assert "<script>" in page.inner_text("#shown .told")
    assert page.evaluate("window.caught") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_refused_is_said_on_the_page(served: Served, open_page: OpensPages) -> None:
    """A budget that the plan exceeds shows the verdict `does not fit`, without an error."""
    page = open_page(served.address)
    drop(page, "few.csv", b"id,lower,upper,size\na,0,2,640\n")
    page.wait_for_function(f"() => {SCRATCH} === 640")
    page.wait_for_selector("#settings")
    page.click("#settings")
    page.fill("#set-budgets", "scratch=128")
    page.wait_for_selector("#shown .badge.bad")
    assert "does not fit" in page.inner_text("#shown")
    assert page.is_hidden("#problem")


def test_a_setting_that_only_counts_beside_another_is_shown_beside_it(
    served: Served, open_page: OpensPages
) -> None:
    """A fix for HTP shows its own settings and needs a SoC before it runs."""
    page = open_page(served.address)
    drop(page, "fixed.onnx", (EXAMPLES / "small.onnx").read_bytes())
    page.wait_for_selector("#shown canvas")
    page.get_by_role("button", name="Fix", exact=True).click()
    assert page.is_hidden("#set-soc")
    assert page.is_visible("#set-bits")
    page.select_option("#set-backend", "htp")
    assert page.is_visible("#set-soc")
    assert page.is_visible("#set-budgets")
    assert page.is_hidden("#set-bits")
    page.get_by_role("button", name="Run fix").click()
    assert page.evaluate("document.activeElement.id") == "set-soc"
    assert page.inner_text("#form .missing") == "Choose the SoC that the model will run on."
    assert page.is_hidden("#running")


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
def test_the_real_library_is_asked_and_stopped_on_the_page(
    served: Served, open_page: OpensPages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real library, the page shows a bill, and a running sweep can be cancelled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # so that no bill is cached
    page = open_page(served.address, width=420, dark=True)
    drop(page, "billed.onnx", (EXAMPLES / "small.onnx").read_bytes())
    page.wait_for_selector("#shown canvas")
    page.get_by_role("button", name="HTP bill").click()
    page.select_option("#set-soc", "SM8650")
    page.get_by_role("button", name="Run bill").press("Enter")
    page.wait_for_function("() => document.querySelector('#doing').innerText.includes('compiling')")
    page.wait_for_selector("#shown .bars", timeout=120_000)
    assert "HTP bill of billed.onnx" in page.inner_text("#shown h2")
    assert "all together\n28.25 KiB computed" in page.inner_text("#shown .bars >> nth=0")
    assert "8.00 MiB measured" in page.inner_text("#shown .bars >> nth=1")  # VTCM is not DDR
    assert page.inner_text("#command") == "qnnmem footprint --dim N=1 --soc SM8650 billed.onnx"
    page.get_by_role("button", name="Sweep").click()
    page.fill("#set-vary", "N=1..64")
    page.get_by_role("button", name="Run sweep").click()
    page.wait_for_function("() => document.querySelector('#doing').innerText.startsWith('1 of 64')")
    page.click("#cancel")
    page.wait_for_selector("#told >> text=Sweep was cancelled")
    assert page.is_hidden("#running")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
