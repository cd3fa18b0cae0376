"""Charts are correct: readable labels, proportional lengths, one scale."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import exit_code, run
from fetched import TOOL
from page_pictures import checked

from qnnmem.report.page.charts import Bar, bars, curves, limit_bars
from qnnmem.report.page.document import PageSection, render_page
from qnnmem.report.page.markup import lines
from qnnmem.report.page.sections import section_of

if TYPE_CHECKING:
    from browser import OpensPages
    from playwright.sync_api import Page

RESULTS = Path(__file__).parents[1] / "json_0_1_0"
MODELS = (
    *("audio_example1", "alexa", "anomaly_detection", "face_back", "face_front", "hey_jarvis"),
    *("hey_mycroft", "iris_landmark", "keyword_spotting", "tflite_micro_speech"),
    *("visual_wake_words", "basicpitch_tflite"),
)
WINDOWS = ((1440, 900), (390, 844))
# Bounding boxes of the labels of every map and chart, in screen coordinates.
LABELS = """() => {
  const groups = qnnmemMaps.map((map) => {
    const at = map.canvas.getBoundingClientRect();
    return map.labels.map((one) => [one.words, at.x + one.x, one.y, one.width, one.height,
      at.x, 0, at.width, at.height]);
  });
  for (const chart of document.querySelectorAll(".bars, .plot")) {
    groups.push([...chart.querySelectorAll("text")].map((one) => {
      const { x, y, width, height } = one.getBoundingClientRect();
      return [one.textContent, x, y, width, height, 0, y, innerWidth, height];
    }));
  }
  return groups;
}"""
BARS = """() => [...document.querySelectorAll(".bars")].map((group) =>
  [...group.querySelectorAll("rect")].map((one) =>
    [one.querySelector("title").textContent, one.getBoundingClientRect().width]))"""
CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((one) => {
      one /= 255; return one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); };
  const behind = (one) => { for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour; } return "white"; };
  const low = [];
  for (const one of document.querySelectorAll("body *")) {
    const said = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!said || !one.getClientRects().length || one.closest("script, style")) continue;
    const style = getComputedStyle(one);
    const colour = one instanceof SVGElement ? style.fill : style.color;
    const found = ratio(colour, behind(one));
    if (found < 4.5) low.push([one.textContent.slice(0, 30), colour, behind(one), found]);
  }
  for (const map of qnnmemMaps) for (const choice of ["pool", "op", "life", "size"]) {
    map.colourBy(choice);
    for (const kind of map.kinds) {
      const found = ratio(map.colours.ink, kind.paint[0]);
      if (found < 4.5) low.push([`name in a box of ${kind.name}`, ...kind.paint, found]);
    }
  }
  return low;
}"""


def overlapping(groups: list[list[list[Any]]]) -> list[str]:
    """Return the labels that overlap others or leave their picture."""
    wrong = []
    for group in groups:
        for words, x, y, wide, tall, left, top, room, height in group:
            if x < left - 1 or x + wide > left + room + 1 or y < top - 1:
                wrong.append(f"{words!r} is cut at the side")
            elif y + tall > top + height + 1:
                wrong.append(f"{words!r} is cut below")
        for (one, x, y, w, h, *_), (other, x2, y2, w2, h2, *_) in combinations(group, 2):
            if min(x + w, x2 + w2) - max(x, x2) > 1 and min(y + h, y2 + h2) - max(y, y2) > 1:
                wrong.append(f"{one!r} and {other!r} cover each other")
    return wrong


def painted(page: Page) -> Page:
    """Return the page after its maps are drawn."""
    page.wait_for_function("() => qnnmemMaps.every((map) => map.painted > 0)")
    return page


