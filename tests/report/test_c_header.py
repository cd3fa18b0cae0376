"""The plan as a C header: it compiles without warnings and has the plan's numbers."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import exit_code, sentence, verb

import qnnmem
from qnnmem import (
    Buffer,
    DType,
    FixedBuffer,
    Model,
    Op,
    Pool,
    PoolOptions,
    Span,
    Tensor,
    UsageError,
)
from qnnmem.planner import MemoryPlan
from qnnmem.planner.planned_file import PlannedFile
from qnnmem.report.c_source import c_names, c_prefix, render_c

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-Wundef", "-Wshadow")
COMPILERS = [
    (program, standard)
    for program, standards in (
        ("gcc", ("c99", "c11", "gnu17")),
        ("clang", ("c99", "c17")),
        ("g++", ("c++98", "c++17")),
        ("clang++", ("c++17",)),
    )
    for standard in standards
    if shutil.which(program)
]
EVIL = (
    *("int", "class", "_Bool", "__x", "_X", "errno", "NULL", "linux", "unix", "AT_x", "a*/b"),
    *("/*a", "??/", "what??!", "back\\", "two\nlines", "tab\t", "\x00", "\x1b[31m", "日本", "ä"),
    *("\u202egnp", "\ud800", "0", "0a", "9-9", "A", "a", "A_", "a__b", "a_b", "a::b", "", " "),
    *("x" * 500, "x" * 501, "y/" * 300, '"quoted"', "//line", "#define", "%s", "x_2", "x.2", "x"),
)


def chain(*names: str, size: int = 100) -> Model:
    """Return a chain of ops through tensors with these names."""
    tensors = {name: Tensor(name, DType.FLOAT32, (size,)) for name in names}
    ops = tuple(Op(f"op {a}", "Relu", (a,), (b,)) for a, b in pairwise(names))
    return Model("chain", "onnx", tensors, ops, names[:1], names[-1:])


def header(plan: MemoryPlan, name: str = "model.onnx", *given: str) -> str:
    """Return the header of a plan."""
    return render_c(PlannedFile(plan, name, 0.25, given))


def build(folder: Path, program: str, standard: str, source: str) -> str:
    """Compile with every warning as an error, run the program and return its output."""
    file = folder / ("main.cpp" if "+" in program else "main.c")
    file.write_text(source)
    made = folder / "made"
    command = [program, f"-std={standard}", *STRICT, str(file), "-o", str(made)]
    if standard == "c++98":
        command.append("-Wno-long-long")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[:2000]
    return subprocess.run([made], capture_output=True, text=True, check=True).stdout


def printing(text: str, file: str = "plan.h") -> str:
    """Return a program that includes the header twice and prints each numeric macro."""
    names = re.findall(r"^#define (\w+) \d+U", text, re.MULTILINE)
    lines = "".join(f'    printf("{n} %llu\\n", (unsigned long long)({n}));\n' for n in names)
    twice = f'#include "{file}"\n' * 2
    return f"#include <stdio.h>\n{twice}int main(void) {{\n{lines}    return 0;\n}}\n"


def numbers(printed: str) -> dict[str, int]:
    """Return the numbers that the program printed."""
    return {name: int(number) for name, number in map(str.split, printed.splitlines())}


@pytest.mark.parametrize(("program", "standard"), COMPILERS)
def test_hostile_names_compile_without_a_warning(
    program: str, standard: str, tmp_path: Path
) -> None:
    """Hostile names become valid, distinct C names: keywords, comments, trigraphs, unicode."""
    plan = qnnmem.plan(chain(*EVIL), 0.2)
    file = "a*/??/\\\n日本.onnx"
    text = header(plan, file, "--dim=*/=1")
    assert text.isascii()
    (tmp_path / "plan.h").write_text(text)
    found = numbers(build(tmp_path, program, standard, printing(text)))
    offsets = [value for name, value in found.items() if name.startswith(f"{c_prefix(file)}_AT_")]
    assert offsets == [buffer.offset for buffer in plan.buffers]


PROGRAM = """#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "plan.h"

static unsigned char room[TINY_SCRATCH_BYTES + TINY_ALIGN_BYTES];

