"""The sixteen solutions of the founding notes: each command on a failing and a good case."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import exit_code, run, sentence
from onnx import TensorProto, helper, numpy_helper

from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.targets.socs import most_tensors

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "examples" / "small.onnx"
BINARY = ROOT / "examples" / "small_htp.bin"
HTP = (
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
)
SOLUTIONS = {
    "founding-device-create": ("fix", "sweep", "fit", "validate"),
    "founding-graph-create": ("fix", "fix", "fix", "fit"),
    "founding-inference": ("prepare", "place", "sweep", "watch"),
    "founding-device-init": ("watch", "adb", "doctor", "doctor"),
}
ENTRIES = {one.id: one for one in read_folder(BUILT_IN)[1] if one.id in SOLUTIONS}
NOTE = "qnn_graph_create failed\nError code: QNN_STATUS_MEMORY_ALLOCATION_FAILED\n"


def commands(entry: str, number: int) -> list[list[str]]:
    """Return the commands that the doctor recommends for a solution, without the program name."""
    text = ENTRIES[entry].remedies[number - 1]
    return [shlex.split(found)[1:] for found in re.findall(r"`((?:qnnmem|adb) [^`]+)`", text)]


def command(entry: str, number: int, **known: object) -> list[str]:
    """Return the first command, with MODEL and the other placeholders filled in."""
    filled = [str(known.get(word, word)) for word in commands(entry, number)[0]]
    return [word.replace("DIM=", f"{known['DIM']}=") if "DIM" in known else word for word in filled]


def log(folder: Path, text: str = NOTE) -> Path:
    """Return a file with a note's log."""
    (folder / "dev.log").write_text(text, "utf-8")
    return folder / "dev.log"


def answer(*words: str | Path) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    done = run(*words)
    return exit_code(done), done.stdout or sentence(done)


