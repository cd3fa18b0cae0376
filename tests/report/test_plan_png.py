"""The memory map as PNG."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence

from qnnmem.report.plan_picture import draw, png_of
from qnnmem.results.plan import PlanBuffer, PlanMap

EXAMPLES = Path(__file__).parents[2] / "examples"
BLUE, WHITE = (84, 174, 255), (255, 255, 255)


def test_boxes_are_where_their_bytes_are(tmp_path: Path) -> None:
    """`-o plan.png` writes an image with coloured boxes on white."""
    image = pytest.importorskip("PIL.Image")
    target = tmp_path / "plan.png"
    assert exit_code(run("plan", EXAMPLES / "keyword_spotting.csv", "-o", target)) == 0
    with image.open(target) as picture:
        pixels = picture.convert("RGB")
    assert pixels.width == 1920
    assert pixels.getpixel((2, 2)) == WHITE
    assert BLUE in {color for _, color in pixels.getcolors(1 << 20)}


def test_states_larger_than_scratch_make_no_tower() -> None:
    """A persistent pool much larger than scratch does not make the image tall."""
    image = pytest.importorskip("PIL.Image")
    plan = PlanMap(
        scratch_bytes=64,
        persistent_bytes=1 << 30,
        lower_bound_bytes=64,
        optimal=True,
        io="inside",
        buffers=(PlanBuffer("s", "persistent", 1 << 30, lower=0, upper=2, offset_bytes=0),),
    )
    with image.open(BytesIO(png_of(draw(plan, "it")))) as picture:
        assert picture.height < 4000


def test_it_needs_a_file() -> None:
    """PNG output needs -o."""
    done = run("plan", EXAMPLES / "tiny.eaix", "--format", "png")
    assert exit_code(done) == 2
    assert "-o" in sentence(done)


def test_without_pillow_the_command_that_adds_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Pillow, the refusal names the extra `png`, and no file is written."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    target = tmp_path / "plan.png"
    done = run("plan", EXAMPLES / "tiny.eaix", "-o", target)
    assert exit_code(done) == 2
    assert "[png]" in sentence(done)
    assert not target.exists()
