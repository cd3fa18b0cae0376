"""The C client compiles without warnings, keeps the contract and survives every failure.

`tests/c_api` has a backend that checks its client; QNN's interface comes from `lpai headers`.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from command_line import exit_code, sentence, verb
from seeds import share

from qnnmem import DType, Model, Op, PoolOptions, Tensor, UsageError, lpai
from qnnmem.lpai.binary import unpack, write
from qnnmem.lpai.client_plan import of_context, read_client_plan
from qnnmem.lpai.compiled import CompiledContext, CompiledGraph
from qnnmem.lpai.selftest.models import binary
from qnnmem.planner import Io, plan_model
from qnnmem.programs.c_headers import declarations, write_headers
from qnnmem.report.c_source import render_client

ROOT = Path(__file__).resolve().parents[2]
C_API = ROOT / "tests" / "c_api"
SMALL = ROOT / "examples" / "small_lpai.bin"
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wundef")
COMPILERS = [
    (program, standard)
    for program, standards in (
        ("gcc", ("c11", "gnu17")),
        ("clang", ("c11", "c17")),
        ("g++", ("c++11", "c++17")),
        ("clang++", ("c++17",)),
    )
    for standard in standards
    if shutil.which(program)
]
EVIL = (
    *("int", "a*/b", "/*a", "??/", "what??!", "back\\", "two\nlines", "tab\t", "\x1b[31m", "日本"),
    *("\ud800", "0", '"quoted"', '", 0u}, {"', "//line", "#define x", "%s%n", "\x7f", "\\0", "ä1"),
    *("x" * 3990, "y" * 5000, "x\xff77", "\u202egnp", " ", "@PLAN@", "@ABOUT@", "\\x41", "'"),
)
needs_cc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@cache
def include_folder() -> str:
    """Return the folder with the shipped headers, written once."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    write_headers(Path(folder))
    return folder


def compile_client(
    folder: Path, source: Path, *, program: str = "gcc", flags: tuple[str, ...] = ("-std=c11",)
) -> None:
    """Compile without linking, with every warning as an error."""
    language = ["-x", "c++"] if "+" in program else []
    command = [program, *language, *STRICT, *flags, f"-I{include_folder()}"]
    made = [*command, "-c", str(source), "-o", str(folder / "client.o")]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def written(text: str) -> str:
    """Return a name as a C string with every byte in octal, independently of the renderer."""
    return '"' + "".join(f"\\{b:03o}" for b in text.encode("utf-8", "surrogatepass")) + '"'


def fake_model(content: bytes, inside: bool) -> str:
    """Return the C description of a binary for the checking backend."""
    graphs = unpack(content).graphs
    rows = []
    for number, info in enumerate(lpai.get_binary_info(content)):
        for is_output, tensors in ((0, info.graph_inputs), (1, info.graph_outputs)):
            for t in tensors:
                dims = ", ".join(map(str, t.dimensions)) or "0"
                head = f"{number}, {is_output}, {written(t.name)}, {int(t.data_type)}"
                rows.append(f"{{{head}, {len(t.dimensions)}, {{{dims}}}}}")
    names = ", ".join(written(graph.name) for graph in graphs)
    return f"""#include <stdint.h>
#define FAKE_GRAPHS {len(graphs)}
#define FAKE_TENSORS {len(rows)}
#define IO_MAY_BE_INSIDE {int(inside)}
typedef struct {{
    int graph, is_output;
    const char *name;
    uint32_t type, rank, dimensions[8];
}} fake_tensor;
static const fake_tensor TENSOR_ROWS[] = {{{", ".join(rows)}}};
static const char *const GRAPH_NAMES[] = {{{names}}};
static const uint32_t SCRATCH[] = {{{", ".join(f"{g.scratch_bytes}u" for g in graphs)}}};
static const uint32_t PERSISTENT[] = {{{", ".join(f"{g.persistent_bytes}u" for g in graphs)}}};
"""


