"""`qnnmem footprint`: the bill of a context binary, without heavy imports."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import verb
from context_writer import example_context, old_context, pack_context
from told_worker import ToldWorker, loading

from qnnmem.errors import CannotTell, LoadError, OutputError, UsageError
from qnnmem.flags import flag
from qnnmem.htp.installed import Library
from qnnmem.htp.provoke import small_convolution
from qnnmem.results.schema import load_schema

HEAVY = {"numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "rich", "tflite", "ctypes"}


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Write a context binary for SM8650."""
    path = tmp_path / "model.bin"
    path.write_bytes(pack_context(example_context()))
    return path


run = verb("footprint")


def test_the_first_line_is_the_total(binary: Path) -> None:
    """The first line has the total, the SoC and the largest part; a table with origins follows."""
    done = run(binary)
    first = "11,483,328 bytes (10.95 MiB) of memory on SM8650; VTCM is 73% of it"
    assert (done.stdout.splitlines()[0], done.return_value) == (first, 0)
    assert "3,000,000     2.86 MiB  measured\n" in done.stdout
    assert "measured: file of QAIRT v2.51.0.0" in run(binary, "-v").stdout
    assert done.stdout.splitlines()[-1] == (
        f"next: show every field of the file: qnnmem inspect {shlex.quote(str(binary))} --json"
    )


def test_another_soc_can_be_asked_for(binary: Path) -> None:
    """A bill for another SoC names that SoC and warns that the file was made for SM8650."""
    done = run(binary, "--soc", "snapdragon 8 elite")
    assert "of memory on SM8750" in done.stdout
    assert "trap: the file was made for SM8650" in done.stdout


def test_json_has_the_same_numbers(binary: Path) -> None:
    """The JSON has every number in bytes, with its origin."""
    values = json.loads(run(binary, "--json").stdout)
    assert (values["schema"], values["soc"]) == ("qnnmem.footprint/1", "SM8650")
    assert values["total"]["bytes"] == 11_483_328
    assert values["parts"]["weights"]["origin"] == "measured"


def test_a_file_without_sizes_cannot_be_told(tmp_path: Path) -> None:
    """The bill of a file without sizes, from an old SDK, gives exit code 3."""
    path = tmp_path / "old.bin"
    path.write_bytes(pack_context(old_context()))
    done = run(path)
    assert done.return_value == 3
    assert done.stdout.startswith("total not known: ")


@pytest.mark.parametrize(
    ("soc", "error"), [("nonsense", UsageError), ("SM8250", CannotTell), ("9999", UsageError)]
)
def test_a_soc_must_be_a_target(binary: Path, soc: str, error: type[Exception]) -> None:
    """An unknown SoC is a usage error; for a SoC without HTP, footprint cannot tell."""
    assert isinstance(run(binary, "--soc", soc).exception, error)


def test_a_damaged_file_is_refused(binary: Path) -> None:
    """A truncated file is refused with one sentence that names the missing bytes."""
    binary.write_bytes(binary.read_bytes()[:-1])
    done = run(binary)
    assert isinstance(done.exception, LoadError)
    assert "1 of 8,192 bytes are missing" in str(done.exception)


def test_a_model_needs_a_soc(tmp_path: Path) -> None:
    """An ONNX model without --soc is refused, since it must be compiled first."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x09\x3a\x00")
    done = run(path)
    assert isinstance(done.exception, UsageError)
    sentence = done.exception.sentence(flag)
    assert "must be compiled first; choose a SoC, e.g. --soc SM8650" in sentence


def test_an_output_file_is_kept_unless_forced(binary: Path, tmp_path: Path) -> None:
    """`-o` writes the bill and replaces an existing file only with --force."""
    target = tmp_path / "bill.json"
    assert run(binary, "--json", "-o", target).return_value == 0
    before = target.read_text("utf-8")
    assert isinstance(run(binary, "-o", target).exception, OutputError)
    assert run(binary, "--format", "text", "-o", target, "--force").return_value == 0
    assert target.read_text("utf-8") != before


def test_nothing_heavy_is_imported(binary: Path) -> None:
    """Footprint of a binary imports no heavy package, so that it answers at once."""
    program = (
        "import sys; from qnnmem.cli.verbs import qnnmem\n"
        f"qnnmem.main(['footprint', {str(binary)!r}], standalone_mode=False)\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def told_measure(monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Path]:
    """Measure models with a fake worker; return the list of measured paths."""
    from qnnmem.htp import measure as measuring

    asked: list[Path] = []
    real = measuring.measure

    def measure(path: Path, *given: Any, **named: Any) -> Any:
        asked.append(path)
        lines = more.get("lines", ("Setting context 1 reserved space to 10546688",))
        worker: Any = ToldWorker(loading((0,), *lines))
        return real(path, *given, **{**named, "worker": worker})

    monkeypatch.setattr(measuring, "measure", measure)
    library = Library("2.7.0", "1.31.1", Path("libraries"))
    monkeypatch.setattr("qnnmem.htp.library.find_library", lambda: library)
    return asked


def test_a_bill_is_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated footprint of equal content comes from the cache, with equal numbers and a note."""
    asked = told_measure(monkeypatch)
    model, moved = tmp_path / "m.onnx", tmp_path / "moved.onnx"
    for path in (model, moved):
        path.write_bytes(small_convolution())
    words = ("--soc", "SM8650", "--cache", tmp_path / "kept")
    first = run(model, *words).stdout
    again = run(model, *words).stdout
    assert asked == [model]
    assert "from the cache" in again
    assert "from the cache" not in first
    shown = [line for line in again.splitlines() if "from the cache" not in line and line]
    assert shown == [line for line in first.splitlines() if line]
    values = [json.loads(run(path, *words, "--json").stdout) for path in (model, moved)]
    jsonschema.validate(values[0], load_schema("qnnmem.footprint/1"))
    assert [one.pop("from_cache") for one in values] == [True, True]
    assert {**values[0], "file": ""} == {**values[1], "file": ""}
    assert asked == [model]


@pytest.mark.parametrize(
    "change",
    [
        ("--soc", "SM8550"),
        ("--soc", "SM8650", "--vtcm-mb", "4"),
        ("--soc", "SM8650", "--cache", "other"),
    ],
)
def test_what_changes_a_bill_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    """Another SoC, setting or cache folder compiles again, and so does a corrupt cache entry."""
    monkeypatch.chdir(tmp_path)
    asked = told_measure(monkeypatch)
    model = tmp_path / "m.onnx"
    model.write_bytes(small_convolution())
    run(model, "--soc", "SM8650", "--cache", "kept")
    run(model, "--cache", "kept", *change) if "--cache" not in change else run(model, *change)
    assert len(asked) == 2
    for file in Path("kept").rglob("*.json"):
        file.write_text(file.read_text().replace('"graphs"', '"graph"'))
    run(model, "--soc", "SM8650", "--cache", "kept")
    assert len(asked) == 3


def test_a_bill_without_an_estimate_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bill without an estimate is not cached, since a later run may load the binary."""
    asked = told_measure(monkeypatch, lines=())
    model = tmp_path / "m.onnx"
    model.write_bytes(small_convolution())
    for _ in range(2):
        run(model, "--soc", "SM8650", "--cache", tmp_path / "kept")
    assert len(asked) == 2
