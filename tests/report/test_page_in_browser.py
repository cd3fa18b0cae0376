"""The page in a real browser: drawn, moved by keys and mouse, searched, in both colour schemes.

A script of the test is added to a copy of the page; what it finds ends up in the document that the
browser prints.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from qnnmem.report.page.document import render_page
from qnnmem.report.page.sections import section_of

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: install it to test the page")
NAME = "<b>conv</b>"
PROBE = """
(async () => {
  const map = window.qnnmemMaps[0], canvas = map.canvas, told = map.told, found = {};
  const frame = () => new Promise((go) => setTimeout(go, 60));
  const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name }));
  await frame();
  const dot = (x, y) => [...map.pen.getImageData(x, y, 1, 1).data];
  found.drawn = new Set([...Array(40).keys()].map((i) => dot(20 * i + 5, 200).join())).size;
  key("n"); found.first = told.textContent;
  key("n"); found.second = told.textContent;
  key("Escape"); found.none = told.textContent === told.dataset.hint;
  const before = map.view.x1 - map.view.x0;
  key("+"); found.zoomed = map.view.x1 - map.view.x0 < before;
  key("ArrowRight"); key("0"); found.reset = map.view.x1 - map.view.x0 === before;
  map.search.value = "CONV"; map.search.dispatchEvent(new Event("input"));
  found.matches = told.textContent;
  document.querySelector("[data-box]").click(); found.peak = told.textContent;
  found.scheme = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  found.bold = document.querySelectorAll("b").length;
  const out = document.createElement("pre");
  out.id = "found"; out.textContent = JSON.stringify(found); document.body.append(out);
})();
"""


def plan() -> dict[str, Any]:
    """Three tensors, one with markup for a name."""
    names = ("x", NAME, "y")
    return {
        **{"schema": "qnnmem.plan/1", "input": "m.onnx", "scratch_bytes": 3072},
        **{"persistent_bytes": 0, "io_bytes": 0, "constant_bytes": 64, "lower_bound_bytes": 3072},
        **{"optimal": True, "align_bytes": 64, "io": "inside", "ops": ["first", "second"]},
        "peak": {"step": 1, "op": "second", "bytes": 1, "live": [{"name": NAME, "bytes": 1024}]},
        "buffers": [
            {
                **{"name": name, "pool": "scratch", "size_bytes": 1024, "lower": at - 1},
                **{"upper": at + 2, "offset_bytes": 1024 * at},
            }
            for at, name in enumerate(names)
        ],
    }


def looked_at(folder: Path, *flags: str) -> dict[str, Any]:
    """What the probe found in the page."""
    page = render_page([section_of(plan(), "it")], "it")
    page = re.sub(r"<meta http-equiv[^>]*>", "", page)  # which admits no script but the page's own
    Path(folder, "page.html").write_text(
        page.replace("</body>", f"<script>{PROBE}</script></body>")
    )
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    where = [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), *quiet, *where, *flags, f"file://{folder / 'page.html'}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    values: dict[str, Any] = json.loads(unescape(found[1]))
    return values


def test_the_map_can_be_used_without_a_mouse(tmp_path: Path) -> None:
    """Boxes are drawn, keys go from one to the next, search and peak find them."""
    found = looked_at(tmp_path, "--window-size=1000,900")
    assert found["drawn"] > 1
    assert found["first"].startswith("x: 1,024 bytes of scratch at 0; steps -1 to 1")
    assert found["second"].startswith(f"{NAME}: 1,024 bytes of scratch at 1,024; steps 0 to 2")
    assert "made by first" in found["second"]
    assert (found["none"], found["zoomed"], found["reset"]) == (True, True, True)
    assert found["matches"].startswith("1 of 3 tensors")
    assert found["peak"].endswith("alive at the peak")
    assert found["bold"] == 0
    assert found["scheme"] == "#ffffff"


def test_a_narrow_window_in_the_dark(tmp_path: Path) -> None:
    """Colours follow the reader's setting, and nothing sticks out at the side."""
    flags = ("--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    found = looked_at(tmp_path, *flags)
    assert found["scheme"] == "#0d1117"
    assert found["wide"]