@cache
def checking_backend(content: bytes, inside: bool, flags: tuple[str, ...]) -> Path:
    """Return the object file of the backend that checks clients of this binary."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    (folder / "fake_model.h").write_text(fake_model(content, inside))
    include = [f"-I{include_folder()}", f"-I{folder}"]
    made = ["gcc", "-std=gnu11", *flags, *include, "-c", str(C_API / "fake_qnn.c")]
    done = subprocess.run(
        [*made, "-o", str(folder / "fake.o")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    return folder / "fake.o"


class Built:
    """A client linked to the checking backend; `mistake` replaces a text of its source."""

    def __init__(
        self,
        folder: Path,
        content: bytes,
        *flags: str,
        inside: bool = False,
        mistake: tuple[str, str] = ("", ""),
    ) -> None:
        self.folder, self.program, self.model = folder, folder / "client", folder / "model.bin"
        self.model.write_bytes(content)
        plan = of_context(unpack(content), "model.bin")
        self.source = folder / "client.c"
        self._flags = flags
        sanitizer = tuple(f for f in flags if f.startswith("-fsan") or f == "-g")
        self._backend = checking_backend(content, inside, sanitizer)
        text = render_client(plan, "qnnmem 0", io_in_scratch=inside)
        assert mistake[0] in text
        self.again(text.replace(*mistake) if mistake[0] else text)

    def again(self, text: str) -> Built:
        """Build the client from this source and return it."""
        folder, flags = self.folder, self._flags
        self.source.write_text(text)
        counted = (
            "-Dcalloc=counted_calloc",
            "-Dfree=counted_free",
            "-Wno-builtin-declaration-mismatch",
        )
        compile_client(folder, self.source, flags=("-std=c11", *counted, *flags))
        sanitizer = [f for f in flags if f.startswith("-fsan")]
        command = ["gcc", *sanitizer, str(folder / "client.o"), str(self._backend)]
        command += ["-o", str(self.program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        return self

    def run(self, *before: str, **settings: object) -> subprocess.CompletedProcess[str]:
        """Run the client and record its calls in `calls`."""
        trace = self.folder / "trace.txt"
        told = {f"FAKE_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {**os.environ, **told, "FAKE_TRACE": str(trace)}
        command = [*before, str(self.program), str(self.model)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, errors="replace"
        )
        self.calls = trace.read_text().split() if trace.exists() else []
        trace.unlink(missing_ok=True)
        return done


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a client of several graphs: with and without state, IO inside and outside scratch."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    return Built(tmp_path_factory.mktemp("several"), bytes(binary()), "-DCLIENT_RUNS=3u")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a client of one graph."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    return Built(tmp_path_factory.mktemp("single"), SMALL.read_bytes())


def hostile(folder: Path) -> bytes:
    """Return a binary whose graphs and tensors have names that C cannot use."""
    graphs = []
    for number, name in enumerate(EVIL):
        names = (EVIL[number - 1], EVIL[number - 2], EVIL[number - 3])
        tensors = {one: Tensor(one, DType.INT8, (number + 1, 3)) for one in names}
        ops = (Op("a", "Relu", names[:1], names[1:2]), Op("b", "Relu", names[1:2], names[2:]))
        model = Model("m", "onnx", tensors, ops, names[:1], names[2:])
        plan = plan_model(model, PoolOptions())
        graphs.append(
            CompiledGraph(
                name, model, plan.buffers, plan.scratch_bytes, plan.persistent_bytes, plan.align
            )
        )
    file = folder / "hostile.bin"
    write(CompiledContext(tuple(graphs), "v6", "qnnmem 0.1.0"), file)
    return file.read_bytes()


# --- Compilation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("-DCLIENT_DLOPEN",), ("-O2", "-DCLIENT_STRICT=1")])
@pytest.mark.parametrize("io", ["user", "scratch"])
@pytest.mark.parametrize(("program", "standard"), share(COMPILERS, 2))
def test_it_compiles_without_a_warning(
    program: str, standard: str, io: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The exported client compiles as C and C++, linked or with libraries loaded by name."""
    file = tmp_path / "client.c"
    assert exit_code(verb("lpai")("export-c", SMALL, "--io", io, "-o", file)) == 0
    compile_client(tmp_path, file, program=program, flags=(f"-std={standard}", *flags))


