"""Remedies of `qnnmem plan` for a pool that is too large: its contents and what helps."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import onnx.parser
import pytest
from command_line import exit_code, run, sentence

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
# The peak lies between two large tensors, far from input and output.
MIDDLE = """g (float[1,4] x) => (float[1,4] y)
{ a = Concat<axis=1>(x, x, x, x, x, x, x, x)
  b = Concat<axis=1>(a, a, a, a, a, a, a, a)
  c = Transpose<perm=[1, 0]>(b)
  d = ReduceSum<keepdims=1>(c)
  y = Concat<axis=1>(d, d, d, d) }"""
# The large inputs live to the end, so the whole peak is IO.
IO = """g (float[1,64] x, float[1,64] z) => (float[1,64] y)
{ a = Relu(x) b = Tanh(a) c = Mul(b, z) y = Sub(c, x) }"""
WEIGHTS = """g (float[1,4] x) => (float[1,8] y)
<float[4,8] w = {WWWW}> { y = MatMul(x, w) }""".replace("WWWW", ", ".join("1" * 32))


def model(folder: Path, text: str) -> Path:
    """Write an ONNX model."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(f"{HEAD}\n{text}").SerializeToString())
    return path


def plan(path: Path, *options: str) -> tuple[list[str], dict]:  # type: ignore[type-arg]
    """Return the lines of the short answer and the JSON."""
    text, values = run("plan", path, *options), run("plan", path, *options, "--json")
    assert exit_code(text) == exit_code(values) == 1
    return text.stdout.splitlines(), json.loads(values.stdout)


def pasted(lines: list[str]) -> dict:  # type: ignore[type-arg]
    """Return the JSON that the recommended command prints."""
    (following,) = (line for line in lines if line.startswith("next: "))
    words = shlex.split(following[following.index(" qnnmem ") :])
    found: dict = json.loads(run(*words[1:], "--json").stdout)  # type: ignore[type-arg]
    return found


def test_what_cannot_help_is_not_recommended(tmp_path: Path) -> None:
    """Options that do not lower the peak are listed as useless and not recommended."""
    path = model(tmp_path, MIDDLE)
    lines, values = plan(path, "--bits", "8", "--reorder", "--budget", "scratch=64")
    assert values["remedies"] == []
    assert "these options do not make scratch smaller: --inplace, --io outside" in lines
    assert "--io outside" not in lines[-1]


@pytest.mark.parametrize(("text", "have"), [(MIDDLE, 64), (IO, 500)])
def test_what_is_recommended_saves_what_it_says(text: str, have: int, tmp_path: Path) -> None:
    """The recommended command saves exactly the stated bytes."""
    path = model(tmp_path, text)
    lines, before = plan(path, "--budget", f"scratch={have}")
    after = pasted(lines)
    (said,) = re.findall(r"next: saves ([\d,]+) bytes? of scratch", lines[-1])
    assert before["scratch_bytes"] - after["scratch_bytes"] == int(said.replace(",", "")) > 0
    assert ("which then fits" in lines[-1]) == (after["fits"] is True)
    for remedy in before["remedies"]:
        words = shlex.split(" ".join(remedy["options"]))
        alone = json.loads(run("plan", path, *words, "--json").stdout)
        assert alone["scratch_bytes"] == remedy["need_bytes"]
        assert before["scratch_bytes"] - remedy["need_bytes"] == remedy["saved_bytes"]


def test_io_outside_is_named_where_it_helps(tmp_path: Path) -> None:
    """`--io outside` is recommended if it helps, with the bytes that move."""
    lines, values = plan(model(tmp_path, IO), "--bits=8", "--reorder", "--budget", "scratch=150")
    assert ["--io outside"] in [remedy["options"] for remedy in values["remedies"]]
    assert "moves 192 bytes of IO to the application's buffers" in lines[-1]


@pytest.mark.parametrize("pool", ["constants", "tcm"])
def test_other_pools_have_remedies_too(pool: str, tmp_path: Path) -> None:
    """`--bits 8` is recommended for constants and TCM, with the resulting bytes."""
    lines, values = plan(model(tmp_path, WEIGHTS), "--budget", f"{pool}=100")
    assert [remedy["options"] for remedy in values["remedies"]] == [["--bits 8"]]
    after = pasted(lines)
    (asked,) = after["budgets"]
    assert asked["need_bytes"] == values["remedies"][0]["need_bytes"]


def test_a_proven_shortage_is_not_searched_longer(tmp_path: Path) -> None:
    """If the bound proves the shortage, a longer search is not recommended."""
    rows = "id,lower,upper,size\n" + "".join(f"b{i},{i},{i + 3},{7 + i % 5}\n" for i in range(60))
    path = tmp_path / "buffers.csv"
    path.write_text(rows, "utf-8")
    done = run("plan", path, "--capacity", "3", "--time-limit", "0")
    assert exit_code(done) == 1
    assert "search longer" not in done.stdout


def test_what_is_in_the_way_has_sizes(tmp_path: Path) -> None:
    """The buffers of the peak are listed with bytes and share, and with their total."""
    path = model(tmp_path, MIDDLE)
    lines, values = plan(path, "--budget", "scratch=1500", "--budget", "constants=0")
    (budget,) = (b for b in values["budgets"] if b["pool"] == "scratch")
    at = next(i for i, line in enumerate(lines) if "in scratch, " in line)
    assert f"{sum(budget['blocker_bytes']):,} bytes" in lines[at]
    for row, name, size in zip(
        lines[at + 1 :], budget["blockers"], budget["blocker_bytes"], strict=False
    ):
        share = f"{100 * size / budget['need_bytes']:.1f}"
        assert row.split() == [f"{size:,}", share, "%", name]


def test_what_is_in_tcm_has_sizes(tmp_path: Path) -> None:
    """The TCM account lists constants and each tensor with bytes and share."""
    lines, _values = plan(model(tmp_path, WEIGHTS), "--budget", "tcm=100")
    rows = [line.split() for line in lines]
    assert ["128", "50.0", "%", "constants"] in rows
    assert ["32", "12.5", "%", "output", "'y'"] in rows


QUANTIZED = """g (int8[1,8] x) => (int8[1,8] y)
<float[1] s = {0.5}, int8[1] z = {0}>
{ a = DequantizeLinear(x, s, z) b = Relu(a) y = QuantizeLinear(b, s, z) }"""
INTEGER = "g (int8[1,8] x) => (int8[1,8] y) { a = Concat<axis=0>(x) y = Identity(a) }"


@pytest.mark.parametrize("bits", ["8", "16"])
def test_bits_that_change_nothing_are_told(bits: str, tmp_path: Path) -> None:
    """`--bits` without effect on an integer model is noted; a float model gets no note."""
    note = f"note: --bits {bits} has no effect: no buffer is floating-point (int8)"
    for text in (INTEGER, QUANTIZED):
        path = model(tmp_path, text)
        assert note in run("plan", path, "--bits", bits).stdout.splitlines()
        assert "as int8" not in run("plan", path).stdout
    assert "has no effect" not in run("plan", model(tmp_path, IO), "--bits", bits).stdout


def test_width_of_weights_without_quantizing_is_refused(tmp_path: Path) -> None:
    """`--weight-bits` without --quantize is refused, as it would have no effect."""
    done = run("prepare", model(tmp_path, INTEGER), "--weight-bits=16", "-o", tmp_path / "a.bin")
    assert exit_code(done) == 2
    assert "--weight-bits is for --quantize" in sentence(done)
    assert not (tmp_path / "a.bin").exists()
