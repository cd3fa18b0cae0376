"""`--value` on the command line, and recommended commands that work when pasted."""

import json
import shlex
from pathlib import Path

import click
import numpy
import onnx
import onnx.parser
import pytest
from command_line import Answer, ask, exit_code, run, sentence
from onnx import numpy_helper

from qnnmem.cli.recorded_args import retry_command
from qnnmem.cli.verbs import Verbs
from qnnmem.errors import Setting, UsageError
from qnnmem.htp.compile import CompileOptions, model_source
from qnnmem.htp.compile_cache import settings_of
from qnnmem.loader.onnx.inputs import InputValue
from qnnmem.options import parsers

# A small detector: a rate selects the branch, the window has a minimum, a state is kept.
DETECTOR = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[1,?] input, float[1,?,4] state, int64 sr) => (float[1,4] output, float[1,1,4] stateN)
    <int64 rate = {16000}, int64[1] one = {1}, int64[2] row = {1, -1}> {
        c = Equal(sr, rate)
        output, stateN = If (c) <
            then_branch = t () => (float[1,4] a, float[1,1,4] b) {
                u = Unsqueeze(input, one)
                f = Conv(u, wide)
                m = ReduceMean<keepdims=0>(f, two)
                s = Squeeze(state, zero)
                n = Add(m, s)
                a = Relu(n)
                b = Unsqueeze(n, zero)
            },
            else_branch = e () => (float[1,4] p, float[1,1,4] q) {
                v = Unsqueeze(input, one)
                g = Conv(v, narrow)
                h = ReduceMean<keepdims=0>(g, two)
                z = Squeeze(state, zero)
                k = Sub(h, z)
                p = Relu(k)
                q = Unsqueeze(k, zero)
            }
        >
    }