@pytest.mark.parametrize(("program", "standard"), COMPILERS)
def test_hostile_names_compile_without_a_warning(
    program: str, standard: str, tmp_path: Path
) -> None:
    """Hostile names compile as data: quotes, comments, trigraphs and control characters."""
    plan = of_context(unpack(hostile(tmp_path)), 'a*/??/\\\n"日本".bin')
    text = render_client(plan, "*/ #error")
    assert text.isascii()
    file = tmp_path / "client.c"
    file.write_text(text)
    compile_client(tmp_path, file, program=program, flags=(f"-std={standard}",))


@needs_cc
def test_hostile_names_arrive_as_they_are(tmp_path: Path) -> None:
    """The backend finds every graph and tensor by its hostile name."""
    made = Built(tmp_path, hostile(tmp_path))
    done = made.run()
    assert done.returncode == 0, done.stderr[:2000]
    assert made.calls.count("QnnGraph_execute") == len(EVIL)


# --- The contract ---------------------------------------------------------------------------------


def test_calls_come_in_the_documented_order(single: Built) -> None:
    """The alignment is queried first, pools are set before finalize, the context is freed first."""
    done = single.run()
    assert done.returncode == 0, done.stderr
    assert single.calls == [
        *("QnnInterface_getProviders", "QnnSystemInterface_getProviders"),
        *("QnnBackend_create", "QnnBackend_getProperty", "QnnContext_createFromBinary"),
        *("QnnSystemContext_create", "QnnSystemContext_getBinaryInfo"),
        *("QnnGraph_retrieve", "QnnGraph_getProperty", "QnnGraph_setConfig", "QnnGraph_finalize"),
        "QnnGraph_execute",
        *("QnnContext_free", "QnnBackend_free", "QnnSystemContext_free"),
    ]
    assert done.stdout.startswith("small: output 0, 256 bytes, checksum ")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("persistent", [0, 1])
def test_every_version_of_the_structs_is_understood(
    version: int, tensor: int, persistent: int, several: Built
) -> None:
    """The client reads every version of the structs and keeps the binary in place."""
    done = several.run(version=version, tensor=tensor, persistent=persistent)
    assert done.returncode == 0, done.stderr
    graphs = len(unpack(binary()).graphs)
    assert several.calls.count("QnnGraph_execute") == 3 * graphs > 3


@pytest.mark.parametrize("start", [1, 16, 64, 256, 4096])
@pytest.mark.parametrize("size", [1, 16, 64, 128])
def test_any_alignment_is_kept(start: int, size: int, several: Built) -> None:
    """The client uses the alignment that the backend reports."""
    done = several.run(start=start, size=size)
    assert done.returncode == 0, done.stderr


def test_a_graph_that_waits_gets_more_frames(single: Built) -> None:
    """On code 6038 the client sends the next input; one result is read."""
    done = single.run(wait=5)
    assert done.returncode == 0, done.stderr
    assert single.calls.count("QnnGraph_execute") == 6
    assert len(done.stdout.splitlines()) == 1


def test_a_graph_that_waits_for_ever_ends_the_client(single: Built) -> None:
    """A graph that always returns 6038 ends the client at a limit, with everything freed."""
    done = single.run(wait=1_000_000)
    assert done.returncode == 1
    assert "QnnGraph_execute failed with 6038" in done.stderr


def test_another_size_than_planned_is_said_and_used(single: Built) -> None:
    """If the backend requests another size than planned, the client reports and uses that size."""
    done = single.run(more=640)
    assert done.returncode == 0, done.stderr
    assert "small: scratch has 1408 bytes, 768 were planned" in done.stderr


