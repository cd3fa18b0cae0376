"""The report page in a real browser: reading, keys, mouse, search and window sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_line import exit_code, run

from qnnmem.report.page.document import render_page
from qnnmem.report.page.sections import section_of

if TYPE_CHECKING:
    from browser import OpensPages
    from playwright.sync_api import Page

NAME = "<b>conv</b><script>alert(1)</script>"
PAPER = "getComputedStyle(document.body).backgroundColor"
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


def plan(names: tuple[str, ...] = ("x", NAME, "y")) -> dict[str, Any]:
    """Return a plan with tensors stacked in order, the second one at the peak."""
    size, top = 1024, 1024 * len(names)
    return {
        **{"schema": "qnnmem.plan/1", "input": "m.onnx", "scratch_bytes": top, "tool": "qnnmem"},
        **{"persistent_bytes": 0, "io_bytes": 0, "constant_bytes": 64, "lower_bound_bytes": top},
        **{"optimal": True, "align_bytes": 64, "io": "inside", "ops": ["first", "second"]},
        "peak": {"step": 1, "op": "second", "bytes": top, "live": [{"name": names[1], "bytes": 9}]},
        "buffers": [
            {
                **{"name": name, "pool": "scratch", "size_bytes": size, "lower": at - 1},
                **{"upper": at + 2, "offset_bytes": size * at, "aliases": [f"{name}/view"]},
            }
            for at, name in enumerate(names)
        ],
    }


def written(folder: Path, *results: dict[str, Any]) -> Path:
    """Return a page of these results."""
    page = folder / "page.html"
    sections = [section_of(result, "it") for result in results]
    page.write_text(render_page(sections, "it"), "utf-8")
    return page


def told(page: Page) -> str:
    """Return the map's description of the selected box."""
    said: str = page.inner_text(".told")
    return said


def test_peak_and_boxes_are_read_from_the_map(tmp_path: Path, open_page: OpensPages) -> None:
    """The button of the peak and a click on its box show the same description."""
    page = open_page(written(tmp_path, plan()))
    assert page.evaluate(PAPER) == "rgb(255, 255, 255)"
    assert page.inner_text("figure p") == "What sets the peak, 3.00 KiB at step 1 (second):"
    page.click("[data-box]")
    card = told(page)
    assert card.startswith(f"{NAME}: 1,024 bytes of scratch at 1,024; steps 0 to 2; made by first")
    assert card.endswith(f"shares memory with {NAME}/view; alive at the peak")
    page.keyboard.press("Escape")
    spot = page.evaluate(
        "() => { const m = qnnmemMaps[0], v = m.view, b = m.canvas.getBoundingClientRect();"
        " return [b.x + (1.5 - v.x0) / (v.x1 - v.x0) * b.width,"
        " b.y + (v.y1 - 1536) / (v.y1 - v.y0) * b.height]; }"
    )
    page.mouse.click(*spot)
    assert told(page) == card
    assert page.evaluate("new Set(qnnmemMaps[0].pen.getImageData(0, 200, 900, 1).data).size") > 2
    assert page.title() == "it"
    assert page.locator("b").count() == 0


def test_keys_alone_are_enough(tmp_path: Path, open_page: OpensPages) -> None:
    """The page works by keyboard alone: search, map, next and previous box, zoom and pan."""
    page = open_page(written(tmp_path, plan()))
    while page.evaluate("document.activeElement.tagName") != "INPUT":
        page.keyboard.press("Tab")
    page.keyboard.type("CONV")
    assert told(page).startswith("1 of 3 tensors")
    page.keyboard.press("Enter")
    assert told(page).startswith(NAME)
    seen: list[str] = []
    while "CANVAS" not in seen and len(seen) < 20:  # past all tools
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.tagName"))
    assert "BUTTON" in seen
    assert seen[-1] == "CANVAS"
    page.keyboard.press("n")
    assert told(page).startswith("y: 1,024 bytes of scratch at 2,048; steps 1 to 3")
    page.keyboard.press("p")
    assert told(page).startswith(NAME)
    page.keyboard.press("Escape")
    assert told(page) == page.get_attribute(".told", "data-hint")
    wide = "qnnmemMaps[0].view.x1 - qnnmemMaps[0].view.x0"
    whole = page.evaluate(wide)
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(wide) < whole
    page.keyboard.press("0")
    assert page.evaluate(wide) == whole
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.focus("canvas")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"


