import random
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from qnnmem.errors import LoadError, UsageError
from qnnmem.loader.onnx import read, read_guarded
from qnnmem.loader.onnx.protobuf_wire import check_wire

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4] x, bool c) => (float[2,4] y)
<float[4] w = {1,2,3,4}, int64[2] s = {4,-1}>
{ h = Add(x, w) n = Shape(h) r = Reshape(h, s)
  e = If (c) <then_branch = t () => (float[4,2] u) { u = Relu(r) },
              else_branch = f () => (float[4,2] v) { v = Neg(r) }>
  y = Reshape(e, n) }"""


def small() -> onnx.ModelProto:
    """Return a model with a weight, a shape computation and a branch."""
    return onnx.parser.parse_model(TEXT)


def save(folder: Path, model: onnx.ModelProto) -> Path:
    """Write a model and return its path."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external(model: onnx.ModelProto, **entries: str) -> None:
    """Move the weight `w` into another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def test_external_data_next_to_the_model_is_accepted(tmp_path: Path) -> None:
    """A weight in a file beside the model keeps its size."""
    (tmp_path / "w.bin").write_bytes(bytes(24))
    model = small()
    external(model, location="w.bin", offset="8", length="16")
    assert read(save(tmp_path, model)).tensors["w"].nbytes == 16


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"location": "../w.bin"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "an absolute path"),
        ({"location": "C:\\w.bin"}, "an absolute path"),
        ({"location": "link.bin"}, "outside the model's folder"),
        ({"location": "absent.bin"}, "is missing"),
        ({"location": "folder"}, "not a regular file"),
        ({"location": ""}, "does not name a usable file"),
        ({"location": "w.bin", "length": "12"}, "stores 12 external bytes, but its shape needs 16"),
        ({"location": "w.bin", "offset": "1"}, "ends at byte 17, but 'w\\.bin' has only 16"),
        ({"location": "w.bin", "offset": "-1"}, "not a whole number of bytes"),
        ({"location": "w.bin", "offset": "9" * 40}, "not a whole number of bytes"),
    ],
)
def test_external_data_elsewhere_or_short_is_refused(
    tmp_path: Path, entries: dict[str, str], sentence: str
) -> None:
    """External data outside the model's folder or shorter than its shape is refused."""
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (folder / "w.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    model = small()
    external(model, **entries)
    with pytest.raises(LoadError, match=sentence):
        read_guarded(save(folder, model))


def _claim_terabytes(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 1 << 39


def _negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def _giant(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [1 << 39, 1 << 39]


def _twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "h"


def _absent(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "nobody"


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "r"


def _old(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 6


def _no_output(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def _lost_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "lost"


def _strange_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 77


def _long_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = "n" * 100_000


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_claim_terabytes, "stores 4 values, but its shape needs 549,755,813,888"),
        (_negative, "has an invalid dimension: -4"),
        (_giant, "takes more than"),
        (_twice, "tensor 'h' is defined twice"),
        (_absent, "reads 'nobody', which no node produces"),
        (_cycle, "has a cycle"),
        (_old, "operator set 6; 7 or newer"),
        (_no_output, "no outputs"),
        (_lost_output, "output 'lost' is not produced by any node"),
        (_strange_type, "element type 77, which is not supported"),
        (_long_name, "longer than 65,536 characters"),
    ],
)
def test_damaged_structure_is_refused_in_one_sentence(
    tmp_path: Path, damage: Callable[[onnx.ModelProto], None], sentence: str
) -> None:
    """Each kind of damage is refused in one line before another library reads the model."""
    model = small()
    damage(model)
    with pytest.raises(LoadError, match=sentence) as caught:
        read_guarded(save(tmp_path, model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", "input 'x' holds strings"),
        ("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", "input 'x' has sequence type"),
        (
            "(float[4] x) => (int64 y) { s = SplitToSequence(x) y = SequenceLength(s) }",
            "'s', output of 'SplitToSequence', is a sequence",
        ),
    ],
)
def test_what_is_no_tensor_of_numbers_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """Strings and sequences are refused, since they have no planned size."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    with pytest.raises(LoadError, match=sentence):
        read(save(tmp_path, model))


def test_an_input_of_giant_shape_is_refused(tmp_path: Path) -> None:
    """An input of 2**69 elements is refused before memory is allocated."""
    with pytest.raises(LoadError, match="'x' takes more than"):
        read(save(tmp_path, small()), shapes={"x": (1 << 30, 1 << 39)})


def test_a_trial_run_out_of_memory_is_a_sentence(tmp_path: Path) -> None:
    """A trial run that exceeds its memory limit becomes LoadError."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft": 1]>'
        "g (float[100000,100000,10] x) => (float[A,B,C] y) { y = com.microsoft.Gelu(x) }"
    )
    with pytest.raises(LoadError, match="trial run"):
        read(save(tmp_path, model))


def test_the_time_limit_ends_the_examination(tmp_path: Path) -> None:
    """A child process that exceeds the time limit is stopped with LoadError."""
    with pytest.raises(LoadError, match=r"did not finish within 0.001 s"):
        read(save(tmp_path, small()), time_limit_s=0.001)


def test_a_flood_of_empty_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with more protobuf messages than allowed is refused before parsing.

    A message of two bytes takes about a hundred in memory.
    """
    monkeypatch.setattr("qnnmem.loader.onnx.protobuf_wire.MAX_MESSAGES", 1000)
    node = b"\x0a\x00"  # field 1 of the graph: an empty node
    with pytest.raises(LoadError, match="more than 1,000 protobuf messages"):
        check_wire(tmp_path, wrap(7, node * 1001))


def test_bodies_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    """Graphs nested beyond the limit are refused before recursion."""
    graph = b""
    for _ in range(40):
        for field in (6, 5, 1):  # a graph in an attribute of a node
            graph = wrap(field, graph)
    with pytest.raises(LoadError, match="nested too deeply"):
        check_wire(tmp_path, wrap(7, graph))


def wrap(field: int, blob: bytes) -> bytes:
    """Return a protobuf field that holds these bytes."""
    size = bytes([len(blob) & 127 | 128, len(blob) >> 7])
    return bytes([field << 3 | 2]) + size + blob


def mutate(blob: bytes, chance: random.Random) -> bytes:
    """Return a copy with bytes cut, repeated or changed."""
    at, other = sorted(chance.randrange(len(blob)) for _ in range(2))
    kind = chance.randrange(4)
    if kind == 0:
        return blob[:at]
    if kind == 1:
        return blob[:at] + blob[at:other] + blob[at:]
    return blob[:at] + bytes([chance.randrange(256)]) + blob[at + 1 :]


def test_mutated_bytes_are_parsed_or_refused(tmp_path: Path) -> None:
    """Each of 600 mutated files ends in a model or in one line of LoadError."""
    chance = random.Random(7)  # noqa: S311 - reproducible, not secret
    blob, path = small().SerializeToString(), tmp_path / "model.onnx"
    refused = []
    for _ in range(600):
        path.write_bytes(mutate(blob, chance))
        try:
            read_guarded(path)
        except LoadError as exc:
            refused.append(str(exc))
    assert len(refused) > 300
    assert not any("\n" in sentence for sentence in refused)


def test_mutated_names_are_read_or_refused(tmp_path: Path) -> None:
    """Each of 12 models with a changed letter is read or refused in one line."""
    chance = random.Random(11)  # noqa: S311 - reproducible, not secret
    path, sentences = tmp_path / "model.onnx", []
    blob = small().SerializeToString()
    letters = [at for at in range(len(blob)) if chr(blob[at]).isalpha()]
    for _ in range(12):
        changed = bytearray(blob)
        changed[chance.choice(letters)] = ord(chance.choice("hxnrscyAR"))
        path.write_bytes(bytes(changed))
        try:
            sentences.append(read(path).outputs[0])
        except (LoadError, UsageError) as exc:
            sentences.append(str(exc))
    assert len(sentences) == 12
    assert not any("\n" in sentence for sentence in sentences)