@needs_cc
def test_another_size_than_planned_can_end_the_client(tmp_path: Path) -> None:
    """With CLIENT_STRICT, another size than planned ends the client before finalize."""
    made = Built(tmp_path, SMALL.read_bytes(), "-DCLIENT_STRICT=1")
    assert made.run().returncode == 0
    done = made.run(more=640)
    assert (done.returncode, "QnnGraph_finalize" in made.calls) == (1, False)


def test_an_older_library_than_the_headers_is_refused(single: Built) -> None:
    """A library older than the headers is refused, as its table would be too short."""
    done = single.run(minor=26)
    assert (done.returncode, single.calls[2:]) == (1, [])
    assert "no provider is LPAI" in done.stderr


def test_a_table_with_a_hole_is_refused(single: Built) -> None:
    """A function table with a missing function is refused."""
    done = single.run(missing=1)
    assert done.returncode == 1
    assert "missing in the tables" in done.stderr


@needs_cc
def test_io_stays_in_scratch_on_wish(tmp_path: Path) -> None:
    """With IO in scratch, inputs are written at their planned places; other sizes are refused."""
    made = Built(tmp_path, SMALL.read_bytes(), inside=True)
    done = made.run()
    assert done.returncode == 0, done.stderr
    assert "{NULL" not in made.source.read_text()
    done = made.run(more=64)
    assert done.returncode == 1
    assert "offsets of inputs and outputs are unknown" in done.stderr