"""


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """Return a model file whose name needs quotes."""
    model = onnx.parser.parse_model(DETECTOR)
    random = numpy.random.default_rng(0)
    for name, array in (
        ("wide", random.random((4, 1, 200)).astype("float32")),
        ("narrow", random.random((4, 1, 100)).astype("float32")),
        ("zero", numpy.array([0])),
        ("two", numpy.array([2])),
    ):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path = tmp_path / "my detector.onnx"
    path.write_bytes(model.SerializeToString())
    return path


FIXED = ("--shape", "input=1x576", "--shape", "state=1x1x4")


def recommended(done: Answer) -> list[str]:
    """Return the words of the command that a refusal suggests."""
    line = next(line for line in done.err.splitlines() if line.startswith("try: "))
    words = shlex.split(line.removeprefix("try: "))
    assert words[0] == "qnnmem"
    return words[1:]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sr=16000", ("sr", 16000)),
        ("a=b=-3", ("a=b", -3)),
        ("x=0.5", ("x", 0.5)),
        ("x=1e-3", ("x", 0.001)),
        ("flag=true", ("flag", True)),
        ("flag=False", ("flag", False)),
        ("ids=1,2, 3", ("ids", (1, 2, 3))),
        ("m=@a.bin", ("m", Path("a.bin"))),
        ("m=dir/a.npy", ("m", Path("dir/a.npy"))),
        ("m=a.RAW", ("m", Path("a.RAW"))),
    ],
)
def test_what_a_value_means(text: str, wanted: tuple[str, InputValue]) -> None:
    """`--value` accepts numbers, lists, true and false, and files."""
    assert parsers.value(text) == wanted
    assert type(parsers.value(text)[1]) is type(wanted[1])


@pytest.mark.parametrize(
    "text", ["sr", "sr=", "=1", "sr=abc", "sr=1,,2", "sr=1_0", "sr=0x10", "a=٣"]
)
def test_what_is_no_value(text: str) -> None:
    """An invalid value is refused with the expected form."""
    with pytest.raises(UsageError, match=r"form input=value|has no value; write a number"):
        parsers.value(text)


def test_every_verb_that_takes_shapes_takes_values() -> None:
    """Every verb with `--shape` also has `--value`."""
    for name, verb in Verbs().items():
        found = {option for item in _params(verb) for option in item.opts}
        assert ("--shape" in found) == ("--value" in found), name


def _params(command: click.Command) -> list[click.Parameter]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(item for one in inner for item in _params(one))]


def test_the_recommended_command_works_and_keeps_what_was_asked(detector: Path) -> None:
    """The command that the refusal suggests keeps all options and works."""
    done = ask("plan", str(detector), "--budget", "scratch=100", "--format=json")
    assert done.code == 2
    words = recommended(done)
    assert words[:5] == ["plan", str(detector), "--budget", "scratch=100", "--format=json"]
    assert "--value=sr=16000" in words
    again = ask(*words)
    assert again.code == 1, again.err  # the budget still applies
    assert json.loads(again.out)


def test_a_size_that_does_not_fit_is_replaced_in_the_command(detector: Path) -> None:
    """The suggested command replaces the wrong shape and keeps the other options."""
    done = ask(
        "plan", "--shape", "input=1x64", str(detector), "--shape=state=1x1x4", "--value", "sr=16000"
    )
    assert "dimension 1 of input 'input' is 64 but must be at least 200" in done.err
    words = recommended(done)
    assert "input=1x64" not in words
    assert ask(*words).code == 0


def test_a_planned_detector_has_one_branch(detector: Path) -> None:
    """A fixed rate removes the other branch; without it, the refusal suggests a value."""
    done = run("plan", detector, *FIXED, "--value", "sr=16000", "--state", "state=stateN")
    assert exit_code(done) == 0, done.output
    assert "--value sr=16000" in done.output
    small = run("plan", detector, "--shape", "input=1x150", "--shape", "state=1x1x4")
    assert "'sr' decides which branch is taken; the model runs with" in sentence(small)
    assert sentence(small).endswith("--value sr=8000")


@pytest.mark.parametrize("how", [("--float",), ("--quantize", "int8"), ("--quantize", "int16")])
def test_a_detector_is_prepared_with_its_state(
    detector: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    """A value given once also applies to the quantized model."""
    out = tmp_path / "d.bin"
    words = (*FIXED, "--value", "sr=16000", "--state", "state=stateN", *how)
    done = run("prepare", detector, *words, "-o", out)
    assert exit_code(done) == 0, sentence(done)
    assert "1 state pair" in done.output
    assert out.exists()


def test_a_wrong_value_is_one_sentence(detector: Path) -> None:
    """A wrong name, type, shape or file in `--value` is refused with one sentence."""
    for text, words in (
        ("Sr=1", "did you mean 'sr'?"),
        ("sr=1.5", "needs whole numbers (int64), not 1.5"),
        ("sr=1,2", "has 2 elements, but the input's shape is scalar"),
        ("sr=@absent.npy", "absent.npy"),
    ):
        done = run("plan", detector, *FIXED, "--value", text)
        assert exit_code(done) == 2
        assert words in sentence(done)


def test_a_model_with_a_value_is_compiled_as_a_copy(detector: Path, tmp_path: Path) -> None:
    """HTP compiles a copy in which the input is a constant and one branch remains."""
    shapes = {"input": (1, 576), "state": (1, 1, 4)}
    options = CompileOptions(shapes=shapes, values={"sr": 16000})
    source = model_source(detector, options, tmp_path)
    model = onnx.load(source.model)
    assert [item.name for item in model.graph.input] == ["input", "state"]
    assert "If" not in {node.op_type for node in model.graph.node}


def test_results_of_a_sweep_differ_by_value(tmp_path: Path) -> None:
    """Sweep results are cached by the content of a value file, not by its name."""
    file = tmp_path / "v.npy"
    numpy.save(file, numpy.array(1))
    keys = [settings_of(CompileOptions(values={"v": value}))["value v"] for value in (1, 2, file)]
    numpy.save(file, numpy.array(2))
    keys.append(settings_of(CompileOptions(values={"v": file}))["value v"])
    assert len(set(keys)) == 4
    assert "value v" not in settings_of(CompileOptions())


def test_a_command_is_repeated_with_settings() -> None:
    """A new setting replaces options of the same name in any spelling."""
    words = ["plan", "a b.onnx", "--dim", "N=1", "--dim=M=2", "--shape", "x=1x2", "--seed", "3"]
    new = [Setting("dims", "N=5"), Setting("values", "sr=-1")]
    assert retry_command(words, new) == (
        "qnnmem plan 'a b.onnx' --dim=M=2 --shape x=1x2 --seed 3 --dim=N=5 --value=sr=-1"
    )
    assert retry_command(["plan", "--", "-a.onnx"], new[:1]) == "qnnmem plan --dim=N=5 -- -a.onnx"


CANNOT = {
    "If 'y' cannot be quantized": "y = If (c) <then_branch = t () => (float[4] a) { a = Relu(x) }, "
    "else_branch = e () => (float[4] b) { b = Neg(x) }>",
    "Loop 'y' cannot be quantized": "y = Loop(n, t, x) <body = b (int64 i, bool g, float[4] a) => "
    "(bool g2, float[4] a2) { g2 = Identity(g) a2 = Relu(a) }>",
    "as DynamicQuantizeLinear 'q' shows": "q, s, z = DynamicQuantizeLinear(x) "
    "y = DequantizeLinear(q, s, z)",
    "Relu 'h' computes in float16": "k = Cast<to=10>(x) h = Relu(k) y = Cast<to=1>(h)",
    "Own 'y' of domain 'custom'": "y = custom.Own(x)",
}


@pytest.mark.parametrize("words", CANNOT)
def test_what_cannot_be_quantized_names_operator_node_and_way_out(
    tmp_path: Path, words: str
) -> None:
    """The refusal names operator and node, and does not suggest to quantize."""
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "custom" : 1]> '
        "g (float[4] x, bool c, int64 n) => (float[4] y) <bool t = {1}> {"
        f"{CANNOT[words]} }}"
    )
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(text)
    path.write_bytes(model.SerializeToString())
    for how in ((), ("--quantize", "int8")):
        done = run("prepare", path, *how, "-o", tmp_path / "m.bin")
        assert exit_code(done) == 2
        # The quantizer names nameless nodes.
        assert words in sentence(done).replace("'If_0'", "'y'").replace("'Loop_0'", "'y'")
        assert "--quantize" not in sentence(done)
    assert not (tmp_path / "m.bin").exists()


def test_the_value_that_takes_an_if_away_lets_the_model_be_quantized(tmp_path: Path) -> None:
    """The suggested value removes the If, so that the model can be quantized."""
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x, bool c) => (float[4] y) {'
        f"{CANNOT[next(iter(CANNOT))]} }}"
    )
    path.write_bytes(model.SerializeToString())
    done = ask("prepare", str(path), "--quantize", "int8", "-o", str(tmp_path / "m.bin"))
    assert ask(*recommended(done)).code == 0