def saved(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    **weights: Any,
) -> Path:
    """Return a saved model from x to y, both of one shape."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    opset = weights.pop("opset", 17)
    stored = [numpy_helper.from_array(np.asarray(v, "float32"), n) for n, v in weights.items()]
    graph = helper.make_graph(list(nodes), "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("entry", SOLUTIONS)
def test_each_solution_has_its_command(entry: str) -> None:
    """Each founding note has four solutions, each with its verb."""
    verbs = SOLUTIONS[entry]
    remedies = ENTRIES[entry].remedies
    assert len(remedies) == 4
    for text, verb in zip(remedies, verbs, strict=True):
        found = re.findall(r"`(qnnmem|adb) ?([a-z-]*)", text)
        assert verb in [program if program == "adb" else word for program, word in found]


@pytest.mark.parametrize(
    ("entry", "number"), [("founding-device-create", 1), ("founding-graph-create", 2)]
)
@HTP[0]
@HTP[1]
def test_a_smaller_batch(entry: str, number: int, tmp_path: Path) -> None:
    """A batch of 64 exceeds the IO budget; the recommended command finds a batch that fits."""
    known = {"MODEL": SMALL, "LOG": log(tmp_path), "SOC": "SM8650", "fixed": tmp_path / "fixed"}
    words = command(entry, number, **known)
    case = ("--dim", "N=64", "--budget", "io=100K")
    assert answer("fit", SMALL, *case, "--soc", "SM8650", "--try", "0")[0] == 1
    code, text = answer(*words, *case)
    assert code == 0, text
    assert text.startswith("fits: IO 65,536 bytes of 102,400")


@pytest.mark.parametrize(
    ("entry", "number"), [("founding-device-create", 2), ("founding-inference", 3)]
)
@HTP[0]
@HTP[1]
def test_a_lower_precision(entry: str, number: int) -> None:
    """A SoC without FP16 refuses the float model; the recommended command shows that INT8 fits."""
    assert answer("fit", SMALL, "--dim", "N=1", "--soc", "QCM6490", "--try", "0")[0] != 0
    code, text = answer(*command(entry, number, MODEL=SMALL, SOC="QCM6490"), "--dim", "N=1")
    assert code == 0
    assert re.search(r"int8.*fits", text)
    assert not re.search(r"fp16.*\bfits\b", text)


@HTP[0]
@HTP[1]
def test_the_memory_of_the_soc_beside_the_model() -> None:
    """The recommended fit shows limits and needs, and names the excess over a small limit."""
    words = command("founding-device-create", 3, MODEL=SMALL, SOC="SM8650")
    code, text = answer(*words, "--dim", "N=1", "--budget", "pd=9M", "--try", "0")
    assert code == 1
    assert "bytes more than the process domain allows" in text
    code, text = answer(*words, "--dim", "N=1")
    assert code == 0
    assert "3,650,722,201" in text


@HTP[0]
@HTP[1]
def test_the_cpu_for_validation() -> None:
    """The recommended validation finds the graph correct on the CPU and points to memory."""
    words = command("founding-device-create", 4, MODEL=SMALL, SOC="SM8650")
    code, text = answer(*words, "--dim", "N=1")
    assert code == 0
    assert "the graph is right on these inputs; look at memory" in text


@HTP[0]
@HTP[1]
def test_the_graph_in_parts(tmp_path: Path) -> None:
    """For weights over the compile budget, the recommended command splits the model to fit."""
    nodes = [
        helper.make_node(
            "MatMul", [f"t{i}" if i else "x", f"w{i}"], [f"t{i + 1}" if i < 3 else "y"]
        )
        for i in range(4)
    ]
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((256, 256)) for i in range(4)}
    model = saved(tmp_path, nodes, [1, 256], **weights)
    known = {"MODEL": model, "LOG": log(tmp_path), "SOC": "SM8650", "fixed": tmp_path / "fixed"}
    budget = ("--budget", "compile=400K")
    assert answer("fit", model, "--soc", "SM8650", *budget, "--try", "0")[0] == 1
    code, text = answer(*command("founding-graph-create", 1, **known), *budget)
    assert code == 0
    assert "parts" in text


def test_fused_operators(tmp_path: Path) -> None:
    """The recommended fix fuses Pad into Conv and reports fewer tensors."""
    nodes = [
        helper.make_node("Pad", ["x"], ["p"], pads=[0, 0, 1, 1, 0, 0, 1, 1]),
        helper.make_node("Conv", ["p", "w"], ["y"], kernel_shape=[3, 3]),
    ]
    weights = np.random.default_rng(0).standard_normal((4, 4, 3, 3))
    model = saved(tmp_path, nodes, [1, 4, 8, 8], opset=10, w=weights)
    known = {"MODEL": model, "fused": tmp_path / "fused"}
    code, text = answer(*command("founding-graph-create", 3, **known))
    assert code == 0, text
    before, after = re.search(r"(\d+) tensors before.*; (\d+) after", text).groups()  # type: ignore[union-attr]
    assert int(after) < int(before)


def test_what_pruning_has_to_cut(tmp_path: Path) -> None:
    """If no remedy is enough, the answer states how many bytes pruning must remove."""
    words = command("founding-graph-create", 3, MODEL=SMALL, fused=tmp_path / "fused")
    code, text = answer(*words, "--dim", "N=1", "--budget", "scratch=500")
    assert code == 1
    assert "pruning has to cut at least 1,548 bytes" in text
    assert "5 tensors, 832 bytes each on average" in text


@HTP[0]
@HTP[1]
def test_an_operator_that_htp_does_not_take(tmp_path: Path) -> None:
    """An operator that HTP rejects is named; without that operator the model fits."""
    odd = [
        helper.make_node("Erf", ["x"], ["a"]),
        helper.make_node("Mod", ["a", "c"], ["y"], fmod=1),
    ]
    model = saved(tmp_path, odd, [1, 8], c=np.ones((1, 8)))
    code, text = answer(
        *command("founding-graph-create", 4, MODEL=model, SOC="SM8650"), "--try", "0"
    )
    assert code != 0
    assert "Mod" in text
    model = saved(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [1, 8])
    assert answer(*command("founding-graph-create", 4, MODEL=model, SOC="SM8650"))[0] == 0


@HTP[0]
@HTP[1]
def test_fixed_input_shapes(tmp_path: Path) -> None:
    """An open dimension is refused; the recommended command fixes the dimension in the binary."""
    target = tmp_path / "fixed.bin"
    known = {"MODEL": SMALL, "SOC": "SM8650", "DIM": "N", "fixed.bin": target}
    words = command("founding-inference", 1, **known)
    assert exit_code(run(*[word for word in words if word not in ("--dim", "N=1")])) == 2
    assert answer(*words)[0] == 0
    assert "1x4x8x8" in answer("inspect", target)[1]


def test_fewer_sessions() -> None:
    """Five contexts exceed the process domains; four contexts fit."""
    words = command("founding-inference", 2, BINARY=BINARY)
    room = ("--budget", "11M")
    code, text = answer(*words, BINARY, BINARY, BINARY, *room)
    assert code == 1
    assert text.startswith("does not fit: 5 contexts")
    assert answer(*words, BINARY, BINARY, *room)[0] == 0


ADB = """#!/bin/sh
D={folder}
case "$*" in
devices) printf 'List of devices attached\\nX\\tdevice\\n' ;;
reboot) echo running > $D/state ;;
*"cat /proc/meminfo") cat $D/meminfo ;;
*"uname -srm") echo Linux 6.1 aarch64 ;;
*getprop) echo '[ro.soc.model]: [SM8650]'; echo '[ro.build.fingerprint]: [a:14/X:user/keys]' ;;
*"ls -1 /sys/class/remoteproc/") echo remoteproc0 ;;
*remoteproc0/name) echo cdsp ;;
*remoteproc0/state) cat $D/state ;;
*remoteproc0/firmware) echo cdsp.mbn ;;
*"ls -1 /vendor/lib64/") echo libQnnHtp.so; echo libQnnHtpV75Stub.so ;;
*"ls -1 /vendor/lib/rfsa/adsp/") echo libQnnHtpV75Skel.so ;;
*AISW_VERSION*) cat $D/releases ;;
*) echo "No such file" >&2; exit 1 ;;
esac
"""
MEMORY = "MemTotal: 12000000 kB\nMemFree: 1000 kB\nMemAvailable: {} kB\n"
RELEASES = (
    "= /vendor/lib64/libQnnHtpV75Stub.so\nv2.51.0.260929181845\n"
    "= /vendor/lib/rfsa/adsp/libQnnHtpV75Skel.so\nv{}.0.260929181845\n"
)


def phone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake adb: a device with little memory, a crashed DSP and a mismatched skel."""
    script = folder / "adb"
    script.write_text(ADB.format(folder=folder))
    script.chmod(0o755)
    (folder / "state").write_text("crashed\n")
    (folder / "meminfo").write_text(MEMORY.format(20_000))
    (folder / "releases").write_text(RELEASES.format("2.28"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def host(words: Sequence[str]) -> dict[str, str]:
    """Return the verdict of each device check by its id."""
    found = json.loads(run(*words, "--json").stdout)["checks"]
    return {one["id"]: one["verdict"] for one in found}


@pytest.mark.skipif(os.name != "posix", reason="adb is a shell script here")
def test_what_the_device_itself_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reboot, memory pressure, releases: the check reports the problem and then its removal."""
    folder = phone(tmp_path, monkeypatch)
    reboot, after = commands("founding-device-init", 2)
    assert (reboot, after) == (["reboot"], ["doctor", "--host", "adb"])
    assert host(after)["state"] == "problem"
    (folder / "state").write_text("running\n")  # as a reboot does
    assert host(after)["state"] == "good"
    pressure = command("founding-device-init", 3)
    assert host(pressure)["memory"] == "problem"
    (folder / "meminfo").write_text(MEMORY.format(8_000_000))
    assert host(pressure)["memory"] == "good"
    releases = command("founding-device-init", 4)
    assert host(releases)["releases"] == "problem"
    (folder / "releases").write_text(RELEASES.format("2.51"))
    assert host(releases)["releases"] == "good"


def chain(folder: Path, ops: int) -> Path:
    """Return a model of element-wise ops in a row, with one tensor more than ops."""
    names = ["x", *(f"t{number}" for number in range(1, ops)), "y"]
    nodes = [helper.make_node("Abs", [a], [b]) for a, b in itertools.pairwise(names)]
    return saved(folder, nodes, [1, 4])


def test_the_tensor_count_beside_the_largest_known(tmp_path: Path) -> None:
    """`plan` notes a tensor count above the largest count known to compile for HTP."""
    known = most_tensors()
    model = chain(tmp_path, known.value)
    code, text = answer("plan", model, "--time-limit", "1")
    assert code == 0
    (line,) = [one for one in text.splitlines() if "known to compile for HTP" in one]
    assert line.startswith(f"{known.value + 1:,} tensors, more than the {known.value:,} known")
    assert known.source in line
    assert "tensors" not in answer("plan", chain(tmp_path, 3))[1]
    code, text = answer("doctor", log(tmp_path), "--model", chain(tmp_path, 3))
    assert code == 1
    assert f"4 tensors; {known.value:,} known to compile for HTP" in text
