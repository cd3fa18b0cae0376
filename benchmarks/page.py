"""Measure an HTML report of 10,000 tensors in a browser and write the results page.

    python benchmarks/page.py            needs Chromium or Chrome, and playwright
    python benchmarks/page.py --quick    writes no page

The report shows a real plan for a generated list of buffers. The browser itself counts frames while
the map is moved on every frame, at four zoom levels.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "page.md"
sys.path.insert(0, str(ROOT / "tests"))

BUFFERS = 10_000
ZOOMS = {"everything": 1.0, "half": 0.5, "a tenth": 0.1, "a fiftieth": 0.02}
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"
MOVE = """async (zoom) => {
  const map = qnnmemMaps[0], frame = () => new Promise((go) => requestAnimationFrame(go));
  map.reset(); map.zoom(zoom); await frame(); await frame();
  const begun = performance.now(), times = []; let last = begun;
  for (let at = 0; at < 120; at++) {
    map.pan(0.02 * Math.cos(at / 15), 0.02 * Math.sin(at / 15)); await frame();
    const now = performance.now(); times.push(now - last); last = now;
  }
  return { rate: 1000 * times.length / (last - begun), worst: Math.max(...times) };
}"""


def main() -> int:
    """Write a page, open it and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="nothing written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(page(measure(made(Path(folder)))))
    print(text)
    if not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
    return 0


def made(folder: Path) -> Path:
    """Return the path of a report that the command line wrote for a plan with many buffers."""
    draw = random.Random(0)  # noqa: S311 - sizes, not secrets
    rows = ["id,lower,upper,size"]
    for at in range(BUFFERS):
        life, size = draw.choice((1, 2, 2, 3, 5, 40)), 64 * draw.randint(1, 4000)
        rows.append(f"model/block{at // 40}/layer{at % 40}/output_{at},{at},{at + life},{size}")
    list_, target = folder / "buffers.csv", folder / "page.html"
    list_.write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "qnnmem", "report", str(list_), "-o", str(target)]
    subprocess.run(words, check=True)  # noqa: S603 - a program of this project
    return target


def measure(target: Path) -> dict[str, Any]:
    """Return the browser's measurements of a report."""
    from browser import FLAGS, found_browser
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found_browser(), args=list(FLAGS))
        shown = browser.new_page(viewport={"width": 1100, "height": 900})
        shown.goto(target.as_uri())
        shown.wait_for_function(f"() => {_PAINT}")
        paint = f"{_PAINT}.startTime"
        found = {
            "bytes": target.stat().st_size,
            "paint": shown.evaluate(paint),
            "version": browser.version,
            "moves": {words: shown.evaluate(MOVE, zoom) for words, zoom in ZOOMS.items()},
        }
        browser.close()
    return found


def page(found: dict[str, Any]) -> list[str]:
    """Return the results page in Markdown."""
    from qnnmem.version import __version__

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    lines = [
        "# Benchmarks of the page",
        "",
        f"Written by `python benchmarks/page.py`: the HTML report of a plan of {BUFFERS:,} "
        "buffers, opened from disk in Chromium without a graphics card, in a window of 1100 "
        "by 900 pixels. The map is moved on every frame; the browser counts the frames, at "
        "most 60 a second.",
        "",
        f"Measured with qnnmem {__version__}, Chromium {found['version']}, "
        f"{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f}.",
        "",
        f"- File: {found['bytes']:,} bytes.",
        f"- First paint after {found['paint']:.0f} ms.",
        "",
        "| part of the map in the window | frames a second | longest frame, ms |",
        "|---|--:|--:|",
    ]
    for words, move in found["moves"].items():
        lines.append(f"| {words} | {move['rate']:.0f} | {move['worst']:.0f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
