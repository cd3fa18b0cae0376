"""`qnnmem plan`: options, output files, refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jsonschema
import onnx.parser
import pytest
from command_line import exit_code, sentence, verb
from command_line import run as command

from qnnmem.loader.csv import read as read_csv
from qnnmem.report.page.sections import section_of
from qnnmem.results.schema import load_schema
from qnnmem.units import Bytes

ROWS = "id,lower,upper,size\na,0,3,4\nb,2,6,4\n"
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,50] x, float[3] h_in) => (float[2,50] y, float[3] h_out) <float[50] w>
{ a = Add(x, w) b = Relu(a) y = Mul(a, b) h_out = Tanh(h_in) }"""
FREE = """<ir_version: 8, opset_import: ["" : 18]>
g (float["batch size", n, 50] x, float[?] z) => (float[k] y) { a = Relu(x) y = Neg(z) }"""


run = verb("plan")


def buffers(folder: Path, content: str = ROWS) -> Path:
    """Write a list of buffers."""
    path = folder / "buffers.csv"
    path.write_text(content, "utf-8")
    return path


def model(folder: Path, text: str = MODEL) -> Path:
    """Write an ONNX model."""
    text = text.replace("<float[50] w>", f"<float[50] w = {{{','.join('1' * 50)}}}>")
    text = text.replace('"batch size"', "batch_size")
    made = onnx.parser.parse_model(text)
    for item in made.graph.input:
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param == "batch_size":
                dim.dim_param = "batch size"  # the text format cannot hold a space
    path = folder / "a model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_the_verdict_is_the_first_line(tmp_path: Path) -> None:
    """The first line states the scratch size and its proof."""
    result = run(buffers(tmp_path))
    assert (exit_code(result), result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "scratch 8 bytes, proven minimal for these lifetimes"


def test_a_model_is_planned_with_all_its_pools(tmp_path: Path) -> None:
    """A model's report shows scratch, persistent, IO and constants."""
    result = run(model(tmp_path), "--state", "h_in=h_out", "--io", "outside", "-v")
    assert exit_code(result) == 0
    words = [line.split()[0] for line in result.stdout.splitlines() if line]
    assert {"scratch", "persistent", "io", "constants"} <= set(words)


def test_json_satisfies_the_schema(tmp_path: Path) -> None:
    """The JSON of a model and of a buffer list follows the schema."""
    for path in (model(tmp_path), buffers(tmp_path)):
        values = json.loads(run(path, "--format", "json").stdout)
        jsonschema.Draft202012Validator(load_schema("qnnmem.plan/1")).validate(values)
        assert values["input"] == str(path)


def test_bits_shrink_floats_only(tmp_path: Path) -> None:
    """`--bits 8` plans float tensors with a quarter of their bytes."""
    wide = json.loads(run(model(tmp_path), "--align", "1", "--format", "json").stdout)
    narrow = json.loads(
        run(model(tmp_path), "--align", "1", "--bits", "8", "--format", "json").stdout
    )
    assert wide["scratch_bytes"] == 4 * narrow["scratch_bytes"]


@pytest.mark.parametrize(
    ("option", "code", "first"),
    [
        ("scratch=1M", 0, "fits: scratch takes"),
        ("scratch=256", 1, "does not fit: scratch needs at least"),
        ("constants=1", 1, "does not fit: constants need at least 200 bytes"),
        ("persistent=0", 0, "fits: persistent takes 0 of 0 bytes"),
    ],
)
def test_a_budget_decides_the_exit_code(option: str, code: int, first: str, tmp_path: Path) -> None:
    """A pool within its budget gives exit code 0, a pool over its budget 1."""
    result = run(model(tmp_path), "--budget", option)
    assert exit_code(result) == code
    assert result.stdout.startswith(first)


def test_one_broken_budget_is_enough(tmp_path: Path) -> None:
    """One exceeded budget of several gives exit code 1."""
    result = run(model(tmp_path), "--budget", "scratch=1M", "--budget", "constants=1")
    assert exit_code(result) == 1


def test_an_undecided_budget_ends_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the search cannot decide a budget in time, the exit code is 3."""
    module = import_module("qnnmem.planner.model_plan")
    honest = module.plan_model

    def interrupted(*args: object, **options: object) -> object:
        made = honest(*args, **options)
        budget = replace(made.budgets[0], need=Bytes(200), at_least=Bytes(50))
        return replace(made, budgets=(budget,))

    monkeypatch.setattr(module, "plan_model", interrupted)
    result = run(buffers(tmp_path), "--capacity", "100")
    assert exit_code(result) == 3
    assert result.stdout.startswith("cannot tell whether it fits: ")


def test_a_capacity_that_suffices_ends_with_0(tmp_path: Path) -> None:
    """A buffer list within its capacity gives exit code 0."""
    result = run(buffers(tmp_path), "--capacity", "8")
    assert (exit_code(result), result.stdout.splitlines()[0]) == (
        0,
        "fits: scratch takes 8 of 8 bytes",
    )


def test_a_capacity_that_does_not_names_the_culprits(tmp_path: Path) -> None:
    """A buffer list over its capacity gives exit code 1 and buffers that do not fit together."""
    path = buffers(tmp_path, f"{ROWS}bystander,9,10,1\n")
    result = run(path, "--capacity", "7", "--format", "json")
    assert exit_code(result) == 1
    (budget,) = json.loads(result.stdout)["budgets"]
    assert (budget["fits"], sorted(budget["blockers"])) == (False, ["a", "b"])


def test_a_list_without_buffers_fits_nowhere(tmp_path: Path) -> None:
    """A buffer list without rows gives exit code 2."""
    result = run(buffers(tmp_path, "id,lower,upper,size\n"), "--capacity", "0")
    assert (exit_code(result), result.stdout) == (2, "")
    assert "the CSV has a header line but no buffers" in str(result.exception)


def test_csv_keeps_the_rows_and_adds_offsets(tmp_path: Path) -> None:
    """CSV output keeps order and text of the rows and adds an offset column."""
    content = "id,lower,upper,size,alignment\nb 1,-2,3,10,4\na,2,6,7,1\n"
    result = run(buffers(tmp_path, content), "--format", "csv")
    lines = result.stdout.splitlines()
    assert lines[0] == "id,lower,upper,size,alignment,offset"
    assert [line.rpartition(",")[0] for line in lines[1:]] == content.splitlines()[1:]


def test_the_csv_of_a_model_can_be_planned_again(tmp_path: Path) -> None:
    """The CSV of a model's scratch buffers can be planned again and needs the same bytes."""
    out = tmp_path / "out.csv"
    first = run(model(tmp_path), "--format", "csv", "-o", out)
    assert exit_code(first) == 0
    assert all(buffer.offset is not None for buffer in read_csv(out).buffers)
    again = json.loads(run(out, "--format", "json").stdout)
    whole = json.loads(run(model(tmp_path), "--format", "json").stdout)
    assert again["scratch_bytes"] == whole["scratch_bytes"]


def test_a_file_is_written_and_named_on_standard_error(tmp_path: Path) -> None:
    """With -o, standard output is empty and standard error names the written file."""
    out = tmp_path / "out.json"
    result = run(buffers(tmp_path), "--format", "json", "-o", out)
    assert (result.stdout, result.stderr) == ("", f"Wrote {out}\n")
    assert json.loads(out.read_text())["scratch_bytes"] == 8


def test_a_file_is_never_overwritten_unasked(tmp_path: Path) -> None:
    """An existing file is kept without --force, and the sentence names --force."""
    out = tmp_path / "out.txt"
    out.write_text("precious")
    result = run(buffers(tmp_path), "-o", out)
    assert (exit_code(result), out.read_text()) == (2, "precious")
    assert sentence(result) == f"{out} already exists; --force replaces it"


def test_force_replaces_a_file(tmp_path: Path) -> None:
    """`--force` replaces the file and leaves no temporary file."""
    out = tmp_path / "out.txt"
    out.write_text("old")
    assert exit_code(run(buffers(tmp_path), "-o", out, "--force")) == 0
    assert out.read_text().startswith("scratch 8 bytes")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["buffers.csv", "out.txt"]


def test_a_file_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """An output file in a missing folder is refused; the folder is not created."""
    out = tmp_path / "missing" / "out.txt"
    result = run(buffers(tmp_path), "-o", out)
    assert exit_code(result) == 2
    assert sentence(result) == f"{out} cannot be written: No such file or directory"
    assert not out.parent.exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_folder_is_never_replaced(force: tuple[str, ...], tmp_path: Path) -> None:
    """A folder is never replaced, even with --force."""
    out = tmp_path / "folder"
    out.mkdir()
    result = run(buffers(tmp_path), "-o", out, *force)
    assert (exit_code(result), list(out.iterdir())) == (2, [])
    assert "is not a regular file" in sentence(result)


def test_force_replaces_ordinary_files_only(tmp_path: Path) -> None:
    """A pipe or a link is not replaced, even with --force."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "elsewhere")
    for out in (pipe, link):
        before = stat.S_IFMT(out.lstat().st_mode)
        result = run(buffers(tmp_path), "-o", out, "--force")
        assert exit_code(result) == 2
        assert stat.S_IFMT(out.lstat().st_mode) == before
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("failing", ["write", "replace"])
def test_a_file_appears_whole_or_not_at_all(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the old file remains, without a partial new file."""
    out = tmp_path / "out.txt"
    out.write_text("old")

    def fail(*args: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    if failing == "write":
        monkeypatch.setattr("qnnmem.atomic_file._fill", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    result = run(buffers(tmp_path), "-o", out, "--force")
    monkeypatch.undo()
    assert sentence(result) == f"{out} cannot be written: No space left on device"
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["buffers.csv", "out.txt"]


def test_nothing_is_written_for_an_unreadable_model(tmp_path: Path) -> None:
    """An unreadable input leaves no output file."""
    out = tmp_path / "out.txt"
    assert exit_code(run(buffers(tmp_path, "nonsense"), "-o", out)) == 2
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dim", "batch"), "'batch' is not of the form dimension=number"),
        (("--dim", "=1"), "'=1' is not of the form dimension=number"),
        (("--dim", "batch=-1"), "'-1' is not a whole number from 0 to"),
        (("--dim", "batch=1e3"), "'1e3' is not a whole number from 0 to"),
        (("--dim", "batch=٣"), "'٣' is not a whole number from 0 to"),
        (("--dim", f"batch={'9' * 5000}"), "is not a whole number from 0 to"),
        (("--shape", "x"), "'x' is not of the form tensor=1x3x224x224"),
        (("--shape", "x=1xx2"), "'' is not a whole number from 0 to"),
        (("--shape", "x=1x-2"), "'-2' is not a whole number from 0 to"),
        (("--budget", "scratch"), "'scratch' is not of the form pool=size"),
        (("--budget", "scratch=lots"), "'lots' is not a size"),
        (("--budget", "scratch=9999999999G"), "is larger than"),
        (("--budget", "vtcm=1M"), "'vtcm' is not a pool; choose one of scratch, persistent, io"),
        (("--state", "h_in"), "'h_in' is not of the form input=output"),
        (("--state", "h_in=y2"), "--state h_in=y2: expected input=output; inputs are x, h_in"),
        (("--state", "h_in=y"), "--state h_in=y: float32 3 and float32 2x50 differ"),
        (("--capacity", "1K"), "--capacity is for a buffer CSV; for a model use --budget"),
        (("--align", "0"), "--align cannot be '0'; it must be a whole number from 1 to"),
        (("--bits", "4"), "--bits cannot be '4'; it must be 8, 16 or 32"),
        (("--io", "nowhere"), "--io cannot be 'nowhere'; it must be inside or outside"),
        (("--time-limit", "-1"), "'-1' is not a number of seconds"),
        (("--time-limit", "nan"), "'nan' is not a number of seconds"),
        (("--time-limit", "inf"), "'inf' is not a number of seconds"),
        (("--seed", "-1"), "--seed cannot be '-1'; it must be a whole number from 0 to"),
        (("--dim", "unknown=1"), "unknown"),
        (("--shape", "unknown=1"), "unknown"),
        (("--shape", "x=2x51"), "x"),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence(
    options: tuple[str, str], words: str, tmp_path: Path
) -> None:
    """An invalid option value gives exit code 2 and one sentence about the fault."""
    result = run(model(tmp_path), *options)
    assert (exit_code(result), result.stdout) == (2, "")
    assert words in sentence(result)
    assert "\n" not in sentence(result)


@pytest.mark.parametrize(
    "options",
    [
        ("--state", "a=b"),
        ("--io", "outside"),
        ("--bits", "8"),
        ("--inplace",),
        ("--reorder",),
        ("--dim", "batch=1"),
        ("--shape", "a=1"),
    ],
)
def test_options_for_models_are_refused_for_a_list(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """Options that apply only to models are refused for a buffer list."""
    result = run(buffers(tmp_path), *options)
    assert (exit_code(result), result.stdout) == (2, "")
    assert options[0] in sentence(result)


def test_free_dimensions_give_options_that_work(tmp_path: Path) -> None:
    """The refusal lists the open dimensions and ends with options that plan the model."""
    path = model(tmp_path, FREE)
    refused = run(path)
    assert (exit_code(refused), refused.stdout) == (2, "")
    assert "these dimensions are open: batch size (input 'x'), n (input 'x')" in sentence(refused)
    options = shlex.split(sentence(refused).rpartition("e.g. with ")[2])
    assert options[0] == "--dim"
    assert exit_code(run(path, *options)) == 0


def test_likely_states_give_a_command_that_works(tmp_path: Path) -> None:
    """Likely state pairs are suggested, not assumed; the next command plans them as state."""
    text = run(model(tmp_path)).stdout
    (line,) = (line for line in text.splitlines() if line.startswith("next: "))
    command = shlex.split(line[line.index("qnnmem plan") :])
    values = json.loads(run(*command[2:], "--format", "json").stdout)
    assert (values["persistent_bytes"], values["likely_states"]) == (64, [])


def test_every_likely_state_is_in_the_command(tmp_path: Path) -> None:
    """The next command names all likely state pairs or, if they are too many, none."""
    for count, shown in ((6, 6), (200, 0)):
        old = ", ".join(f"float[4] cache_{i}_layer" for i in range(count))
        new = ", ".join(f"float[4] next_cache_{i}_layer" for i in range(count))
        nodes = " ".join(
            f"next_cache_{i}_layer = Add (cache_{i}_layer, cache_{i}_layer)" for i in range(count)
        )
        head = '<ir_version: 8, opset_import: ["" : 18]>'
        text = run(model(tmp_path, f"{head} g ({old}) => ({new}) {{ {nodes} }}")).stdout
        (line,) = (line for line in text.splitlines() if line.startswith("next: "))
        assert line.count("--state") == shown
        if not shown:
            assert "200 pairs of input and output look like state" in line
            command = shlex.split(line[line.index("qnnmem plan") :])
            assert len(json.loads(run(*command[2:]).stdout)["likely_states"]) == count


def test_the_same_seed_gives_the_same_plan(tmp_path: Path) -> None:
    """Two runs with the same seed differ only in their time."""
    results = [json.loads(run(model(tmp_path), "--format", "json").stdout) for _ in range(2)]
    for values in results:
        del values["seconds"]
    assert results[0] == results[1]


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    """The order of the rows does not change the scratch size."""
    rows = [f"b{i},{i * 7 % 11},{i * 7 % 11 + 1 + i % 4},{1 + i * 5 % 9}\n" for i in range(20)]
    peaks = set()
    for order in (rows, rows[::-1], rows[7:] + rows[:7]):
        path = buffers(tmp_path, "id,lower,upper,size\n" + "".join(order))
        peaks.add(json.loads(run(path, "--format", "json").stdout)["scratch_bytes"])
    assert len(peaks) == 1


EVIL = ("\x1b[31mred", "a\tb", "\x07", "\u202egnp", "<script>", "x" * 9999)


@pytest.mark.parametrize("name", EVIL)
def test_names_in_a_model_reach_the_reader_harmless(name: str, tmp_path: Path) -> None:
    """Hostile tensor names are escaped in the text; the JSON is ASCII and keeps the names."""
    made = onnx.parser.parse_model(MODEL.replace(" <float[50] w>", "").replace("(x, w)", "(x, x)"))
    for node in made.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if n == "a" else n for n in names]
        node.name = f"{name}{node.op_type}"
    path = tmp_path / "evil.onnx"
    path.write_bytes(made.SerializeToString())
    text, values = run(path), run(path, "--format", "json")
    assert exit_code(text) == exit_code(values) == 0
    assert text.stdout.replace("\n", "").isprintable()
    assert values.stdout.isascii()
    assert name in {row["name"] for row in json.loads(values.stdout)["buffers"]}


def test_names_in_an_error_are_harmless(tmp_path: Path) -> None:
    """An error quotes a hostile name escaped and shortened."""
    name = "\x1b[31m" + "x" * 10_000
    result = run(buffers(tmp_path, f"{ROWS}{name},0,1,1\n{name},0,1,1\n"))
    assert exit_code(result) == 2
    assert sentence(result).isprintable()
    assert len(sentence(result)) < 400 + len(str(tmp_path))


def test_a_name_that_is_no_unicode_is_no_error(tmp_path: Path) -> None:
    """A lone surrogate in a name works in every format."""
    kind = {"dataLayout": "", "dataType": "int8", "shape": {"dimensions": [1, 8]}}
    x, y = (
        {"tensor_id": i, "tensor_name": f"\ud800{i}", "flag": f"0x{i}", "type": kind} for i in "12"
    )
    ins, outs = ([{"name": "Port0", "value": [tensor]}] for tensor in (x, y))
    node = {"id": 0, "name": "\udc00", "operator": "ADD", "actual_order": 0}
    graph = {"name": "g", "nodes": [{**node, "inputs": ins, "outputs": outs}]}
    report = {"format": "eAI v5.9", "graphs": [{**graph, "inputs": ins, "outputs": outs}]}
    path = tmp_path / "made.eaix"
    path.write_text(json.dumps(report))
    for form in ("text", "json", "csv"):
        assert exit_code(run(path, "--format", form, "-o", tmp_path / f"out.{form}")) == 0


def test_the_short_answer_has_pools_proof_and_what_is_next(tmp_path: Path) -> None:
    """The short answer has the verdict, the pools, the proof and the next command."""
    lines = run(model(tmp_path), "--state", "h_in=h_out", "--budget", "scratch=1M").stdout
    assert lines.splitlines() == [
        "fits: scratch takes 1,344 of 1,048,576 bytes",
        "scratch 1,344 bytes, minimal for this order",
        "persistent 64, constants 200 bytes; IO is inside scratch",
        "next: LPAI runs 8- and 16-bit models; plan the model as int8: "
        f"qnnmem plan {shlex.quote(str(model(tmp_path)))} --state h_in=h_out --budget scratch=1M "
        "--bits 8",
    ]


@pytest.mark.parametrize("options", [(), ("--io", "outside"), ("--budget", "scratch=1")])
def test_details_come_with_v(options: tuple[str, ...], tmp_path: Path) -> None:
    """`-v` adds the details to the short answer, which keeps its first line."""
    short, whole = (run(model(tmp_path), *options, *more).stdout for more in ((), ("--verbose",)))
    assert len(short.splitlines()) <= 8
    assert short.splitlines()[0] == whole.splitlines()[0]
    for words in ("peak at step", "TCM (", "│", "pool  ", "planned in"):
        assert words in whole
        assert words not in short


def test_one_of_a_thing_is_singular(tmp_path: Path) -> None:
    """A count of one uses the singular in every report."""
    one = buffers(tmp_path, "id,lower,upper,size\na,0,3,4\n")
    single = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"""
    texts = [run(one, "-v", "--capacity", "1").stdout, run(one, "--capacity", "1").stdout]
    texts += [run(model(tmp_path, single), "-v", "--io", io).stdout for io in ("inside", "outside")]
    for text in texts:
        assert not re.search(r"(?<![\d,])1 (?:buffer|tensor|state|op|input|output)s\b", text), text
        assert "0 of them" not in text
    assert "too large alone (1 in scratch, 4 bytes):" in texts[0]


@pytest.mark.parametrize(
    ("size", "code", "first"),
    [
        ("1M", 0, "fits: constants and IO take 1,152 of 1,048,576 bytes of TCM"),
        ("1152", 0, "fits: constants and IO take 1,152 of 1,152 bytes of TCM"),
        ("1151", 1, "does not fit: constants and IO need 1,152 bytes of TCM, 1 more than 1,151"),
        ("0", 1, "does not fit: constants and IO need 1,152 bytes of TCM"),
    ],
)
def test_tcm_has_a_budget(size: str, code: int, first: str, tmp_path: Path) -> None:
    """A TCM budget counts constants and IO as a run in direct mode allocates them."""
    words = (model(tmp_path), "--state", "h_in=h_out", "--budget", f"tcm={size}")
    result = run(*words)
    assert (exit_code(result), result.stdout.splitlines()[0][: len(first)]) == (code, first)
    values = json.loads(run(*words, "--format", "json").stdout)
    (budget,) = values["budgets"]
    assert (budget["pool"], budget["need_bytes"], budget["fits"]) == ("tcm", 1152, code == 0)
    assert values["tcm"]["limit_bytes"] == 2_035_712


def test_a_budget_above_the_documented_pool_says_so(tmp_path: Path) -> None:
    """A TCM budget above the documented pool is noted; two budgets for one pool are refused."""
    wide = MODEL.replace("[2,50]", "[20,5000]").replace("float[50] w", "float[5000] w")
    text = wide.replace("<float[5000] w>", f"<float[5000] w = {{{','.join('1' * 5000)}}}>")
    result = run(model(tmp_path, text), "--budget", "tcm=1G", "--budget", "TCM=1")
    assert (exit_code(result), sentence(result)) == (2, "a pool has two budgets; set only one")
    result = run(model(tmp_path, text.replace("20,", "60,")), "--budget", "TCM=1G")
    assert exit_code(result) == 0
    assert result.stdout.splitlines()[0].endswith("of TCM; the documented pool has 2,035,712")


def test_too_many_tensors_for_tcm(tmp_path: Path) -> None:
    """A model with 42 TCM allocations does not fit, whatever its bytes."""
    names = [f"x{i}" for i in range(40)]
    inputs = ", ".join(f"float[1] {name}" for name in names)
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({inputs}) => (float[1] y) {{ y = Sum({", ".join(names)}) }}"""
    result = run(model(tmp_path, text), "--budget", "tcm=1M")
    assert exit_code(result) == 1
    assert result.stdout.splitlines()[0] == (
        "does not fit: 42 allocations, but TCM allows only 32, which is fatal on the device"
    )


def test_tcm_is_for_models(tmp_path: Path) -> None:
    """A TCM budget for a buffer list is refused, as a list has no constants and no IO."""
    result = run(buffers(tmp_path), "--budget", "tcm=1M")
    assert exit_code(result) == 2
    assert sentence(result) == (
        "--budget tcm is for a model: a buffer list has no constants and no IO"
    )


def many_inputs(count: int) -> str:
    """Return a model with this many small inputs and one output."""
    names = [f"x{number}" for number in range(count)]
    inputs = ", ".join(f"uint8[1,4] {name}" for name in names)
    head = '<ir_version: 8, opset_import: ["" : 18]>'
    body = f"y = Concat <axis = 0> ({', '.join(names)})"
    return f"{head}\ng ({inputs}) => (uint8[{count},4] y) {{ {body} }}"


def test_too_many_allocations_for_tcm_are_in_the_short_answer(tmp_path: Path) -> None:
    """More than 32 TCM allocations decide the verdict of plan and prepare."""
    path = model(tmp_path, many_inputs(37))
    words = "39 allocations, but TCM allows only 32, which is fatal on the device"
    done = run(path)
    assert exit_code(done) == 1
    assert done.stdout.splitlines()[0] == f"does not fit TCM (aDSP direct mode): {words}"
    assert json.loads(run(path, "--format", "json").stdout)["fits"] is False
    prepared = command("prepare", path, "-o", tmp_path / "many.bin")
    assert prepared.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert words in run(path, "-o", tmp_path / "plan.json").stderr
    both = run(path, "--budget", "tcm=64").stdout.splitlines()[0]
    assert both.startswith("does not fit: constants and IO need")
    assert words in both
    other = tmp_path / "other.csv"
    other.write_text("a,0,1,4\n", "utf-8")
    said = f"{path.name}: does not fit TCM (aDSP direct mode): {words}\n"
    several = run(path, other)
    assert exit_code(several) == 2  # the second list has no header
    assert said in several.stdout
    assert re.search(r"^\S*a model.onnx .* does not fit$", several.stdout, re.M)
    assert said in run(path, other, "-o", tmp_path / "plans.json").stderr
    assert "TCM serves" not in run(model(tmp_path, many_inputs(4))).stdout


def test_buffers_that_are_too_large_by_themselves_are_counted(tmp_path: Path) -> None:
    """Of several buffers that exceed the budget alone, one is named and the others are counted."""
    rows = "".join(f"t{at},{at},{at + 1},100\n" for at in range(10))
    done = run(buffers(tmp_path, f"id,lower,upper,size\n{rows}"), "--budget", "scratch=64")
    assert "too large alone (1 in scratch" in done.stdout
    assert "9 others are also too large" in done.stdout


def test_a_suffix_that_is_no_form_is_said(tmp_path: Path) -> None:
    """An unknown suffix is noted with the known ones; `--format` suppresses the note."""
    done = run(buffers(tmp_path), "-o", tmp_path / "x.dot")
    assert (
        "x.dot is written as text, because .dot is not a known suffix; "
        "use .txt, .json, .csv, .h, .svg" in done.stderr
    )
    quiet = run(buffers(tmp_path), "-o", tmp_path / "y.dot", "--format", "csv")
    assert "no form" not in quiet.stderr


def test_inputs_and_outputs_without_elements_are_said(tmp_path: Path) -> None:
    """A note reports an output without elements."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[4,8] x) => (float[N,8] y) <int64[1] at = {2}> { y = Slice(x, at, at) }"""
    assert "note: output 'y' has no elements (0x8)\n" in run(model(tmp_path, text)).stdout


def test_a_model_with_bodies_is_not_called_too_large_for_good(tmp_path: Path) -> None:
    """An upper bound over the budget reads "not found to fit" and still gives exit code 1."""
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>'
        "g (float[64] x, bool c) => (float[64] y) {"
        " y = If (c) <then_branch = t () => (float[64] u) { u = Exp(x) },"
        " else_branch = f () => (float[64] v) { v = Neg(x) }> }"
    )
    path = tmp_path / "branch.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    result = run(path, "--budget", "scratch=600")
    assert exit_code(result) == 1
    first, second = result.stdout.splitlines()[:2]
    assert first.startswith("not found to fit: scratch takes 832 bytes, 232 more than 600; ")
    assert second == "scratch 832 bytes, upper bound"
    assert "minimal" not in result.stdout
    assert json.loads(run(path, "--format", "json").stdout)["proof"] == "upper bound"
    table = run(str(tmp_path / "*.onnx"), "--budget", "scratch=600").stdout
    assert table.startswith("not found to fit: 1 of 1 (")
    assert "  not found to fit\n" in table


def test_a_plan_for_one_value_says_so_first(tmp_path: Path) -> None:
    """The first line of a plan with --value names the input, its value and the dependent node."""
    text = (
        '<ir_version: 8, opset_import: ["" : 18]>'
        "g (float[12] x, int64[2] s) => (float[A,B] y) { h = Reshape(x, s) y = Neg(h) }"
    )
    path = tmp_path / "reshaped.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    words = (path, "--value", "s=3,4")
    expected = "the plan is valid only for 's' = 3,4, on which Reshape 'h' depends"
    assert run(*words).stdout.splitlines()[0] == expected
    assert json.loads(run(*words, "--format", "json").stdout)["holds_for"] == [expected]


FLOATS = """<ir_version: 8, opset_import: ["" : 18]>
g (float[1,64] x) => (float[1,64] y) { h = Exp(x) i = Relu(h) y = Neg(i) }"""


def test_fewer_bits_are_an_estimate_and_prove_nothing(tmp_path: Path) -> None:
    """`--bits` gives an estimate without a proof; the next command gives the exact bytes."""
    path = model(tmp_path, FLOATS)
    done = run(path, "--bits", "8", "--io", "outside")
    assert done.stdout.startswith("scratch 128 bytes, estimate before quantization\n")
    assert (
        "note: the plan is for the 3 ops of the float model; quantizing fuses some" in done.stdout
    )
    command = done.stdout.splitlines()[-1].removeprefix("next: get the exact bytes: qnnmem ")
    assert shlex.split(command)[:2] == ["prepare", str(path)]
    assert command.endswith("--io outside --quantize int8 -o 'a model.bin'")
    judged = run(path, "--bits", "16", "--budget", "scratch=1K", "--budget", "tcm=1M", "-v").stdout
    assert judged.splitlines()[0].startswith("fits by an estimate before quantization: scratch")
    assert judged.splitlines()[1].startswith("fits by an estimate before quantization: constants")
    assert "limit): fits by an estimate before quantization, constants and IO" in judged
    small = run(path, "--bits", "8", "--budget", "scratch=1").stdout
    assert small.startswith("does not fit by an estimate before quantization: scratch needs")
    for text in (done.stdout, judged, small, run(path, "--bits", "8", "--format", "c").stdout):
        assert "minimal" not in text
    found = json.loads(run(path, "--bits", "8", "--format", "json").stdout)
    jsonschema.validate(found, load_schema("qnnmem.plan/1"))
    assert found["proof"] == "estimate before quantization"
    page = str(section_of(found, "plan.json").body)
    assert page.count("estimate before quantization") >= 2  # of scratch and of TCM
    assert "minimal" not in page


@pytest.mark.parametrize("bits", [None, "32"])
def test_floats_as_they_are_are_no_estimate(tmp_path: Path, bits: str | None) -> None:
    """Without --bits, or with 32 bits, the plan of a float model is not called an estimate."""
    given = () if bits is None else ("--bits", bits)
    assert "estimate before" not in run(model(tmp_path, FLOATS), *given).stdout


def test_integers_are_no_estimate(tmp_path: Path) -> None:
    """The plan of an integer model is exact, even with --bits."""
    text = re.sub("Exp|Relu|Neg", "Identity", FLOATS.replace("float", "uint8"))
    assert "estimate before" not in run(model(tmp_path, text), "--bits", "8").stdout
