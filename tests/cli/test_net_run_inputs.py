"""`qnnmem net-run` with random inputs or arrays instead of an input list."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from command_line import exit_code, run, sentence, verb

from qnnmem.lpai import PrepareOptions, prepare
from qnnmem.lpai.binary import write
from qnnmem.lpai.net_run import files as net_run_files

ADD = "(float[2,3] a, float[2,3] b) => (float[2,3] y) { y = Add(a, b) }"
TOKENS = "(int64[4] ids) => (int64[4] y) { y = Add(ids, ids) }"
HALVES = """(uint8[4] x) => (uint8[4] y)
  <float s = {0.5}, uint8 z = {3}>
  { f = DequantizeLinear(x, s, z) r = Relu(f) y = QuantizeLinear(r, s, z) }"""
TWINS = '(float[2] "a b", float[2] a_b) => (float[2] y) { y = Sub("a b", a_b) }'

Made = Callable[..., Path]
net_run = verb("net-run")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a function that prepares graphs by name, each once."""
    folder = tmp_path_factory.mktemp("binaries")

    def make(**graphs: str) -> Path:
        path = folder / f"{'-'.join(graphs)}.bin"
        if not path.exists():
            files = {}
            for name, text in graphs.items():
                head = '<ir_version: 8, opset_import: ["" : 18]> g '
                files[name] = folder / f"{name}.onnx"
                onnx.save(onnx.parser.parse_model(head + text), files[name])
            write(prepare(files, PrepareOptions(allow_float=True)).context, path)
        return path

    return make


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(folder: str) -> list[str]:
    """Return every file below a folder, hidden files included."""
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def last_line(done: Result) -> str:
    """Return the last line of standard error."""
    return done.stderr.splitlines()[-1]


def test_random_inputs_run_and_the_last_line_says_where_everything_is(binary: Made) -> None:
    """`--random-inputs` writes inputs and a list; a run with that list gives the same results."""
    file = binary(add=ADD)
    done = net_run(file, "--random-inputs", "2")
    assert exit_code(done) == 0
    assert last_line(done) == "Wrote 8 files to output (2 of results, 5 of inputs)"
    assert files_in("output") == [
        *("Input_0/a.raw", "Input_0/b.raw", "Input_1/a.raw", "Input_1/b.raw"),
        *("Result_0/y.raw", "Result_1/y.raw", "execution_metadata.yaml", "input_list.txt"),
    ]
    lines = Path("output/input_list.txt").read_text().splitlines()
    assert lines[1] == "a:=output/Input_1/a.raw b:=output/Input_1/b.raw"
    assert lines[1] in done.stdout
    again = ("--input_list", "output/input_list.txt", "--output_dir", "again")
    assert last_line(net_run(file, *again)) == "Wrote 3 files to again (2 of results)"
    for name in ("Result_0/y.raw", "Result_1/y.raw"):
        assert Path("again", name).read_bytes() == Path("output", name).read_bytes()
    assert Path("output/Result_0/y.raw").read_bytes() != Path("output/Result_1/y.raw").read_bytes()


def test_the_seed_alone_decides_what_is_made_up(binary: Made) -> None:
    """The same seed gives the same random inputs; another seed gives others."""
    for seed, folder in (("1", "one"), ("1", "same"), ("2", "other")):
        net_run(binary(add=ADD), "--random-inputs", "1", "--seed", seed, "--output_dir", folder)
    made = {name: Path(name, "Input_0/a.raw").read_bytes() for name in ("one", "same", "other")}
    assert made["one"] == made["same"] != made["other"]


@pytest.mark.parametrize("native", [True, False])
def test_made_up_numbers_are_some_that_a_quantized_input_can_store(
    native: bool, binary: Made
) -> None:
    """Random inputs of a quantized tensor are values that its 8 bits can represent."""
    flags = ("--use_native_input_files", "--use_native_output_files") if native else ()
    done = net_run(binary(halves=HALVES), "--random-inputs", "20", *flags)
    assert exit_code(done) == 0
    kind = np.uint8 if native else np.dtype("<f4")
    files = Path("output").glob("Input_*/x.raw")
    values = np.concatenate([np.fromfile(file, kind) for file in files]).astype(float)
    stored = values if native else values / 0.5 + 3
    assert values.size == 80
    assert (stored == np.rint(stored)).all()
    assert 0 <= stored.min() < 64
    assert 192 <= stored.max() <= 255