def recorded(name: str) -> Any:
    """Return a stored result of version 0.1.0."""
    return json.loads((RESULTS / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def real_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with plans of real models."""
    folder = tmp_path_factory.mktemp("pictures")
    files = [TOOL.CACHE / f"{name}.tflite" for name in MODELS]
    there = [file for file in files if file.is_file()]
    if not there:
        pytest.skip("the real models are not there: make models fetches them")
    target = folder / "models.html"
    assert exit_code(run("report", *there, "-o", target)) == 0
    return target


@pytest.mark.parametrize(("width", "height"), WINDOWS)
def test_no_label_covers_another_or_is_cut(
    real_models: Path, open_page: OpensPages, width: int, height: int
) -> None:
    """Labels on real models do not overlap or leave the picture, in any window and zoom."""
    page = painted(open_page(real_models, width=width, height=height))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    groups = page.evaluate(LABELS)
    assert sum(map(len, groups)) > 100
    assert overlapping(groups) == []
    for zoom in ("map.zoom(0.3, 200, 200)", "map.zoom(0.2, 150, 250)", "map.pan(0.3, 0.2)"):
        page.evaluate(f"() => {{ for (const map of qnnmemMaps) {{ {zoom}; map.paint(); }} }}")
        assert overlapping(page.evaluate(LABELS)) == []


def test_the_check_of_labels_notices_what_is_wrong() -> None:
    """The label check reports overlapping and cut labels."""
    inside = [0, 0, 100, 100]
    group = [["a", 0, 10, 30, 10, *inside], ["b", 20, 12, 30, 10, *inside]]
    assert overlapping([group]) == ["'a' and 'b' cover each other"]
    assert overlapping([[["c", 90, 10, 30, 10, *inside]]]) == ["'c' is cut at the side"]
    assert overlapping([[["d", 0, 95, 30, 10, *inside]]]) == ["'d' is cut below"]


CLOSE = 4_194_304
HARD = {
    "limits that touch": curves(
        [("", [(at, CLOSE - at) for at in range(40)])],
        "it",
        [("budget", CLOSE), ("lower bound for this order", CLOSE - 1), ("scratch", CLOSE)],
        stepped=True,
    ),
    "a short sweep": curves([("", [(1, 7 << 20), (2, 9 << 20), (3000, 3 << 30)])], "it"),
    "large numbers": curves([("", [(10**9 + at, 3 << 40) for at in range(6)])], "it", unit="call"),
    "counts": curves([("", [(1, 1), (5, 3)])], "it", shown="{:,}".format),
    "bars": bars(
        [Bar("a", [("scratch", 803_072)], 1 << 20), Bar("b", [("constants", 1_688_000)], 1)], "it"
    ),
    "far limit": bars([Bar("a", [("io", 9)], 1 << 40), Bar("b", [("io", 5), ("other", 3)])], "it"),
    "tightest": limit_bars([Bar("a", [("io", 5)], 9), Bar("b", [("io", 5)], 4)], "it"),
}


@pytest.mark.parametrize(("width", "height"), WINDOWS)
def test_hard_charts_have_labels_that_can_be_read(
    tmp_path: Path, open_page: OpensPages, width: int, height: int
) -> None:
    """Labels of difficult charts do not overlap: close limits, close points, long numbers."""
    page = open_page(_hard_page(tmp_path), width=width, height=height)
    groups = page.evaluate(LABELS)
    assert len(groups) == len(HARD)
    assert all(groups)
    assert overlapping(groups) == []


def _hard_page(folder: Path) -> Path:
    target = folder / "hard.html"
    target.write_text(render_page([PageSection("it", lines(HARD.values()))], "it"), "utf-8")
    return target


def test_bars_that_stand_together_are_in_proportion(
    tmp_path: Path, real_models: Path, open_page: OpensPages
) -> None:
    """In every group of bars, lengths are proportional to bytes."""
    names: tuple[str, ...] = (
        "footprint-real",
        "fit-all-socs",
        "place-better-order",
        "inspect-lpai-two-graphs",
    )
    names += ("footprint-two-graphs", "doctor-incident", "plan-budget-too-small")
    found = [section_of(recorded(f"{name}.json"), name) for name in names]
    every = tmp_path / "every.html"
    every.write_text(render_page(found, "it"), "utf-8")
    compared = 0
    for where in (real_models, every, _hard_page(tmp_path)):
        page = open_page(where, width=1440)
        for group in page.evaluate(BARS):
            sizes = [int(said.rsplit(": ")[1].split()[0].replace(",", "")) for said, _ in group]
            largest = max(range(len(group)), key=lambda at: sizes[at], default=None)
            if largest is None or not sizes[largest]:
                continue
            scale = group[largest][1] / sizes[largest]
            assert [wide for _, wide in group] == pytest.approx([s * scale for s in sizes], abs=0.6)
            compared += len(group)
    assert compared > 60


def test_a_limit_stands_where_its_number_is_on_the_axis(
    tmp_path: Path, open_page: OpensPages
) -> None:
    """A limit is drawn at its value on the axis, in bars and in curves."""
    rows = [Bar("a", [("scratch", 3 << 20)], 1 << 20), Bar("b", [("io", 4 << 20)])]
    chart = curves([("", [(0, 1 << 20), (1, 4 << 20)])], "it", [("limit", 2 << 20)])
    target = tmp_path / "it.html"
    body = lines([bars(rows, "it"), chart])
    target.write_text(render_page([PageSection("it", body)], "it"), "utf-8")
    page = open_page(target, width=1200)
    at = page.evaluate(
        """() => { const box = (name) => document.querySelector(name).getBoundingClientRect();
        const [a, b] = document.querySelectorAll("rect"), whole = b.getBoundingClientRect();
        const up = [...document.querySelectorAll(".plot .axis")].map((one) =>
          one.getBoundingClientRect().y);
        return { tick: box(".bar .limit").x - whole.x, over: box(".excess").width,
          need: a.getBoundingClientRect().width, whole: whole.width,
          limit: box(".plot .limit").y, up }; }"""
    )
    assert at["need"] == pytest.approx(at["whole"] * 3 / 4, abs=0.6)
    assert at["tick"] == pytest.approx(at["whole"] / 4, abs=1.5)
    assert at["over"] == pytest.approx(at["whole"] / 2, abs=1.5)
    assert at["limit"] == pytest.approx(at["up"][2], abs=0.6)  # the axis has 0, 1 MiB, 2 MiB ...


@pytest.mark.parametrize("dark", [False, True])
def test_all_words_can_be_read(real_models: Path, open_page: OpensPages, dark: bool) -> None:
    """All text has a contrast of at least 4.5, in light and dark."""
    page = painted(open_page(real_models, dark=dark))
    assert page.evaluate(CONTRAST) == []


def test_what_is_chosen_is_marked_everywhere(real_models: Path, open_page: OpensPages) -> None:
    """A tensor chosen in the table is marked in the map, the curve and the graph."""
    page = painted(open_page(real_models))
    figure = page.locator("figure.map").nth(2)
    figure.locator("summary", has_text="tensors").click()
    row = figure.locator("tr:has([data-box])").nth(1)
    row.locator("button").click()
    name = row.locator("button").inner_text()
    assert figure.locator(".told strong").inner_text() == name
    assert "is-chosen" in (row.get_attribute("class") or "")
    assert figure.locator(".plot .span").count() == 1
    assert figure.locator(".near .tensor").inner_text().startswith(name)
    shape = row.locator("td").last.inner_text()
    assert "x" in shape
    assert figure.locator(".near .tensor").inner_text().endswith(shape)
    figure.locator(".near .column button").first.click()
    assert figure.locator(".told strong").inner_text() != name
    figure.locator(".plot .field").click(position={"x": 300, "y": 60})
    assert " bytes alive in " in figure.locator(".told").inner_text()


def test_neighbours_in_the_graph_are_those_of_the_ops(
    real_models: Path, open_page: OpensPages
) -> None:
    """The graph's neighbour relation is symmetric: readers and writers refer to each other."""
    page = painted(open_page(real_models))
    pairs = page.evaluate(
        """() => qnnmemMaps.map((map) => { let pairs = 0, wrong = 0;
          for (const box of map.boxes) for (const other of map.around(box).to) {
            pairs += 1; if (!map.around(other).from.includes(box)) wrong += 1; }
          return [map.boxes.length, pairs, wrong]; })"""
    )
    for boxes, found, wrong in pairs:
        assert found >= boxes / 2
        assert wrong == 0


def test_colours_follow_the_choice_and_the_legend_dims(
    real_models: Path, open_page: OpensPages
) -> None:
    """Boxes can be coloured by pool, op type, lifetime or size; the legend can dim a kind."""
    page = painted(open_page(real_models))
    figure = page.locator("figure.map").first
    for choice in ("op", "life", "size", "pool"):
        figure.locator("select").select_option(choice)
        kinds = page.evaluate("qnnmemMaps[0].kinds.map((kind) => [kind.name, kind.boxes.length])")
        assert sum(number for _, number in kinds) == page.evaluate("qnnmemMaps[0].boxes.length")
        assert figure.locator(".legend button").all_inner_texts() == [name for name, _ in kinds]
    button = figure.locator(".legend button").first
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate("qnnmemMaps[0].off.size") == 1


def test_search_moves_the_map_to_the_first_match(real_models: Path, open_page: OpensPages) -> None:
    """Search moves the map to the first match."""
    page = painted(open_page(real_models))
    page.evaluate("() => { const map = qnnmemMaps[0]; map.zoom(0.2); map.pan(50, 0); }")
    last = page.evaluate("qnnmemMaps[0].byTime.at(-1).name")
    page.locator("figure.map input").first.fill(last)
    seen = (
        "(({ view, byTime }) => byTime.at(-1).lower <= view.x1 && byTime.at(-1).upper >= view.x0)"
    )
    assert page.evaluate(f"{seen}(qnnmemMaps[0])")


def test_the_view_is_saved_as_a_picture(real_models: Path, open_page: OpensPages) -> None:
    """The view can be saved as SVG, with the same boxes and labels, and as PNG."""
    import xml.etree.ElementTree as Xml

    page = painted(open_page(real_models))
    saved = {}
    for form in ("svg", "png"):
        with page.expect_download() as download:
            page.locator(f"figure.map [data-save={form}]").first.click()
        assert download.value.suggested_filename == f"memory-map.{form}"
        saved[form] = download.value.path().read_bytes()
    assert saved["png"].startswith(b"\x89PNG")
    tree = Xml.fromstring(saved["svg"])  # noqa: S314 - written by qnnmem
    rects, words = (list(tree.iter(f"{{{SVG}}}{name}")) for name in ("rect", "text"))
    assert len(rects) > page.evaluate("qnnmemMaps[0].boxes.length")
    drawn = page.evaluate("qnnmemMaps[0].labels.map((one) => one.words)")
    assert [one.text for one in words] == drawn


SVG = "http://www.w3.org/2000/svg"


def test_hostile_names_stay_text_in_a_saved_picture(tmp_path: Path, open_page: OpensPages) -> None:
    """Hostile names stay text in a saved SVG."""
    import xml.etree.ElementTree as Xml

    result = recorded("plan-csv.json")
    result["buffers"] = result["buffers"][:2]
    name = '</text><script>alert("1")</script>&\x07\x00'
    for at, one in enumerate(result["buffers"]):
        one.update(name=name + str(at), lower=0, upper=9, size_bytes=result["scratch_bytes"] // 2)
    target = tmp_path / "it.html"
    target.write_text(render_page([section_of(result, "it")], "it"), "utf-8")
    page = painted(open_page(target, width=1440))
    with page.expect_download() as download:
        page.locator("[data-save=svg]").click()
    tree = Xml.parse(download.value.path())  # noqa: S314 - written by qnnmem
    assert "script" not in {one.tag.rpartition("}")[2] for one in tree.iter()}
    assert any("</text><script>" in (one.text or "") for one in tree.iter(f"{{{SVG}}}text"))


def test_maps_that_are_compared_have_one_scale(tmp_path: Path, open_page: OpensPages) -> None:
    """Compared maps share one scale, and their peaks are aligned."""
    from qnnmem.workbench.show import comparison

    before = recorded("plan-csv.json")
    after = json.loads(json.dumps(before))
    after["scratch_bytes"] //= 4
    after["peak"]["step"] += 2
    for one in after["buffers"]:
        one["lower"], one["upper"] = one["lower"] + 2, one["upper"] + 2
    target = tmp_path / "it.html"
    body = PageSection("it", lines([comparison(before, after, ("a", "b"))]))
    target.write_text(render_page([body], "it"), "utf-8")
    page = painted(open_page(target, width=1440))
    first, second = page.evaluate(
        """() => qnnmemMaps.map(({ view, data, canvas }) => ({ tall: view.y1 - view.y0,
          peak: (data.peak.step - view.x0) / (view.x1 - view.x0), other: data.other.scratch,
          y: canvas.getBoundingClientRect().y }))"""
    )
    assert first["tall"] == second["tall"]
    assert first["y"] == second["y"]
    assert first["peak"] == pytest.approx(second["peak"])
    assert (first["other"], second["other"]) == (after["scratch_bytes"], before["scratch_bytes"])
    assert overlapping(page.evaluate(LABELS)) == []


@pytest.mark.parametrize(("width", "height"), WINDOWS)
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("plan-budget-too-small", (".answer", "text=What sets the peak", ".command", ".bars")),
        ("doctor-incident", (".answer", ".bars", "text=Missing:", ".evidence .decides")),
        ("footprint-two-graphs", (".answer", ".command")),
        ("fit-two-socs", (".answer", ".bars")),
        ("lint-errors", (".answer", "table")),
    ],
)
def test_the_first_screen_is_the_answer(
    tmp_path: Path,
    open_page: OpensPages,
    name: str,
    wanted: tuple[str, ...],
    width: int,
    height: int,
) -> None:
    """The first screen shows the verdict and the decisive chart without scrolling."""
    target = tmp_path / "it.html"
    target.write_text(render_page([section_of(recorded(f"{name}.json"), "it")], "it"), "utf-8")
    page = open_page(target, width=width, height=height)
    for what in wanted:
        box = page.locator(what).first.bounding_box()
        assert box is not None
        assert box["y"] + min(box["height"], 60) <= height, what
    order = page.evaluate(
        "[...document.querySelectorAll('.answer, .map, details')].map((one) => one.className)"
    )
    assert order[0] == "answer"


@pytest.mark.parametrize(("width", "height"), WINDOWS)
def test_a_matrix_says_what_changed_since_the_accepted_numbers(
    tmp_path: Path, open_page: OpensPages, width: int, height: int
) -> None:
    """The matrix shows the change since the accepted numbers; a cell opens its model's details."""
    target = tmp_path / "check.html"
    target.write_text(render_page([section_of(checked(), "it")], "it"), "utf-8")
    page = open_page(target, width=width, height=height)
    changed = page.get_by_text("+60.00 MiB (+86%) since 2026-01-03")
    box = changed.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= height
    assert page.locator("details[open]").count() == 1  # only the exceeded budget
    assert page.evaluate(CONTRAST) == []
    page.evaluate("document.querySelector('details[open]').open = false")
    page.click("td .margin.over")
    assert "accepted and now" in page.inner_text("details[open]")


def test_what_changed_is_on_the_first_screen(tmp_path: Path, open_page: OpensPages) -> None:
    """A comparison shows verdict, bytes and maps on the first screen."""
    from qnnmem.workbench.show import comparison

    before = recorded("plan-csv.json")
    after = {**before, "scratch_bytes": before["scratch_bytes"] // 2}
    body = PageSection("it", lines([comparison(before, after, ("a", "b"))]))
    target = tmp_path / "it.html"
    target.write_text(render_page([body], "it"), "utf-8")
    page = open_page(target, width=1440)
    for what in (".answer", ".bars", "table", "canvas"):
        box = page.locator(what).first.bounding_box()
        assert box is not None
        assert box["y"] + min(box["height"], 60) <= 900, what
    assert "50" in page.inner_text(".answer")
