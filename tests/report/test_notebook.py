"""Results in a notebook: HTML without scripts or external content, with escaped names."""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fix_samples import planned_fix

import qnnmem
from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.source import Stream
from qnnmem.report.notebook import html_of

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTILE = "</td><script>alert(1)</script>"


def check(html: str) -> None:
    """Assert that no element runs code or fetches anything."""
    assert not re.search(r"<(script|iframe|link|style|object)|\son\w+=|https?:", html)
    assert "<table>" in html


def pictures(html: str) -> list[str]:
    """Return the embedded SVG images."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [b64decode(one).decode() for one in found]


def test_a_plan_shows_pools_and_map() -> None:
    """A plan shows its verdict, its pools and its map as an embedded image."""
    plan = qnnmem.plan(qnnmem.load(EXAMPLES / "tiny.eaix"), budget={"scratch": "2K"})
    html = plan._repr_html_()
    check(html)
    assert "does not fit" in html
    (picture,) = pictures(html)
    assert len(ElementTree.fromstring(picture).findall(".//{*}rect/{*}title")) == 4  # noqa: S314


def test_names_are_escaped() -> None:
    """Markup in a buffer's name is text in the table and in the image."""
    buffer = qnnmem.FixedBuffer(HOSTILE, 64, qnnmem.Span(0, 2), 1)
    plan = qnnmem.plan(qnnmem.Model(HOSTILE, "csv", buffers=(buffer,)))
    check(plan._repr_html_())
    assert not ElementTree.fromstring(pictures(plan._repr_html_())[0]).findall(".//{*}script")  # noqa: S314


def test_a_bill_shows_parts_with_their_origins() -> None:
    """A bill shows its parts with their origins."""
    from qnnmem.htp.bill import bill_of
    from qnnmem.htp.binary.read import read_context

    html = bill_of(read_context(EXAMPLES / "small_htp.bin"))._repr_html_()
    check(html)
    assert "measured" in html
    assert "VTCM" in html


def test_an_incident_shows_the_line_that_decides(tmp_path: Path) -> None:
    """An incident shows cause, deciding line and remedies; log text is escaped."""
    log = (EXAMPLES / "graph_limit.log").read_text("utf-8").replace("ERROR", f"ERROR {HOSTILE}")
    Path(tmp_path, "it.log").write_text(log, "utf-8")
    found = diagnose([Stream((str(tmp_path / "it.log"),))], built_in())
    (incident,) = found.incidents()
    found.close()
    html = incident._repr_html_()
    check(html)
    assert "decides" in html
    assert "&lt;script&gt;" in html


def test_a_fix_shows_what_was_tried_and_both_maps(tmp_path: Path) -> None:
    """A fix shows the tried remedies and the maps before and after."""
    html = planned_fix(tmp_path, HOSTILE)._repr_html_()
    check(html)
    assert "in place" in html
    before, after = pictures(html)
    assert "scratch 1,024 bytes" in before
    assert "scratch 768 bytes" in after


def test_other_values_have_no_picture() -> None:
    """A value that is not a result is refused."""
    with pytest.raises(TypeError, match="int"):
        html_of(3)