def test_every_graph_has_inputs_of_its_own(binary: Made) -> None:
    """Each graph's folder holds its list, inputs and results; `__` skips a graph."""
    file = binary(add=ADD, halves=HALVES)
    assert exit_code(net_run(file, "--random-inputs", "1")) == 0
    assert files_in("output") == [
        *("add/Input_0/a.raw", "add/Input_0/b.raw", "add/Result_0/y.raw", "add/input_list.txt"),
        "execution_metadata.yaml",
        *("halves/Input_0/x.raw", "halves/Result_0/y.raw", "halves/input_list.txt"),
    ]
    np.save("x.npy", np.ones(4, "f4"))
    skipped = net_run(file, "--inputs", "__", "--inputs", "x.npy", "--output_dir", "one")
    assert exit_code(skipped) == 0
    assert not Path("one/add").exists()
    once = net_run(file, "--inputs", "x.npy")
    assert "--inputs occurs once for 2 graphs ('add', 'halves')" in sentence(once)
    both = net_run(file, "--inputs", "__", "--inputs", "__")
    assert "skips all graphs" in sentence(both)


def test_arrays_become_input_files(binary: Made) -> None:
    """`--inputs` accepts an archive, a folder with one sample and a folder of samples."""
    a, b = np.arange(6, dtype="f8").reshape(2, 3), np.ones((2, 3), "f4")
    np.savez("both.npz", a=a, b=b)
    Path("sample").mkdir()
    np.save("sample/a.npy", a)
    np.save("sample/b.npy", b)
    Path("samples").mkdir()
    for number in range(2):
        np.savez(f"samples/{number}.npz", a=a + number, b=b)
    for place, count in (("both.npz", 1), ("sample", 1), ("samples", 2)):
        done = net_run(binary(add=ADD), "--inputs", place, "--output_dir", f"of_{place}")
        assert exit_code(done) == 0, done.stderr
        results = sorted(Path(f"of_{place}").glob("Result_*/y.raw"))
        assert len(results) == count
        assert np.array_equal(np.fromfile(results[0], "<f4"), (a + b).astype("f4").ravel())


def test_the_current_folder_may_hold_samples_and_results(binary: Made) -> None:
    """With `--inputs .`, the output folder inside is not read as a sample."""
    np.savez("0.npz", a=np.ones((2, 3), "f4"), b=np.ones((2, 3), "f4"))
    for _ in range(2):
        done = net_run(binary(add=ADD), "--inputs", ".")
        assert exit_code(done) == 0
        assert "1 of results" in last_line(done)


def test_integers_for_a_quantized_input_are_not_guessed_at(binary: Made) -> None:
    """Integers for a quantized float input are refused without --use_native_input_files."""
    file = binary(halves=HALVES)
    np.save("x.npy", np.array([0, 3, 9, 255], np.uint8))
    refused = net_run(file, "--inputs", "x.npy")
    assert exit_code(refused) == 2
    assert "uint8 given, float32 of shape 4 expected" in sentence(refused)
    assert not Path("output").exists()
    native = ("--use_native_input_files", "--use_native_output_files")
    assert exit_code(net_run(file, "--inputs", "x.npy", *native)) == 0
    found = np.fromfile("output/Result_0/y_native.raw", np.uint8)
    assert found.tolist() == [3, 3, 9, 255]


def test_whole_numbers_stay_what_they_are(binary: Made) -> None:
    """Integers that float32 cannot hold are refused without --use_native_input_files."""
    file = binary(tokens=TOKENS)
    np.save("ids.npy", np.array([1, 2, 3, (1 << 24) + 1]))
    refused = net_run(file, "--inputs", "ids.npy")
    assert exit_code(refused) == 2
    assert "float32 cannot hold; --use_native_input_files" in sentence(refused)
    native = ("--use_native_input_files", "--use_native_output_files")
    assert exit_code(net_run(file, "--inputs", "ids.npy", *native)) == 0
    assert np.fromfile("output/Result_0/y_native.raw", "<i8")[-1] == (1 << 25) + 2