int main(void) {
    unsigned char *scratch = room;
    while ((uintptr_t)scratch % TINY_ALIGN_BYTES != 0) {
        scratch++;
    }
    memset(scratch + TINY_AT_input, 1, TINY_SIZE_input);
    memset(scratch + TINY_AT_conv, 2, TINY_SIZE_conv);
    if (scratch[TINY_AT_input] != 1 || scratch[TINY_AT_input + TINY_SIZE_input - 1] != 1) {
        return EXIT_FAILURE;
    }
    return TINY_AT_flat == TINY_AT_pooled && TINY_SIZE_output == 4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
"""


@pytest.mark.parametrize(("program", "standard"), COMPILERS)
def test_a_program_places_its_tensors_by_the_header(
    program: str, standard: str, tmp_path: Path
) -> None:
    """A program places tensors by the header: live tensors do not overlap, views share bytes."""
    run = verb("plan")
    done = run(EXAMPLES / "tiny.eaix", "--format", "c", "-o", tmp_path / "plan.h")
    assert exit_code(done) == 0
    build(tmp_path, program, standard, PROGRAM)


@pytest.mark.parametrize(("program", "standard"), COMPILERS[:1])
def test_a_wrong_number_does_not_compile(program: str, standard: str, tmp_path: Path) -> None:
    """A wrong offset or size in the header fails a static assertion."""
    text = header(qnnmem.plan(chain("x", "y")))
    for old, new in (
        ("AT_y 0U", "AT_y 4U"),
        ("AT_y 0U", "AT_y 640U"),
        ("SIZE_y 400U", "SIZE_y 897U"),
    ):
        bad = (
            text.replace(old, new)
            if old in text
            else text.replace(old.replace("y", "x"), new.replace("y", "x"))
        )
        assert bad != text
        (tmp_path / "plan.h").write_text(bad)
        with pytest.raises(AssertionError, match="error"):
            build(tmp_path, program, standard, printing(bad))


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
def test_ten_thousand_names_that_look_alike(tmp_path: Path) -> None:
    """Ten thousand names that collide as C names are numbered quickly."""
    marks = "-./:+~ !"
    rows = [
        f"{'t' * 40}{marks[i % 8]}{marks[i // 8 % 8]}{'x' * (i % 7)}{i // 64}"
        for i in range(10_000)
    ]
    buffers = tuple(FixedBuffer(name, 64, Span(i, i + 2)) for i, name in enumerate(rows))
    plan = qnnmem.plan(Model("l", "csv", buffers=buffers), 0.2)
    text = header(plan, "list.csv")
    names = re.findall(r"^#define LIST_AT_(\w+) ", text, re.MULTILINE)
    assert len({name.lower() for name in names}) == 10_000
    (tmp_path / "plan.h").write_text(text)
    program, standard = COMPILERS[0]
    source = '#include "plan.h"\nint main(void) { return (int)LIST_AT_' + names[0] + " * 0; }\n"
    build(tmp_path, program, standard, source)


def test_names_are_valid_unique_and_short_enough() -> None:
    """C names are valid, unique, not reserved and at most as long as asked."""
    dice = random.Random(7)  # noqa: S311 - reproducible, not secret
    alphabet = "aA_b-/:0é*\\?"
    for room in (8, 20, 40):
        given = ["".join(dice.choices(alphabet, k=dice.randrange(60))) for _ in range(500)]
        found = c_names(given, room)
        assert len({name.lower() for name in found}) == len(given)
        for name in found:
            assert re.fullmatch(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*", name), name
            assert len(name) <= room


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("dir/tiny.eaix", "TINY"),
        ("-", "PLAN"),
        ("3d model.onnx", "PLAN_3D_MODEL"),
        ("__init__.onnx", "INIT"),
        ("日本.onnx", "U65E5_U672C"),
        ("x" * 300 + ".onnx", "X" * 9 + "_" + "X" * 10),
        ("", "PLAN"),
        ("ß.tflite", "SS"),
    ],
)
def test_the_prefix_comes_from_the_file(file: str, prefix: str) -> None:
    """The prefix of all macros comes from the file name."""
    assert c_prefix(file) == prefix


def test_every_pool_has_its_offsets() -> None:
    """Scratch, state and IO have offsets from the start of their pool and exact sizes."""
    tensors = {
        n: Tensor(n, DType.INT8, (10 if n.startswith("h") else 100,)) for n in ("x", "h", "hn", "y")
    }
    ops = (Op("a", "Cell", ("x", "h"), ("hn",)), Op("b", "Relu", ("hn",), ("y",)))
    model = Model("m", "onnx", tensors, ops, ("x", "h"), ("y", "hn"))
    options = PoolOptions(io="outside", states={"h": "hn"})
    text = header(qnnmem.plan(model, options=options))
    for line in ("MODEL_IO_BYTES 256U", "MODEL_PERSISTENT_BYTES 64U", "MODEL_SIZE_h 10U"):
        assert f"#define {line}" in text
    assert re.search(r"PLACED\(h, MODEL_PERSISTENT_BYTES, 64U\);", text)
    assert re.search(r"PLACED\(y, MODEL_IO_BYTES, 64U\);", text)


def test_large_numbers_are_written_as_such() -> None:
    """Numbers over 32 bits get the suffix ULL."""
    buffers = (FixedBuffer("a", "8G", Span(0, 2)), FixedBuffer("b", 1, Span(0, 2)))
    text = header(qnnmem.plan(Model("l", "csv", buffers=buffers)))
    assert "#define MODEL_SCRATCH_BYTES 8589934593ULL" in text


def test_alignments_of_a_list_are_kept() -> None:
    """Each buffer keeps its alignment; scratch gets their common multiple or is refused."""
    buffers = (FixedBuffer("a", 6, Span(0, 2), 6), FixedBuffer("b", 8, Span(0, 2), 4))
    text = header(qnnmem.plan(Model("l", "csv", buffers=buffers)))
    assert "_ALIGN_BYTES 12U" in text
    primes = (2**31 - 1, 2**31 - 19)
    far = tuple(FixedBuffer(str(p), 1, Span(0, 1), p) for p in primes)
    with pytest.raises(UsageError, match="no start address of scratch satisfies"):
        header(qnnmem.plan(Model("l", "csv", buffers=far)))


def test_the_guard_is_the_content() -> None:
    """The include guard depends on the content, so that different headers can be combined."""
    one, same, other = (header(qnnmem.plan(chain(*names))) for names in ("xy", "xy", "xz"))
    guards = [
        re.findall(r"^#ifndef (QNNMEM_\w+)$", text, re.MULTILINE) for text in (one, same, other)
    ]
    assert one == same
    assert guards[0] == guards[1] != guards[2]


def test_where_the_numbers_come_from_is_said() -> None:
    """The comment at the top names the file, the options and the proof."""
    text = header(qnnmem.plan(chain("x", "y")), "dir/m.onnx", "--bits=8")
    top = text[: text.index("#ifndef")]
    for words in ("dir/m.onnx", "896 bytes, computed, minimal for this order", "--bits=8"):
        assert words in top


def test_several_files_have_no_one_header(tmp_path: Path) -> None:
    """`--format c` is refused for several files."""
    run = verb("plan")
    done = run(EXAMPLES / "tiny.eaix", EXAMPLES / "keyword_spotting.csv", "--format", "c")
    assert (exit_code(done), sentence(done)) == (2, "--format c is for one file, not for 2")


def test_buffers_are_not_lost() -> None:
    """Every buffer has an offset in the header."""
    plan = qnnmem.plan(chain(*(f"t{i}" for i in range(30))))
    text = header(plan)
    assert text.count("#define MODEL_AT_t") == 30
    assert all(isinstance(b, Buffer) for b in plan.scratch.problem.buffers)
    assert {b.pool for b in plan.buffers} == {Pool.SCRATCH}


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
def test_the_program_of_the_tutorial_runs(tmp_path: Path) -> None:
    """The tutorial's code matches the header, and its program prints the stated result."""
    page = (EXAMPLES.parent / "docs" / "tutorials" / "plan-to-c.md").read_text("utf-8")
    part, source = re.findall(r"^```c\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made = tmp_path / "tiny_plan.h"
    assert exit_code(verb("plan")(EXAMPLES / "tiny.eaix", "--format", "c", "-o", made)) == 0
    lines = made.read_text().splitlines()
    assert [line for line in part.splitlines() if line not in lines] == []
    for program, standard in COMPILERS:
        if standard in ("c99", "c++17"):
            assert build(tmp_path, program, standard, source) == "7 7 7 7\n"


def test_a_long_name_keeps_both_ends() -> None:
    """A long name keeps its distinguishing words at both ends."""
    layers = [f"backbone_{i}/stage/very_long_block_name/conv/Conv2D_quant;bias" for i in range(12)]
    ends = [f"model/functional_1/very_long_block_name/with_a_conv/out_{i}" for i in range(12)]
    for names in (layers, ends):
        found = c_names(names, 40)
        assert len({name.lower() for name in found}) == len(names)
        assert max(map(len, found)) <= 40
        assert [name.count("_2") for name in found].count(1) <= 3  # by words, not by numbers
    assert c_names(layers, 40)[3] == "backbone_3_stage_very_Conv2D_quant_bias"
    assert c_names(ends, 40)[7] == "model_functional_1_with_a_conv_out_7"


def test_a_long_file_name_begins_the_names_with_its_first_words() -> None:
    """A long file name gives a prefix of whole words."""
    assert c_prefix("models/keyword_spotting_streaming_v2.onnx") == "KEYWORD_SPOTTING_V2"
    assert c_prefix("kws.onnx") == "KWS"
    assert c_prefix("9lives_of_a_very_long_cat_model.onnx").startswith("PLAN_")


ROLES = """#include <stddef.h>
#include <stdio.h>
#include "plan.h"

static const size_t in_at[] = MODEL_INPUT_OFFSETS, in_size[] = MODEL_INPUT_SIZES;
static const size_t out_at[] = MODEL_OUTPUT_OFFSETS, out_size[] = MODEL_OUTPUT_SIZES;

int main(void) {
    size_t i;
    for (i = 0; i < MODEL_INPUT_COUNT; i++) {
        printf("in%lu %lu\\n", (unsigned long)in_at[i], (unsigned long)in_size[i]);
    }
    for (i = 0; i < MODEL_OUTPUT_COUNT; i++) {
        printf("out%lu %lu\\n", (unsigned long)out_at[i], (unsigned long)out_size[i]);
    }
    return 0;
}
"""


def two_in_two_out() -> Model:
    """Return a model with two inputs, two outputs and one tensor in between."""
    tensors = {name: Tensor(name, DType.FLOAT32, (8,)) for name in ("b", "a", "t", "z", "y")}
    ops = (Op("1", "Add", ("b", "a"), ("t",)), Op("2", "Split", ("t",), ("z", "y")))
    return Model("model", "onnx", tensors, ops, ("b", "a"), ("z", "y"))


@pytest.mark.parametrize(("program", "standard"), COMPILERS)
@pytest.mark.parametrize("io", ["inside", "outside"])
def test_inputs_and_outputs_are_marked_and_listed(
    io: str, program: str, standard: str, tmp_path: Path
) -> None:
    """Inputs and outputs are marked, with arrays of their offsets in model order."""
    plan = qnnmem.plan(two_in_two_out(), options={"io": io})
    text = header(plan)
    (tmp_path / "plan.h").write_text(text)
    at = {buffer.name: buffer.offset for buffer in plan.buffers}
    printed = build(tmp_path, program, standard, ROLES)
    assert printed.split("\n")[:4] == [
        *(f"in{at[name]} 32" for name in ("b", "a")),
        *(f"out{at[name]} 32" for name in ("z", "y")),
    ]
    for name, role in (("a", "input"), ("b", "input"), ("y", "output"), ("z", "output")):
        assert re.search(rf"#define MODEL_AT_{name} \d+U /\* {role}, steps", text)
    assert re.search(r"#define MODEL_AT_t \d+U /\* steps", text)


def test_state_is_no_input_of_the_application() -> None:
    """State tensors are not in the arrays of inputs and outputs."""
    plan = qnnmem.plan(two_in_two_out(), options={"states": {"b": "z"}})
    text = header(plan)
    assert "#define MODEL_INPUT_COUNT 1U" in text
    assert "#define MODEL_INPUT_OFFSETS { MODEL_AT_a }" in text
    assert "#define MODEL_OUTPUT_OFFSETS { MODEL_AT_y }" in text
