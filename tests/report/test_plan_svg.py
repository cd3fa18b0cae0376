"""The memory map as SVG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from command_line import exit_code, run, sentence

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_picture_shows_every_buffer() -> None:
    """The SVG is well-formed, with a box per buffer and the peak marked."""
    done = run("plan", EXAMPLES / "tiny.eaix", "--format", "svg")
    assert exit_code(done) == 0
    root = ElementTree.fromstring(done.stdout)  # noqa: S314 - written by qnnmem
    assert len(root.findall(".//{*}rect/{*}title")) == 4
    assert "peak: step 0, 2,304 bytes alive" in done.stdout


def test_names_are_text(tmp_path: Path) -> None:
    """Markup and control characters in a name leave the SVG well-formed."""
    name = "</title><script>alert(1)</script>\x00\x1b[31m"
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    y = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4])
    nodes = [onnx.helper.make_node("Relu", ["x"], [name])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), tmp_path / "m")
    done = run("plan", tmp_path / "m", "--format", "svg")
    root = ElementTree.fromstring(done.stdout)  # noqa: S314 - written by qnnmem
    assert not root.findall(".//{*}script")


def test_a_suffix_is_enough(tmp_path: Path) -> None:
    """`-o plan.svg` writes an SVG."""
    target = tmp_path / "plan.svg"
    assert exit_code(run("plan", EXAMPLES / "tiny.eaix", "-o", target)) == 0
    assert target.read_text("utf-8").startswith("<svg ")


@pytest.mark.parametrize("form", ["svg", "c"])
def test_it_is_for_one_file(form: str) -> None:
    """`--format svg` and `--format c` are refused for several files."""
    files = (EXAMPLES / "tiny.eaix", EXAMPLES / "keyword_spotting.csv")
    done = run("plan", *files, "--format", form)
    assert exit_code(done) == 2
    assert f"--format {form} is for one file" in sentence(done)