def test_names_that_are_one_as_words_are_listed_by_position(binary: Made) -> None:
    """Inputs whose names give the same file name get separate files."""
    Path("x").mkdir()
    np.save("x/a b.npy", np.full(2, 5, "f4"))
    np.save("x/a_b.npy", np.full(2, 2, "f4"))
    done = net_run(binary(twins=TWINS), "--inputs", "x")
    assert exit_code(done) == 0
    assert np.fromfile("output/Result_0/y.raw", "<f4").tolist() == [3, 3]


def test_nothing_is_replaced_without_force(binary: Made) -> None:
    """Equal inputs may be written again; different inputs are refused without --force."""
    file = binary(add=ADD)
    net_run(file, "--random-inputs", "1")
    assert exit_code(net_run(file, "--random-inputs", "1")) == 0
    before = {name: Path("output", name).read_bytes() for name in files_in("output")}
    refused = net_run(file, "--random-inputs", "2", "--seed", "7")
    assert exit_code(refused) == 2
    assert "already exists; --force replaces it" in sentence(refused)
    assert {name: Path("output", name).read_bytes() for name in files_in("output")} == before
    assert exit_code(net_run(file, "--random-inputs", "2", "--seed", "7", "--force")) == 0
    assert Path("output/Input_0/a.raw").read_bytes() != before["Input_0/a.raw"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--input_list is missing; --random-inputs 1 generates"),
        (
            ("--random-inputs", "1", "--inputs", "x"),
            "--random-inputs and --inputs cannot be combined",
        ),
        (("--random-inputs", "1", "--input_list", "x"), "--input_list and --random-inputs cannot"),
        (
            ("--random-inputs", "0"),
            ("--random-inputs cannot be '0'; it must be a whole number from 1 to"),
        ),
        (("--random-inputs", "1", "--output_dir", "my output"), "spaces, line ends and :="),
        (("--inputs", "nowhere.npy"), "nowhere.npy: no such file"),
        (("--random-inputs", "1", "--retrieve_context", "b.bin"), "named twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_nothing(
    words: tuple[str, ...], said: str, binary: Made
) -> None:
    """Invalid input options give exit code 2 and one sentence, without an output folder."""
    done = net_run(binary(add=ADD), *words)
    assert exit_code(done) == 2
    assert said in sentence(done)
    assert list(Path().iterdir()) == []


def test_too_much_is_refused_before_it_is_made(
    binary: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random inputs over the size limit are refused before any file is written."""
    monkeypatch.setattr(net_run_files, "LARGEST", 100)
    done = net_run(binary(add=ADD), "--random-inputs", "3")
    assert exit_code(done) == 2
    assert "3 inferences need 144 B of input files, over the limit of 100 B" in sentence(done)
    assert list(Path().iterdir()) == []


def test_the_binary_is_asked_for_by_name() -> None:
    """Without a binary, the sentence names --retrieve_context and `qnnmem prepare`."""
    said = sentence(net_run("--random-inputs", "1"))
    assert "--retrieve_context is missing: name a context binary, which `qnnmem prepare`" in said


def test_what_prepare_recommends_runs_as_it_is(desk: Path) -> None:
    """The inspect and run commands that `prepare` recommends work when pasted."""
    head = '<ir_version: 8, opset_import: ["" : 18]> g '
    for name in ("my model", "other"):
        onnx.save(onnx.parser.parse_model(head + ADD), f"{name}.onnx")
    for files in (["my model.onnx"], ["my model.onnx", "other.onnx"]):
        target = f"{len(files)} graphs.bin"
        said = run("prepare", *files, "--quantize", "int8", "-o", target).stdout
        lines = [line for line in said.splitlines() if " qnnmem " in line]
        assert [line.split()[0] for line in lines] == ["inspect", "run"]
        for line in lines:
            words = shlex.split(line[line.index("qnnmem") :])
            assert exit_code(run(*words[1:])) == 0, line
