"""Reference pictures of every type of page; `make pictures` rewrites them.

Fonts differ between machines, so pictures are compared by structure. Each is cut into a coarse
grid; most cells must have the reference's colour and about as much ink. A missing map, a wrong
colour scheme or an empty page is found; another font is not.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Page

HERE = Path(__file__).parent
FOLDER = HERE / "report" / "pictures"
RESULTS = HERE / "json_0_1_0"
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
LOOKS = (("wide", "light"), ("wide", "dark"), ("phone", "dark"), ("phone", "light"))
SHRUNK = 4  # times smaller than the screen
CELL = 12  # pixels of a shrunk picture
FAR = 44  # of 255: the limit for an equal colour
MOST_FAR = 0.14  # share of the cells
INK = 2.5  # the largest allowed factor
NAMES = {
    "plan": "plan-eaix",
    "plan-over": "plan-budget-too-small",
    "bill": "footprint-two-graphs",
    "fit": "fit-two-socs",
    "sweep": "sweep-table",
    "place": "place-better-order",
    "qmem": "qmem-real",
    "doctor": "doctor-incident",
    "lpai": "inspect-lpai-two-graphs",
    "lint": "lint-errors",
}


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of a page for each type of result."""
    from qnnmem.report.page.document import PageSection, render_page
    from qnnmem.report.page.markup import lines
    from qnnmem.report.page.sections import section_of
    from qnnmem.workbench.show import comparison

    for name, file in NAMES.items():
        section = section_of(recorded(file), f"{name}.bin")
        yield name, written(folder / f"{name}.html", render_page([section], name))
    before = recorded("plan-csv")
    after = {**before, "scratch_bytes": before["scratch_bytes"] // 2}
    body = lines([comparison(before, after, ("before.csv", "after.csv"))])
    page = render_page([PageSection("Before and after", body)], "compare")
    yield "compare", written(folder / "compare.html", page)
    check = section_of(checked(), "check.json")
    yield "check", written(folder / "check.html", render_page([check], "check"))


def recorded(name: str) -> Any:
    """Return a result of version 0.1.0."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def written(target: Path, page: str) -> Path:
    """Write a page to a file and return the path."""
    target.write_text(page, "utf-8")
    return target


def checked() -> dict[str, Any]:
    """Return a check of two models for two targets, one over its budget, with a history."""
    needs = {("a.onnx", "LPAI"): 90, ("a.onnx", "SM8650"): 40, ("b.onnx", "LPAI"): 130}
    models = [
        {
            **{"name": f"{file} ({target})", "file": file, "target": target, "fits": need < 101},
            **{"exit_code": int(need > 100), "answer": "fits" if need < 101 else "does not fit"},
            **{"reasons": [f"{file} is over its budget"] * (need > 100)},
            "pools": {"scratch": need << 20},
            "checks": [
                {
                    **{"pool": "scratch", "need_bytes": need << 20, "have_bytes": 100 << 20},
                    **{"fits": need < 101, "over_bytes": max(0, need - 100) << 20},
                }
            ],
        }
        for (file, target), need in needs.items()
    ]
    history = [
        {
            **{"commit": f"{at}" * 40, "time": f"2026-01-0{at}T00:00:00Z"},
            "models": {"b.onnx (LPAI)": {"scratch": size << 20}},
        }
        for at, size in ((1, 60), (2, 80), (3, 70))
    ]
    counts = {"models": 3, "good": 2, "broken": 1, "not_checked": 0, "cannot_tell": 0}
    baseline: dict[str, Any] = {
        "file": None,
        "found": False,
        "updated": False,
        "new": [],
        "gone": [],
    }
    return {
        **{"schema": "qnnmem.check/1", "tool": "qnnmem", "exit_code": 1, "counts": counts},
        **{"verdict": "does not fit: 1 of 3 (b.onnx)", "models": models, "baseline": baseline},
        "history": history,
    }


def shots(
    page: Page, name: str, where: Path, looks: Iterable[tuple[str, str]] = LOOKS
) -> Iterator[tuple[str, Image]]:
    """Yield each picture of a page, shrunk, with the name of its reference."""
    for size, scheme in looks:
        width, height = SIZES[size]
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(where.resolve().as_uri())
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        yield f"{name}-{size}-{scheme}.png", shrunk(page.screenshot())


def drawn(page: Page) -> None:
    """Wait until the visible maps are drawn."""
    page.wait_for_function(
        "() => (window.qnnmemMaps || []).every((map) => map.painted || !map.canvas.clientWidth)"
    )


def shrunk(png: bytes) -> Image:
    """Return a screenshot at a quarter of its size, in few colours."""
    from PIL import Image

    whole = Image.open(io.BytesIO(png)).convert("RGB")
    small = whole.resize((whole.width // SHRUNK, whole.height // SHRUNK), Image.Resampling.BOX)
    return small.quantize(32).convert("RGB")


def difference(one: Image, other: Image) -> str:
    """Return the difference of two pictures beyond fonts; empty if there is none."""
    if one.size != other.size:
        return f"size {one.size}, not {other.size}"
    grid = one.width // CELL, one.height // CELL
    cells = [_colours(image.resize(grid, 4)) for image in (one, other)]
    far = sum(
        max(abs(a - b) for a, b in zip(*pair, strict=True)) > FAR
        for pair in zip(*cells, strict=True)
    )
    if far > MOST_FAR * len(cells[0]):
        return f"{far} of {len(cells[0])} cells have another colour"
    first, second = (ink(image) for image in (one, other))
    if not 1 / INK < (first + 1) / (second + 1) < INK:
        return f"{first} pixels are drawn on, not {second}"
    return ""


def _colours(image: Image) -> list[bytes]:
    data = image.tobytes()
    return [data[at : at + 3] for at in range(0, len(data), 3)]


def ink(image: Image) -> int:
    """Return the number of pixels that differ from the most frequent colour, the background."""
    counts = sorted(number for number, _ in image.getcolors(image.width * image.height) or [])
    return sum(counts[:-1])


def main() -> int:
    """Write all reference pictures."""
    from browser import FLAGS, found_browser
    from playwright.sync_api import sync_playwright

    program = found_browser()
    if program is None:
        print("no Chromium or Chrome found: no picture was made")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(FLAGS))
        page = browser.new_page()
        for name, where in pages(Path(folder)):
            for file, image in shots(page, name, where):
                image.quantize(32).save(FOLDER / file, optimize=True)
        browser.close()
    made = list(FOLDER.glob("*.png"))
    print(f"Wrote {len(made)} pictures, {sum(one.stat().st_size for one in made):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