@needs_cc
def test_libraries_can_be_loaded_by_name(tmp_path: Path) -> None:
    """With CLIENT_DLOPEN the program loads the libraries by name."""
    content = SMALL.read_bytes()
    (tmp_path / "model.bin").write_bytes(content)
    (tmp_path / "fake_model.h").write_text(fake_model(content, inside=False))
    source = tmp_path / "client.c"
    source.write_text(render_client(of_context(unpack(content), "model.bin"), "qnnmem 0"))
    include = [f"-I{include_folder()}", f"-I{tmp_path}"]
    library = tmp_path / "libfake.so"
    make = ["gcc", "-shared", "-fPIC", *include, str(C_API / "fake_qnn.c"), "-o", str(library)]
    subprocess.run(make, check=True, capture_output=True)
    names = [f'-DCLIENT_{kind}_LIBRARY="{library}"' for kind in ("BACKEND", "SYSTEM")]
    build = ["gcc", *STRICT, "-std=c11", "-DCLIENT_DLOPEN", *names, *include, str(source)]
    subprocess.run([*build, "-ldl", "-o", str(tmp_path / "client")], check=True)
    command = [str(tmp_path / "client"), str(tmp_path / "model.bin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library.unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "libfake.so" in done.stderr) == (1, True)


WRONG = {
    "scratch leaks": ("release(&graph->scratch);", "", "never freed"),
    "the context leaks": ("c->context != NULL &&", "c->context == NULL &&", "never freed"),
    "the system context leaks": ("c->system_context != NULL &&", "0 &&", "never freed"),
    "the alignment is not kept": ("% align) % align", "% align) % align + 8", "not aligned"),
    "the binary goes at once": ("if (!c->binary_must_stay) {", "{", "did not stay"),
    "no finalize": (
        'worked("QnnGraph_finalize", c->qnn.graphFinalize(graph->handle, NULL, NULL)) &&',
        "",
        "not finalized",
    ),
    "scratch is too small": ("pools[i].size = (uint32_t)", "pools[i].size = 64 + 0 *", "too small"),
    "no pool is handed over": (
        'return worked("QnnGraph_setConfig", c->qnn.graphSetConfig(graph->handle, list));',
        "(void)c; (void)list; return true;",
        "there is no scratch",
    ),
    "too much is read": ("dataSize = size", "dataSize = size + 1", "another size"),
}


@needs_cc
@pytest.mark.parametrize(("old", "new", "said"), WRONG.values(), ids=WRONG)
def test_the_checking_backend_notices_mistakes(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    """The checking backend ends with 70 for a client that breaks a rule."""
    made = Built(tmp_path, SMALL.read_bytes(), mistake=(old, new))
    done = made.run(persistent=1)
    assert done.returncode == 70, done.stderr
    assert said in done.stderr


# --- Failures -------------------------------------------------------------------------------------


def test_each_failing_call_ends_in_order(several: Built) -> None:
    """Whichever call fails, the client prints a sentence, frees everything and exits with 1."""
    whole = several.run()
    assert whole.returncode == 0
    calls = several.calls
    for number in range(1, len(calls) + 1):
        done = several.run(fail=number, persistent=1)
        assert done.returncode == 1, (number, calls[number - 1], done.stderr)
        assert f"{calls[number - 1]} failed with 1002" in done.stderr


def test_each_failing_allocation_ends_in_order(several: Built) -> None:
    """Whichever allocation fails, the client reports `out of memory` and exits with 1."""
    for number in count(1):
        done = several.run(fail_alloc=number)
        if done.returncode == 0:
            break
        assert done.returncode == 1, (number, done.stderr)
        assert "out of memory" in done.stderr
    assert number > 10


@needs_cc
def test_a_sanitizer_finds_nothing(tmp_path: Path) -> None:
    """The address and undefined-behaviour sanitizers find nothing, even if a call fails."""
    flags = ("-g", "-fsanitize=address,undefined")
    try:
        made = Built(tmp_path, bytes(binary()), "-DCLIENT_RUNS=2u", *flags)
    except AssertionError as exc:
        if "sanitize" in str(exc) or "asan" in str(exc):
            pytest.skip("the compiler has no address sanitizer")
        raise
    assert made.run(persistent=1).returncode == 0
    total = len(made.calls)
    for number in (*range(1, total, 5), total):
        done = made.run(fail=number)
        assert (done.returncode, "Sanitizer" in done.stderr) == (1, False), done.stderr[:2000]


def test_valgrind_finds_nothing(several: Built) -> None:
    """Valgrind finds no uninitialised read and no leak."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("there is no valgrind")
    watch = (
        valgrind,
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--show-leak-kinds=all",
    )
    done = several.run(*watch, persistent=1)
    assert done.returncode == 0, done.stderr[:2000]
    done = several.run(*watch, fail=12)
    assert done.returncode == 1, done.stderr[:2000]


def test_a_binary_that_is_not_there_is_a_sentence(single: Built, tmp_path: Path) -> None:
    """A missing binary ends the client with 1 and a sentence, a missing argument with 2."""
    done = subprocess.run(
        [single.program, tmp_path / "no"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no cannot be opened" in done.stderr
    done = subprocess.run([single.program], capture_output=True, text=True, check=False)
    assert (done.returncode, "usage: " in done.stderr) == (2, True)


# --- The command ----------------------------------------------------------------------------------


def test_a_plan_gives_the_same_client_as_its_binary(tmp_path: Path) -> None:
    """A plan and its prepared binary give a client with the same names, sizes and offsets."""
    model = ROOT / "examples" / "small.onnx"
    plan, made = tmp_path / "plan.json", tmp_path / "small.bin"
    shape = ("--shape", "x=1x4x8x8")
    assert exit_code(verb("plan")(model, *shape, "--json", "-o", plan)) == 0
    options = lpai.PrepareOptions(shapes={"x": (1, 4, 8, 8)}, allow_float=True)
    lpai.prepare({"small": model}, options).write(made)
    (one,), (other,) = read_client_plan(plan).graphs, read_client_plan(made).graphs
    assert (one.name, one.scratch_bytes) == (other.name, other.scratch_bytes)
    names = [(tensor.name, tensor.nbytes, tensor.offset) for tensor in (*one.inputs, *one.outputs)]
    assert names == [(t.name, t.nbytes, t.offset) for t in (*other.inputs, *other.outputs)]


def test_plans_of_several_models_are_one_client(tmp_path: Path) -> None:
    """Each plan of several models is a graph; a buffer list has no inputs."""
    file = tmp_path / "plans.json"
    models = [ROOT / "examples" / name for name in ("tiny.eaix", "keyword_spotting.csv")]
    assert exit_code(verb("plan")(*models, "--json", "-o", file)) == 0
    found = read_client_plan(file)
    assert {graph.name: graph.has_io for graph in found.graphs} == {
        "tiny": True,
        "keyword_spotting": False,
    }
    out = tmp_path / "client.c"
    assert exit_code(verb("lpai")("export-c", file, "-o", out)) == 0
    assert '{"keyword_spotting", 16000u, 0u, 0u, 2u, 0u, 2u, 0u, false},' in out.read_text()


@needs_cc
def test_an_arrangement_of_models_is_one_scratch(tmp_path: Path) -> None:
    """Jointly planned models share one scratch; an unplanned alignment ends the client."""
    files = [tmp_path / f"m{number}.csv" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(f"id,lower,upper,size\na,0,1,{640 + 128 * number}\n", "utf-8")
    arranged = tmp_path / "together.json"
    words = ("--together", "--concurrent", "m0,m1", "--json", "-o", arranged)
    assert exit_code(verb("plan")(*files, *words)) == 0
    lpai.prepare(files, lpai.PrepareOptions(allow_float=True)).write(tmp_path / "all.bin")
    found = read_client_plan(arranged)
    assert found.shared is not None
    assert (found.shared.size, found.shared.offsets) == (640 + 768, (768, 0, 0))
    made = Built(tmp_path, (tmp_path / "all.bin").read_bytes(), "-DCLIENT_STRICT=1")
    own = made.run().stdout
    done = made.again(render_client(found, "qnnmem 0")).run()
    assert (done.returncode, done.stdout, done.stderr) == (0, own, "")
    done = made.run(start=512)
    assert "a graph's place in the common scratch is too small or badly aligned" in done.stderr
    wrong = arranged.read_text().replace('"scratch_offset": 768', '"scratch_offset": 832')
    arranged.write_text(wrong)
    assert exit_code(verb("lpai")("export-c", arranged)) == 2


@needs_cc
def test_a_strict_client_of_a_plan_accepts_its_binary(tmp_path: Path) -> None:
    """Padding and views in a plan do not make a strict client refuse its binary."""
    content = SMALL.read_bytes()
    made = Built(tmp_path, content, "-DCLIENT_STRICT=1")
    graph = unpack(content).graphs[0]
    rows = [
        {
            **{"name": b.name, "pool": b.pool.value, "size_bytes": -(-b.size // 64) * 64},
            **{
                "offset_bytes": b.offset,
                "lower": b.live.lower,
                "upper": b.live.upper,
                "aliases": [*b.aliases, *(["v"] if b.name == "x" else [])],
            },
        }
        for b in graph.buffers
    ]
    for row in rows:
        row["size_bytes"] = 4096 if row["aliases"] else row["size_bytes"]
    names = {"inputs": list(graph.inputs), "outputs": list(graph.outputs), "input": "small.onnx"}
    file = tmp_path / "plan.json"
    plan = _plan(scratch_bytes=graph.scratch_bytes, buffers=rows, **names)
    file.write_text(json.dumps(plan))
    found = read_client_plan(file)
    assert [tensor.nbytes for tensor in found.graphs[0].inputs] == [0]
    done = made.again(render_client(found, "qnnmem 0")).run()
    assert (done.returncode, done.stderr) == (0, "")


def test_state_is_no_input_of_the_client() -> None:
    """State tensors are not inputs of the client."""
    content = bytes(binary())
    for graph in of_context(unpack(content), "x").graphs:
        compiled = unpack(content).graph(graph.name)
        assert compiled is not None
        assert [tensor.name for tensor in graph.inputs] == list(compiled.inputs)
        assert not {old for old, _ in compiled.states} & {tensor.name for tensor in graph.inputs}


def test_what_exists_is_only_replaced_on_wish(tmp_path: Path) -> None:
    """An existing file is replaced only with --force."""
    file = tmp_path / "client.c"
    file.write_text("mine")
    run = verb("lpai")
    assert exit_code(run("export-c", SMALL, "-o", file)) == 2
    assert file.read_text() == "mine"
    assert exit_code(run("export-c", SMALL, "-o", file, "--force")) == 0
    assert "int main(" in file.read_text()


def test_without_a_file_the_client_is_printed() -> None:
    """Without -o, the client is printed."""
    done = verb("lpai")("export-c", SMALL)
    assert done.stdout.startswith("/* LPAI client of ")
    assert done.stdout.endswith("}\n")


def test_json_tells_which_file_was_written(tmp_path: Path) -> None:
    """`--json` names the written file, and needs -o."""
    file = tmp_path / "client.c"
    done = verb("lpai")("export-c", SMALL, "-o", file, "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["verb"]) == ("qnnmem.written/1", "lpai export-c")
    assert told["files"] == [{"file": str(file), "bytes": file.stat().st_size}]
    refused = verb("lpai")("export-c", SMALL, "--json")
    assert (exit_code(refused), "needs -o" in sentence(refused)) == (2, True)


def test_io_outside_of_scratch_cannot_stay_there(tmp_path: Path) -> None:
    """IO outside scratch cannot be exported with `--io scratch`; the refusal names the graph."""
    done = verb("lpai")("export-c", _outside(tmp_path), "--io", "scratch")
    assert exit_code(done) == 2
    assert "graph 'g' has inputs or outputs that are not in scratch" in sentence(done)


def _outside(folder: Path) -> Path:
    tensors = {name: Tensor(name, DType.INT8, (4,)) for name in ("a", "b")}
    model = Model("m", "onnx", tensors, (Op("o", "Relu", ("a",), ("b",)),), ("a",), ("b",))
    plan = plan_model(model, PoolOptions(io=Io.OUTSIDE))
    sizes = (plan.scratch_bytes, plan.persistent_bytes, plan.align)
    graph = CompiledGraph("g", model, plan.buffers, *sizes, Io.OUTSIDE)
    file = folder / "outside.bin"
    write(CompiledContext((graph,), "v6", "qnnmem 0.1.0"), file)
    return file


def _plan(**changes: object) -> dict[str, object]:
    return {
        **{"schema": "qnnmem.plan/1", "tool": "qnnmem 0", "input": "m.onnx", "scratch_bytes": 64},
        **{"persistent_bytes": 0, "align_bytes": 64, "io": "inside", "inputs": ["a"]},
        **{"io_bytes": 0, "constant_bytes": 0, "lower_bound_bytes": 64, "optimal": True},
        **{"outputs": ["a"], "buffers": [_row(0)]},
        **changes,
    }


def _row(offset: int) -> dict[str, object]:
    place = {"name": "a", "pool": "scratch", "size_bytes": 64, "offset_bytes": offset}
    return {**place, "lower": 0, "upper": 1, "aliases": []}


def _placed(offset: int, **changes: object) -> dict[str, object]:
    return _plan(buffers=[_row(offset)], **changes)


BAD = {
    "another result": ({"schema": "qnnmem.socs/1"}, "not a plan"),
    "a plan cut short": ({"schema": "qnnmem.plan/1"}, "is an incomplete plan"),
    "no plans": ({"schema": "qnnmem.plans/1", "plans": []}, "not a plan"),
    "a size that is none": (_plan(scratch_bytes="many"), "is an incomplete plan"),
    "a size below zero": (_plan(persistent_bytes=-1), "is an incomplete plan"),
    "no alignment": (_plan(align_bytes=0), "is an incomplete plan"),
    "a pool over 32 bits": (_plan(scratch_bytes=1 << 32), "sizes in 32 bits"),
    "an offset over 32 bits": (
        _placed(8589934592),
        "at offset 8,589,934,592 in scratch, past the end",
    ),
    "an offset at the end": (_placed(64), "past the end: the tensor has 64 bytes, scratch has 64"),
    "an offset into the end": (
        _placed(64, scratch_bytes=100),
        "past the end: the tensor has 64 bytes, scratch has 100",
    ),
    "a crooked offset": (
        _placed(32, scratch_bytes=128),
        "at offset 32 in scratch, which is not a multiple of 64",
    ),
    "a crooked alignment": (_plan(align_bytes=48), "power of two up to 4096, not 48"),
    "a large alignment": (_plan(align_bytes=8192), "power of two up to 4096, not 8192"),
    "a huge alignment": (_plan(align_bytes=1 << 40), "power of two up to 4096"),
    "a crooked second": (
        {"schema": "qnnmem.plans/1", "plans": [_plan(), _plan(input="n.onnx", align_bytes=3)]},
        "the alignment of graph 'n' must be a power of two",
    ),
    "a name with a NUL": (_plan(input="a\0b.onnx"), "a name that C cannot use"),
    "no name": (_plan(input=""), "a name that C cannot use"),
    "twice the same": ({"schema": "qnnmem.plans/1", "plans": [_plan(), _plan()]}, "two graphs"),
    "a list": ([1, 2], "export-c|neither|incomplete plan"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_a_plan_that_is_none_is_refused(content: object, words: str, tmp_path: Path) -> None:
    """An invalid plan is refused with one sentence and exit code 2."""
    import re

    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    done = verb("lpai")("export-c", file)
    assert exit_code(done) == 2
    assert re.search(words, sentence(done)), sentence(done)


@pytest.mark.parametrize("align", [1, 16, 4096])
def test_places_within_scratch_are_taken(align: int, tmp_path: Path) -> None:
    """Offsets up to the last byte of scratch are accepted, each with its graph's alignment."""
    file = tmp_path / "plans.json"
    placed = _placed(align, scratch_bytes=align + 64, align_bytes=align)
    plans = [placed, _plan(input="n.onnx", align_bytes=4096)]
    file.write_text(json.dumps({"schema": "qnnmem.plans/1", "plans": plans}))
    assert read_client_plan(file).graphs[0].inputs[0].offset == align


@pytest.mark.parametrize("depth", [10_000, 200_000])
def test_a_deep_file_is_refused(depth: int, tmp_path: Path) -> None:
    """A deeply nested file is refused without a stack overflow."""
    file = tmp_path / "plan.json"
    file.write_text('{"schema": "qnnmem.plan/1", "buffers": ' + "[" * depth + "]" * depth + "}")
    assert exit_code(verb("lpai")("export-c", file)) == 2


@pytest.mark.parametrize("name", ["small.onnx", "small_htp.bin", "graph_limit.log"])
def test_other_files_are_refused_by_what_they_are(name: str) -> None:
    """A file that is neither an LPAI binary nor a plan is refused."""
    done = verb("lpai")("export-c", ROOT / "examples" / name)
    assert exit_code(done) == 2
    assert "neither an LPAI context binary nor a plan" in sentence(done)


def test_a_damaged_binary_is_refused(tmp_path: Path) -> None:
    """A damaged binary is refused with exit code 2."""
    file = tmp_path / "model.bin"
    content = bytearray(SMALL.read_bytes())
    content[200] ^= 0xFF
    file.write_bytes(content)
    assert exit_code(verb("lpai")("export-c", file)) == 2


def test_the_renderer_refuses_what_is_not_inside(tmp_path: Path) -> None:
    """The renderer refuses IO outside scratch if the client expects IO in scratch."""
    with pytest.raises(UsageError, match="provide buffers"):
        render_client(read_client_plan(_outside(tmp_path)), "qnnmem 0", io_in_scratch=True)


@needs_cc
def test_a_standalone_client_compiles_without_any_header(tmp_path: Path) -> None:
    """A standalone client compiles without any header."""
    plan = read_client_plan(SMALL)
    source = tmp_path / "client.c"
    source.write_text(render_client(plan, "qnnmem", declarations=declarations()), "utf-8")
    command = ["gcc", "-std=c11", *STRICT, "-c", str(source), "-o", str(tmp_path / "client.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