def test_a_narrow_window_in_the_dark(tmp_path: Path, open_page: OpensPages) -> None:
    """A narrow, dark window has no horizontal scrolling and dark colours; copying works by key."""
    examples = Path(__file__).parents[2] / "examples"
    files = ("tiny.eaix", "small_htp.bin", "small_lpai.bin", "graph_limit.log")
    target = tmp_path / "page.html"
    assert exit_code(run("report", *(examples / name for name in files), "-o", target)) == 0
    page = open_page(target, width=380, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(PAPER) == "rgb(13, 17, 23)"
    page.focus("[data-copy]")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "document.querySelector('[data-copy]').textContent === 'copied'"
        " || getSelection().toString().startsWith('qnnmem ')"
    )


def test_maps_before_and_after_stand_beside_each_other(
    tmp_path: Path, open_page: OpensPages
) -> None:
    """The maps before and after stand side by side on one scale."""
    after = {**plan(("x", "y")), "scratch_bytes": 2048}
    tried = {
        "remedy": "none",
        "change": "as it is",
        "bytes": 3072,
        "fits": False,
        "identical": True,
    }
    fix = {
        **{"schema": "qnnmem.fix/1", "input": "m.onnx", "fits": True, "best": 1},
        **{"before_bytes": 3072, "after_bytes": 2048, "limit_bytes": 2500},
        "tried": [tried, {**tried, "remedy": "plan", "change": "in place", "bytes": 2048}],
        "plans": {"before": plan(), "after": after, "after_is": "whole model"},
    }
    page = open_page(written(tmp_path, fix))
    first, second = (one.bounding_box() for one in page.locator("canvas").all())
    assert first is not None
    assert second is not None
    assert first["y"] == second["y"]
    assert second["x"] > first["x"] + first["width"]
    assert len({*page.evaluate("qnnmemMaps.map((map) => map.view.y1)")}) == 1


def test_ten_thousand_boxes_are_drawn_once_and_moved(tmp_path: Path, open_page: OpensPages) -> None:
    """Panning a map of ten thousand boxes redraws none of them."""
    page = open_page(written(tmp_path, plan(tuple(f"tensor/{at}" for at in range(10_000)))))
    moved = page.evaluate(
        """async () => {
          const map = qnnmemMaps[0], frame = () => new Promise((go) => requestAnimationFrame(go));
          await frame(); await frame();
          let drawn = 0; const draw = map.drawBoxes.bind(map);
          map.drawBoxes = (...all) => { drawn += 1; draw(...all); };
          const painted = map.painted;
          for (let at = 0; at < 5; at++) { map.pan(0.02, 0); await frame(); }
          const { width, height } = map.canvas;
          const row = map.pen.getImageData(0, Math.round(height / 2), width, 1).data;
          const inked = row.some((one) => one);
          return { boxes: map.boxes.length, drawn, painted: map.painted - painted, inked };
        }"""
    )
    assert moved["boxes"] == 10_000
    assert moved["drawn"] == 0
    assert moved["painted"] >= 4
    assert moved["inked"]


def test_markup_in_names_and_logs_stays_text(tmp_path: Path, open_page: OpensPages) -> None:
    """Markup in tensor names and log lines stays text."""
    log = (Path(__file__).parents[2] / "examples" / "graph_limit.log").read_text("utf-8")
    Path(tmp_path, "it.log").write_text(log.replace("ERROR", f"ERROR {HOSTILE}"), "utf-8")
    Path(tmp_path, "it.json").write_text(json.dumps(plan(("x", HOSTILE, "y"))), "utf-8")
    target = tmp_path / "page.html"
    done = run("report", tmp_path / "it.json", tmp_path / "it.log", "-o", target, "--title", "it")
    assert exit_code(done) == 0
    page = open_page(target)
    page.click("[data-box]")
    assert HOSTILE in told(page)
    assert HOSTILE in page.inner_text(".evidence")
    assert page.title() == "it"
    assert page.locator("img").count() == 0


def test_without_scripts_the_numbers_are_there(tmp_path: Path, open_page: OpensPages) -> None:
    """Without JavaScript, the page shows tables, bars and the curve of live bytes."""
    page = open_page(written(tmp_path, plan()), scripts=False)
    page.click("summary >> nth=0")
    assert page.locator("table:visible").first.inner_text().count("1,024") >= 3
    assert page.locator(".bar rect").count() >= 2
    assert page.locator(".plot .line").count() == 1
