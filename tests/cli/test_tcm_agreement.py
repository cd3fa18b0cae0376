"""TCM: `plan`, `prepare`, `inspect` and `net-run` give the same bytes and verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
from command_line import run
from onnx import helper

from qnnmem.lpai.binary import unpack
from qnnmem.lpai.tcm import judge_graphs
from qnnmem.planner.tcm_pool import TcmAlignment, TcmVerdict

POOL = 2_035_712
SIZES = {"one": 1_200_000, "two": 1_100_000}


class Said(NamedTuple):
    """A command's statement about TCM."""

    need: int
    buffers: int
    fits: bool


def largest(size: int) -> onnx.ModelProto:
    """Return a model that gives the largest of this many bytes."""
    given = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, (size,))
    made = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, (1,))
    node = helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)
    graph = helper.make_graph([node], "g", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a binary of two graphs, inputs, configs and the output of prepare."""
    folder = tmp_path_factory.mktemp("desk")
    for name, size in SIZES.items():
        onnx.save(largest(size), folder / f"{name}.onnx")
        (folder / f"{name}.raw").write_bytes(bytes(size))
        (folder / f"{name}.txt").write_text(f"{folder / name}.raw\n")
    files = [folder / f"{name}.onnx" for name in SIZES]
    prepared = run("prepare", *files, "--float", "-o", folder / "two.bin")
    assert prepared.exception is None
    (folder / "prepared.txt").write_text(prepared.output)
    assert run("config", "--backend=lpai", "--mem-type=tcm", "-o", folder).exception is None
    return folder


def in_text(text: str) -> list[Said]:
    """Return the TCM lines of `prepare` and `inspect`, in order."""
    found = re.findall(r"^  TCM +([\d,]+) .*?, (fits|does not fit).*\((\d+) alloc", text, re.M)
    return [Said(int(n.replace(",", "")), int(count), fits == "fits") for n, fits, count in found]


def in_json(values: dict[str, Any]) -> Said:
    """Return the TCM account of a JSON output."""
    assert (values["limit_bytes"], values["max_buffers"]) == (POOL, 32)
    return Said(values["need_bytes"], values["buffers"], values["fits"])


def of_verdict(verdict: TcmVerdict) -> Said:
    """Return the statement of the TCM check itself."""
    return Said(verdict.need, verdict.buffers, verdict.fits)


def net_run(desk: Path, lists: str, tmp_path: Path, *flags: str) -> Said:
    """Return the TCM that a run allocates, or would need."""
    words = [
        "--backend",
        "libQnnLpai.so",
        "--log_level",
        "debug",
        "--direct_mode",
        "--use_native_input_files",
        *flags,
    ]
    words += ["--retrieve_context", str(desk / "two.bin"), "--output_dir", str(tmp_path / "out")]
    words += ["--config_file", str(desk / "eaiParams_direct.json"), "--input_list"]
    files = ",".join(name if name == "__" else str(desk / name) for name in lists.split(","))
    result = run("net-run", *words, files)
    assert result.exception is None
    if result.return_value == 0:
        sizes = re.findall(r"Allocate size (\d+) from tcm pool 0", result.stdout)
        return Said(sum(map(int, sizes)), len(sizes), True)
    assert "QNN_COMMON_ERROR_MEM_ALLOC (1002)" in result.stdout
    (found,) = re.findall(
        r"^TCM: ([\d,]+) bytes are needed, ([\d,]+) over the pool's ([\d,]+)",
        result.stderr,
        re.MULTILINE,
    )
    need, missing, limit = (int(number.replace(",", "")) for number in found)
    assert (limit, missing) == (POOL, need - POOL)
    return Said(need, len(re.findall(r"model binary|(?:in|out)put '", table(result.stderr))), False)


def table(text: str) -> str:
    """Return the rows of the TCM table."""
    return text.partition("in total  what\n")[2].partition("  what would change")[0]


@pytest.mark.parametrize(
    ("lists", "place", "fits"),
    [("one.txt,__", 0, True), ("__,two.txt", 1, True), ("one.txt,two.txt", 2, False)],
)
def test_every_command_says_the_same(
    desk: Path, tmp_path: Path, lists: str, place: int, fits: bool
) -> None:
    """Each graph alone fits, both together do not, and all commands give the same numbers."""
    data = (desk / "two.bin").read_bytes()
    graphs = unpack(data).graphs
    chosen = (graphs[:1], graphs[1:], graphs)[place]
    expected = of_verdict(judge_graphs(chosen, len(data)))
    assert expected.fits is fits
    assert in_text((desk / "prepared.txt").read_text())[place] == expected
    assert in_text(run("inspect", desk / "two.bin").output)[place] == expected
    ours = json.loads(run("inspect", desk / "two.bin", "--json").output)["qnnmem"]
    assert in_json([*(g["tcm"] for g in ours["graphs"]), ours["tcm"]][place]) == expected
    assert net_run(desk, lists, tmp_path) == expected


@pytest.mark.parametrize(("alignment", "align"), [("default", 64), ("v4-era", 16)])
def test_a_run_rounds_to_the_alignment_of_its_platform(
    desk: Path, tmp_path: Path, alignment: str, align: int
) -> None:
    """The TCM account of net-run rounds to the alignment of the chosen platform."""
    data = (desk / "two.bin").read_bytes()
    graphs, pair = unpack(data).graphs, TcmAlignment(align, align)
    both = of_verdict(judge_graphs(graphs, len(data), pair))
    assert net_run(desk, "one.txt,two.txt", tmp_path, "--alignment", alignment) == both
    first = of_verdict(judge_graphs(graphs[:1], len(data), pair))
    assert net_run(desk, "one.txt,__", tmp_path, "--alignment", alignment) == first


def test_the_headings_say_which_graphs_are_meant(desk: Path) -> None:
    """The verdict on all graphs together has its own heading, once."""
    for text in ((desk / "prepared.txt").read_text(), run("inspect", desk / "two.bin").output):
        assert text.count("all 2 graphs together\n  TCM ") == 1


def test_a_binary_that_does_not_fit_is_judged_with_the_graphs_that_would_run(
    desk: Path, tmp_path: Path
) -> None:
    """If the binary alone exceeds TCM, the account counts the IO of the chosen graphs only."""
    weights = helper.make_tensor("w", onnx.TensorProto.UINT8, (POOL,), bytes(POOL), raw=True)
    index = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, (1,))
    made = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, (1,))
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    graph = helper.make_graph([node], "g", [index], [made], [weights])
    imports = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "big.onnx")
    files = (tmp_path / "big.onnx", desk / "one.onnx")
    assert run("prepare", *files, "--float", "-o", tmp_path / "b.bin").exception is None
    words = ("--backend", "libQnnLpai.so", "--direct_mode", "--output_dir", tmp_path / "out")
    config = ("--config_file", desk / "eaiParams_direct.json")
    lists = ("--input_list", f"{desk / 'one.txt'},__")
    result = run("net-run", *words, *config, *lists, "--retrieve_context", tmp_path / "b.bin")
    assert result.return_value == 1
    data = (tmp_path / "b.bin").read_bytes()
    verdict = judge_graphs(unpack(data).graphs[:1], len(data))
    assert f"TCM: {verdict.need:,} bytes are needed" in result.stderr
    assert table(result.stderr).count("input '") == 1


@pytest.mark.parametrize("align", [16, 64])
def test_a_plan_is_judged_as_its_graph_with_the_constants_for_the_binary(
    desk: Path, align: int
) -> None:
    """The TCM numbers of `plan`, in text and JSON, equal those of the TCM check."""
    words = ("plan", desk / "one.onnx", "--align", str(align))
    values = json.loads(run(*words, "--format", "json").output)
    graph = unpack((desk / "two.bin").read_bytes()).graphs[0]
    expected = judge_graphs([graph], values["constant_bytes"], TcmAlignment(align, align))
    assert in_json(values["tcm"]) == of_verdict(expected)
    said = f"fits, constants and IO take {expected.need:,} of 2,035,712 bytes"
    assert said in run(*words, "-v").output
