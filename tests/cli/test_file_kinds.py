"""Every verb with every kind of file: a refusal names the kind and the verbs that read it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import exit_code, run, sentence
from file_samples import SAMPLES, sample, write_samples

from qnnmem.cli.verbs import VERBS
from qnnmem.loader.file_kind import HEAD, KINDS, kind_of_bytes

FEW = {"empty", "onnx", "htp", "elf"}  # for a verb that starts a process for each file
FOLDER = Path(__file__).parents[2] / "examples"
Words = tuple[str | Path, ...]
# Each verb that takes a file, the kinds that it reads, and its command line.
CALLS: dict[str, tuple[str, set[str], Callable[[Path], Words]]] = {
    "plan": ("plan", set(), lambda f: ("plan", f)),
    "prepare": ("prepare", set(), lambda f: ("prepare", f, "-o", f"{f}.out")),
    "prepare for HTP": (
        "prepare",
        {"onnx", "dlc"},
        lambda f: ("prepare", "--backend", "htp", "--soc", "SM8650", f, "-o", f"{f}.out"),
    ),
    "inspect": ("inspect", set(), lambda f: ("inspect", f)),
    "footprint": ("footprint", set(), lambda f: ("footprint", f)),
    "qmem": ("qmem", set(), lambda f: ("qmem", f)),
    "fit": ("fit", set(), lambda f: ("fit", f, "--soc", "SM8650")),
    "sweep": ("sweep", set(), lambda f: ("sweep", f, "--soc", "SM8650", "--vary", "vtcm=1,2")),
    "place": ("place", set(), lambda f: ("place", f)),
    "doctor": ("doctor", set(), lambda f: ("doctor", f)),
    "lint": ("lint", {"config", "graphs", "json", "text", "genie", "genai"}, lambda f: ("lint", f)),
    "net-run": (
        "net-run",
        set(),
        lambda f: (
            *("net-run", "--backend", "libQnnLpai.so", "--retrieve_context", f),
            *("--input_list", f.parent / "list.txt", "--output_dir", f.parent / "out"),
        ),
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Write one file of every kind."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "list.txt").write_text("x.raw\n")
    return write_samples(folder)


@pytest.mark.parametrize("place", range(len(SAMPLES)), ids=[name for _, name, _ in SAMPLES])
def test_a_kind_is_found_by_content(place: int) -> None:
    """The kind of a file is detected from its content, not from its name."""
    assert kind_of_bytes(sample(place)[:HEAD]).name == SAMPLES[place][0]


@pytest.mark.parametrize("call", CALLS)
def test_a_verb_says_what_it_was_given(call: str, files: list[tuple[str, Path]]) -> None:
    """A file that a verb cannot read gives exit code 2 and names its kind and the right verb."""
    verb, takes, words = CALLS[call]
    for name, path in files:
        kind = KINDS[name]
        if kind.name in takes if takes else verb in kind.verbs:
            continue
        if call == "net-run" and name not in FEW:
            continue
        done = run(*words(path))
        said = done.output if done.exception is None else sentence(done)
        assert exit_code(done) == 2, (name, said)
        assert "healthy" not in said
        assert f" {kind.words}" in said, (name, said)
        if name != "empty":
            assert kind.readers in said, (name, said)
        assert not Path(f"{path}.out").exists()


@pytest.mark.parametrize("option", ["--binary", "--model"])
def test_a_doctor_given_another_file_beside_the_log_says_so(
    option: str, files: list[tuple[str, Path]]
) -> None:
    """A wrong file for --binary or --model is named, but the diagnosis still comes first."""
    binaries = {"htp", "epcontext", "pte", "litert", "litertlm"}
    takes = {"--binary": binaries, "--model": {"onnx", "tflite", "csv"}}[option]
    for name, path in files:
        if name in takes:
            continue
        done = run("doctor", FOLDER / "graph_limit.log", option, path)
        assert exit_code(done) == 1, (name, done.output)
        assert "mem_graph_limit" in done.output or "graph" in done.output
        assert path.name in done.output


def test_every_verb_of_the_table_is_one() -> None:
    """Every kind of file names existing verbs that read it, or a remedy."""
    for kind in KINDS.values():
        assert set(kind.verbs) <= set(VERBS)
        assert kind.verbs or kind.cure


def test_every_kind_has_a_sample() -> None:
    """Every kind of file but the four rarest has a sample."""
    rare = {"empty", "xml", "graphdef", "graphs"}
    assert {name for name, _, _ in SAMPLES} == set(KINDS) - rare


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\n\x1f\n\x05input\x12\x0bPlaceholder", "graphdef"),
        (b'{"graphs": [{"vtcm_mb": 8}]}', "graphs"),
        (b"<?xml version='1.0'?><a/>", "xml"),
        ("Zeitüberschreitung\n".encode("latin-1"), "text"),
        ("错误:内存不足\n".encode(), "text"),
        ("日志 2024-01-01 00:00:00 错误\n".encode("gbk"), "text"),
        ("log\n".encode("utf-16"), "text"),
        (b"\x1b[31mred\x1b[0m\n", "text"),
        (b"line\n" * 100 + bytes(40), "text"),
        (b"x", "text"),
        (b"\xff", "binary"),
        (b"\0", "binary"),
    ],
)
def test_other_beginnings(content: bytes, name: str) -> None:
    """Text in any encoding is text, even with a few NUL bytes at the end."""
    assert kind_of_bytes(content).name == name


def test_an_onnx_model_needs_no_name(tmp_path: Path) -> None:
    """An ONNX model is recognised under any name, compiled or not."""
    model, compiled = tmp_path / "weights.bin", tmp_path / "context.pb"
    model.write_bytes(sample(0))
    compiled.write_bytes(sample(1))
    assert exit_code(run("plan", model)) == 0
    for verb in ("inspect", "footprint", "qmem", "place"):
        assert exit_code(run(verb, compiled)) == 0


def test_a_context_far_behind_other_nodes_is_found(tmp_path: Path) -> None:
    """A compiled context after 3,000 other nodes of an ONNX model is found."""
    import onnx

    model = onnx.load_from_string(sample(1))
    compiled = model.graph.node.pop()
    for number in range(3000):
        model.graph.node.add(
            op_type="Relu", name=f"relu{number}", input=["x"], output=[f"n{number}"]
        )
    model.graph.node.append(compiled)
    path = tmp_path / "late.onnx"
    path.write_bytes(model.SerializeToString())
    for verb in ("inspect", "footprint", "qmem", "place"):
        assert exit_code(run(verb, path)) == 0


def test_one_bad_file_among_logs_is_left_out(tmp_path: Path) -> None:
    """A shared library among logs is reported as skipped, and the logs are still read."""
    library = tmp_path / "libx.so"
    library.write_bytes(b"\x7fELF" + bytes(99))
    done = run("doctor", FOLDER / "graph_limit.log", library)
    assert exit_code(done) == 1
    assert "skipped" in done.output
    assert "is a shared library" in done.output


def test_a_missing_file_is_said_alike_by_all(tmp_path: Path) -> None:
    """Every verb reports a missing file as `NAME: no such file` and exits with 2."""
    gone = tmp_path / "gone.bin"
    (tmp_path / "list.txt").write_text("x.raw\n")
    for call, (_, _, words) in CALLS.items():
        done = run(*words(gone))
        said = done.output if done.exception is None else sentence(done)
        assert exit_code(done) == 2, (call, said)
        assert f"{gone}: no such file" in said, (call, said)


@pytest.mark.parametrize(
    "words",
    [
        ("prepare", "model.onnx", "-o", "o.bin", "--config", "gone"),
        ("prepare", "model.onnx", "-o", "o.bin", "--quantize", "int8", "--calibration", "gone"),
        ("doctor", "--follow", "gone"),
        ("doctor", "--jobs", "2", "gone"),
        ("doctor", "gone/gone.log"),
        ("doctor", "model.onnx/gone"),
        ("doctor", "run.log", "--kb", "gone"),
        ("kb", "check", "--kb", "gone"),
        ("plan", "model.onnx/gone"),
        (
            *("net-run", "--backend", "libQnnLpai.so", "--retrieve_context", "lpai.bin"),
            *("--input_list", "gone"),
        ),
    ],
    ids=" ".join,
)
def test_files_that_options_name_are_missed_alike(
    words: tuple[str, ...], files: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file named by an option is reported with the same words."""
    monkeypatch.chdir(files[0][1].parent)
    done = run(*words)
    assert exit_code(done) == 2
    assert sentence(done).endswith(("gone: no such file", "gone.log: no such file"))


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", 2, "standard input is empty"),
        (sample(2), 2, "standard input is a TFLite model, which qnnmem doctor does not read"),
        (b"06-01 12:00:00.000  1  1 I QnnDsp: started\n" * 3, 0, "healthy"),
    ],
    ids=["empty", "tflite", "log"],
)
def test_what_comes_on_standard_input_is_looked_at(content: bytes, code: int, words: str) -> None:
    """The doctor refuses an empty pipe and a model on standard input with exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "qnnmem", "doctor", "-"], input=content, capture_output=True
    )
    assert done.returncode == code
    assert words in (done.stdout + done.stderr).decode()


def test_noise_is_no_text() -> None:
    """Random bytes are never taken for a log."""
    for seed in range(300):
        noise = random.Random(seed).randbytes(256 + 13 * seed)  # noqa: S311 - reproducible noise
        assert "doctor" not in kind_of_bytes(noise).verbs, seed


@pytest.mark.parametrize(
    ("text", "coding"),
    [
        ("E QnnDsp : Gerät nicht verfügbar, Fehler 1002\n" * 9, "latin-1"),
        ("E QnnDsp : 内存分配失败 1002\n" * 9, "gbk"),
        ("E QnnDsp : メモリ不足 1002\n" * 9, "shift-jis"),
        ("E QnnDsp : нет памяти 1002\n" * 9 + "\0" * 20, "cp1251"),
        ("\x1b[31mE QnnDsp : no memory\x1b[0m\n" * 9 + "\0" * 20, "ascii"),
    ],
)
def test_text_of_any_code_page_is_text(text: str, coding: str) -> None:
    """Text in any code page is text, even with NUL bytes at its end."""
    assert kind_of_bytes(text.encode(coding)).name == "text"


@pytest.mark.parametrize("end", range(6))
def test_a_short_message_without_latin_letters_is_text(end: int) -> None:
    """Text is recognised even if the inspected part ends inside a multi-byte character."""
    for text in ("не удалось создать контекст, недостаточно памяти", "内存不足无法创建上下文"):
        assert kind_of_bytes((text + "!" * end).encode()).name == "text"
        assert kind_of_bytes(text.encode()[: -1 - end]).name == "text"
