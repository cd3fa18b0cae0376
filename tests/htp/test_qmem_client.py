"""A client of the HTP backend, call by call: correct use, and each mistake with its finding."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from context_writer import example_context, example_graph, pack_context

from qnnmem import htp
from qnnmem.contract.leaks import leaks, report
from qnnmem.contract.rules import MEASURED, QMEM, rules
from qnnmem.errors import NoCompiler, QnnError, UsageError
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import CompileOptions, compile_model
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.provoke import sliced_inputs
from qnnmem.htp.qmem.layer import Places
from qnnmem.htp.qmem.misuse import MISUSES, contract_answer, obstacle_to_misuse, try_misuses
from qnnmem.htp.worker import Worker
from qnnmem.qnn.enums import DataType, MemRegisterType, TensorMemType, TensorType
from qnnmem.qnn.tensor import QnnTensor, Quantization, TensorInfo
from qnnmem.targets.socs import find_soc

needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)
U8 = DataType.UFIXED_POINT_8
# Code or fatal signal of the x86 library for each mistake; all other mistakes give 1000.
LIBRARY = {
    "short-raw": (None, 11),
    "unknown-handle": (None, 11),
    "short-size": (0, None),
    "no-memory-type": (0, None),
    "no-buffer": (6004, None),
    "no-handle": (6004, None),
    "dead-graph": (6001, None),
    "freed-twice": (5002, None),
}
CONTRACT = {
    "registered-twice": (8002, "Q1"),
    "closed-fd": (8003, "Q2"),
    "wrong-offset": (8004, "Q3"),
    "unaligned-offset": (8004, "Q3"),
    "wrong-size": (8004, "Q3"),
    "wrong-type": (8005, "Q4"),
    "dead-context": (8001, "Q5"),
    "deregistered-twice": (8001, "Q5"),
    "deregistered-executed": (6004, "Q7"),
    "other-context": (6004, "Q10"),
    "freed-registered": (6004, "Q8"),
    "leak": (0, "Q9"),
    "short-handle": (6004, "Q7"),
    "short-raw": (6004, "Q7"),
    "short-size": (6004, "Q7"),
    "no-buffer": (6004, "Q7"),
    "no-handle": (6004, "Q7"),
    "unknown-handle": (6004, "Q7"),
    "no-memory-type": (0, "Q12"),
    "overlap": (0, "Q11"),
    "dead-graph": (6001, "Q13"),
    "freed-twice": (5002, "Q13"),
}


def tensor(number: int, name: str, size: int) -> TensorInfo:
    """Return an 8-bit tensor; a name from y on is an output."""
    kind = TensorType.APP_READ if name >= "y" else TensorType.APP_WRITE
    return TensorInfo(number, name, kind, U8, (size,), Quantization(0, (0.5,), (0,)))


def small_graph(**changes: Any) -> HtpGraph:
    """Return a graph that adds one to 200 bytes."""
    sides = {"inputs": (tensor(1, "x", 200),), "outputs": (tensor(2, "y", 200),)}
    made: HtpGraph = example_graph("adder", **(sides | changes))
    return made


def write(folder: Path, *graphs: HtpGraph) -> Path:
    """Write a binary with these graphs."""
    path = folder / "model.bin"
    path.write_bytes(pack_context(example_context(*graphs)))
    return path


def add_one(inputs: Places, outputs: Places) -> None:
    """Compute the graph instead of the library."""
    outputs["y"].view[:] = bytes((value + 1) % 256 for value in inputs["x"].view)


class Client:
    """A graph, its tensors as raw memory, and a shared buffer of two pages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = htp.HtpBackend.create(compute=add_one)
        self.context = htp.HtpClientContext.create_from_binary(self.backend, path)
        self.graph = self.context.graph_retrieve()
        (self.x,), (self.y,) = self.graph.tensors()
        for one in (self.x, self.y):
            one.mem_type, one.client_buf = TensorMemType.RAW, bytearray(one.nbytes)
        buffer = htp.rpcmem_alloc(htp.RPCMEM_HEAP_ID_SYSTEM, htp.RPCMEM_DEFAULT_FLAGS, 8192)
        assert buffer is not None
        self.buffer = buffer

    def place(self, offset: int = 0, size: int = 200) -> htp.HtpMemDescriptor:
        """Return a descriptor of bytes in the shared buffer."""
        fd, kind = htp.rpcmem_to_fd(self.buffer), MemRegisterType.CUSTOM
        return htp.HtpMemDescriptor((size,), U8, fd, kind, total_size=8192, offset=offset)

    def register(self, offset: int = 0, size: int = 200) -> Any:
        """Return a registered handle."""
        return self.context.mem_register([self.place(offset, size)])[0]

    def give(self, one: QnnTensor, handle: Any) -> None:
        """Set the handle as the memory of a tensor."""
        one.mem_type, one.mem_handle = TensorMemType.MEMHANDLE, handle

    def execute(self) -> Any:
        """Execute the graph with the current memory of the tensors."""
        return self.graph.execute([self.x], [self.y])

    def refused(self, code: int, rule: str) -> str:
        """Check that the execution is refused, and return the sentence."""
        with pytest.raises(QnnError) as caught:
            self.execute()
        assert (caught.value.code, caught.value.finding.rule) == (code, rule)
        assert code in rules(QMEM)[rule].codes
        return caught.value.finding.sentence

    @property
    def rules(self) -> list[str]:
        """The rules of all findings."""
        return [finding.rule for finding in self.backend.findings]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client and free its memory after the test."""
    made = Client(write(tmp_path, small_graph()))
    yield made
    made.buffer.close()
    if not made.backend.is_freed:
        made.backend.free()


# --- Correct use ---------------------------------------------------------------------------------


def test_a_handle_serves_many_executions(client: Client) -> None:
    """A registered handle serves several executions without copies or reservations."""
    source, result = client.context.mem_register([client.place(), client.place(256)])
    client.give(client.x, source)
    client.give(client.y, result)
    for number in range(3):
        client.buffer.view[:200] = bytes([number]) * 200
        ran = client.execute()
        assert bytes(client.buffer.view[256:456]) == bytes([number + 1]) * 200
        assert (ran.copied_in, ran.copied_out, ran.reserved) == (0, 0, 0)
    client.context.mem_deregister([source, result])
    htp.rpcmem_free(client.buffer)
    client.context.free()
    assert client.backend.free() == ()


def test_raw_and_memhandle_give_the_same(client: Client) -> None:
    """Raw memory and handles give the same output; only the copied bytes differ."""
    client.x.client_buf[:] = bytes(range(200))
    assert client.execute().copied_in == 200
    raw = bytes(client.y.client_buf)
    handle = client.register()
    client.buffer.view[:200] = bytes(range(200))
    client.give(client.x, handle)
    ran = client.execute()
    assert (ran.copied_in, ran.copied_out, bytes(client.y.client_buf)) == (0, 200, raw)
    client.context.mem_deregister([handle])
    assert client.rules == []


def test_memory_is_registered_again_after_it_was_let_go(client: Client) -> None:
    """A deregistered place can be registered again; the old handle stays invalid."""
    old = client.register()
    client.context.mem_deregister([old])
    new = client.register()
    client.give(client.x, old)
    assert "was already deregistered" in client.refused(6004, "Q7")
    client.give(client.x, new)
    client.execute()
    client.context.mem_deregister([new])


def test_tensors_are_matched_by_id_in_any_order(tmp_path: Path) -> None:
    """Tensors are matched by id, in any order."""
    two = small_graph(inputs=(tensor(1, "w", 10), tensor(3, "x", 200)))
    backend = htp.HtpBackend.create(compute=add_one)
    context = htp.HtpClientContext.create_from_binary(backend, write(tmp_path, two))
    graph = context.graph_retrieve("adder")
    (w, x), (y,) = graph.tensors()
    for one in (w, x, y):
        one.client_buf = bytearray(one.nbytes)
    graph.execute([x, w], [y])
    assert y.client_buf == bytearray([1]) * 200
    context.free()
    assert backend.free() == ()


def test_a_handle_may_be_let_go_through_another_context(client: Client) -> None:
    """A handle may be deregistered through another context, like in the C call."""
    other = htp.HtpClientContext.create_from_binary(client.backend, client.path)
    handle = client.register()
    other.mem_deregister([handle])
    other.free()
    client.context.free()
    assert client.backend.free() == ()


def test_rpcmem_gives_null_as_on_a_device() -> None:
    """`rpcmem_alloc` returns None for an unknown heap, no bytes or 2 GiB, like on a device."""
    flags = htp.RPCMEM_DEFAULT_FLAGS
    for heap, size in ((7, 64), (25, 0), (25, -1), (25, 1 << 31)):
        assert htp.rpcmem_alloc(heap, flags, size) is None
    assert htp.rpcmem_to_fd(None) == -1
    htp.rpcmem_free(None)
    with pytest.raises(UsageError, match="whole numbers"):
        htp.rpcmem_alloc(25, flags, "64")  # type: ignore[arg-type]


# --- Mistakes ------------------------------------------------------------------------------------


def test_every_mistake_has_its_code_and_rule(tmp_path: Path) -> None:
    """Each mistake has its code and rule, with a sentence, a cure and a source."""
    path, graph = write(tmp_path, small_graph()), small_graph()
    rows = try_misuses(path, graph, None)
    assert {row.id: (row.code, row.rule) for row in rows} == CONTRACT
    for row in rows:
        assert row.library is None
        assert all((row.sentence, row.cure, row.source))
        assert row.code == 0 or row.code in rules(QMEM)[row.rule].codes
        _code, found = contract_answer(path, graph.name, MISUSES[row.id].make)
        assert found.call
        assert "contract_answer" in found.line  # the nearest line outside the package


def test_findings_name_the_lines_of_the_client(client: Client) -> None:
    """A finding names the line of the wrong call, and its sentence the line that freed a handle."""
    handle = client.register()
    client.context.mem_deregister([handle])  # here
    client.give(client.x, handle)
    with pytest.raises(QnnError) as caught:
        client.execute()
    found = caught.value.finding
    assert found.line.startswith("test_qmem_client.py:")
    assert "self.graph.execute" not in found.sentence
    gone = found.sentence.rpartition(":")[2]
    line = Path(__file__).read_text("utf-8").splitlines()[int(gone) - 1]
    assert line.strip() == "client.context.mem_deregister([handle])  # here"


def test_a_leak_names_the_line_that_registered(client: Client) -> None:
    """A leak names the line that registered the handle, not the line that freed the context."""
    client.context.mem_register([client.place()])
    client.context.free()
    (found,) = client.backend.free()
    assert (found.rule, found.call) == ("Q9", "QnnContext_free")
    assert found.line.endswith("client.context.mem_register([client.place()])")


def test_freeing_a_registered_buffer_is_found_at_that_line(client: Client) -> None:
    """Freeing a registered buffer is a finding at that line, and the next execution is refused."""
    handle = client.register()
    htp.rpcmem_free(client.buffer)
    (found,) = client.backend.findings
    assert (found.rule, found.call) == ("Q8", "rpcmem_free")
    assert found.line.endswith("htp.rpcmem_free(client.buffer)")
    client.give(client.x, handle)
    client.refused(6004, "Q8")
    client.context.mem_deregister([handle])
    assert client.rules == ["Q8", "Q8"]


def test_a_freed_buffer_is_no_raw_memory(client: Client) -> None:
    """A freed buffer, or a view of one, is refused as raw memory."""
    view = client.buffer.view[:200]
    client.x.client_buf = client.buffer
    client.execute()
    view.release()
    htp.rpcmem_free(client.buffer)
    assert "was freed at test_qmem_client.py:" in client.refused(6004, "Q8")
    client.x.client_buf = view
    client.refused(6004, "Q8")


def test_an_array_outlives_the_buffer_it_shows(client: Client) -> None:
    """A NumPy array of a freed buffer stays readable."""
    array = numpy.frombuffer(client.buffer.view, "uint8")
    htp.rpcmem_free(client.buffer)
    assert client.buffer.is_freed
    assert array.sum() == 0


def test_what_is_not_executed_as_it_was_prepared_is_said(client: Client) -> None:
    """Executing with handles a graph prepared raw gives one remark and no finding."""
    client.execute()
    assert list(client.graph.remarks) == []
    source, target = client.context.mem_register([client.place(), client.place(256)])
    client.give(client.x, source)
    client.give(client.y, target)
    client.execute()
    client.execute()
    [said] = client.graph.remarks
    assert "prepared raw but executed with memory handles" in said
    assert client.rules == []


def test_outputs_over_other_tensors_are_reported(client: Client) -> None:
    """An output that overlaps another tensor is a finding with the shared bytes."""
    source, over, beside = client.context.mem_register(
        [client.place(), client.place(128), client.place(256)]
    )
    client.give(client.x, source)
    client.give(client.y, beside)
    client.execute()
    assert client.rules == []
    client.give(client.y, over)
    client.execute()
    (found,) = client.backend.findings
    assert found.rule == "Q11"
    assert "'y' shares 72 bytes" in found.sentence
    client.context.mem_deregister([source, over, beside])


def test_sharing_that_the_compiler_allows_is_no_mistake(tmp_path: Path) -> None:
    """With isSafeShareIO in the binary, an output may overlap an input."""
    client = Client(write(tmp_path, small_graph(safe_share_io=True)))
    source, over = client.context.mem_register([client.place(), client.place(128)])
    client.give(client.x, source)
    client.give(client.y, over)
    client.execute()
    client.context.mem_deregister([source, over])
    client.buffer.close()
    client.context.free()
    assert client.backend.free() == ()


def test_sizes_and_tensors_that_are_wrong(client: Client) -> None:
    """A wrong size or id is refused with 6004, and a missing input with 6000."""
    client.x.data_size = 0
    client.refused(6004, "Q7")
    client.x.data_size = 200
    client.execute()
    client.x.id = 99
    client.refused(6004, "Q7")
    with pytest.raises(QnnError) as caught:
        client.graph.execute([], [client.y])
    assert (caught.value.code, caught.value.finding.source) == (6000, MEASURED)


def test_a_handle_needs_its_memory_type(client: Client) -> None:
    """A handle without its memory type and a type without a handle have separate messages."""
    client.x.client_buf, client.x.mem_handle = None, client.register()
    assert "memory type is not MEMHANDLE" in client.refused(6004, "Q7")
    client.x.mem_type, client.x.mem_handle = TensorMemType.MEMHANDLE, None
    client.x.client_buf = bytearray(200)
    assert "no handle, only a raw buffer" in client.refused(6004, "Q7")


def test_what_is_freed_cannot_be_used(client: Client) -> None:
    """After a free, a context gives no graph and a backend no context; a second free is refused."""
    client.context.free()
    with pytest.raises(QnnError, match="5002"):
        client.context.graph_retrieve("adder")
    client.backend.free()
    for call in (
        client.backend.free,
        lambda: htp.HtpClientContext.create_from_binary(client.backend, client.path),
    ):
        with pytest.raises(QnnError, match="4011"):
            call()
    assert set(client.rules) == {"Q13"}


def test_a_context_that_outlives_its_backend_is_found(client: Client) -> None:
    """Freeing a backend before its context is a finding with the line that made the context."""
    client.register()
    found = client.backend.free()
    assert [one.rule for one in found] == ["Q9", "Q13"]
    assert "create_from_binary" in found[1].line


@pytest.mark.parametrize("offset", [1024, 64, 1, -64])
def test_ion_has_no_offset(client: Client, offset: int) -> None:
    """ION memory with an offset is refused with 8005, because ION would read from the start."""
    fd = htp.rpcmem_to_fd(client.buffer)
    places = [htp.HtpMemDescriptor((64,), U8, fd, offset=at) for at in (0, offset)]
    with pytest.raises(QnnError) as caught:
        client.context.mem_register(places)
    found = caught.value.finding
    assert (caught.value.code, found.rule, found.given) == (8005, "Q4", offset)
    assert f"memory of type ION has no offset, but the offset is {offset:,}" in found.sentence
    assert "CUSTOM with SHARED_BUFFER" in found.sentence
    assert client.rules == ["Q4"]


@pytest.mark.parametrize(("total", "offset"), [(0, 0), (0, 256), (-1, 0)])
def test_a_total_size_that_was_left_out_is_named(client: Client, total: int, offset: int) -> None:
    """A missing total size is refused with 8004, and the sentence states the buffer's size."""
    with pytest.raises(QnnError) as caught:
        client.context.mem_register([replace(client.place(offset), total_size=total)])
    found = caught.value.finding
    assert (caught.value.code, found.rule) == (8004, "Q3")
    assert f"the total size in the descriptor is {total};" in found.sentence
    assert found.sentence.endswith("has 8,192 bytes")
    assert (found.need, found.given) == (offset + 200, total)


def test_a_graph_that_is_not_there_is_6002(client: Client) -> None:
    """A wrong graph name is refused with 6002, and the message lists the graphs."""
    with pytest.raises(QnnError, match=r"6002.*'adder'"):
        client.context.graph_retrieve("subtracter")


def test_what_is_never_freed_is_said_at_the_end_of_the_process(tmp_path: Path) -> None:
    """Objects that are not freed are reported on standard error at exit, with their lines."""
    path = write(tmp_path, small_graph())
    script = tmp_path / "forgetful.py"
    script.write_text(
        "import sys\n"
        "from qnnmem import htp\n"
        "backend = htp.HtpBackend.create()\n"
        f"context = htp.HtpClientContext.create_from_binary(backend, {str(path)!r})\n"
        "buffer = htp.rpcmem_alloc(25, 1, 4096)\n"
        "place = htp.HtpMemDescriptor((200,), 0x408, buffer.fd)\n"
        "handles = context.mem_register([place])\n"
        "if len(sys.argv) > 1:\n"
        "    context.mem_deregister(handles)\n"
        "    htp.rpcmem_free(buffer)\n"
        "    context.free()\n"
        "    backend.free()\n",
        "utf-8",
    )
    said = [
        subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, check=True
        ).stderr
        for words in ((), ("tidy",))
    ]
    assert "[Q9]" in said[0]
    assert "forgetful.py:7: handles = context.mem_register([place])" in said[0]
    assert "[Q13]" in said[0]
    assert "forgetful.py:4" in said[0]
    assert "[Q15] a buffer of 4,096 bytes was never freed (forgetful.py:5: buffer = " in said[0]
    assert said[1] == ""


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("", ["qnnmem: 2 not freed", "heap.py:3"]),
        ("htp.rpcmem_free(two)", ["qnnmem: 1 not freed", "heap.py:3"]),
        ("one.close(); two.close()", []),
        ("one.close(); htp.rpcmem_free(two); two.close()", []),
        (
            "htp.rpcmem_free(one); htp.rpcmem_free(two); htp.rpcmem_free(two)",
            ["qnnmem: 1 freed twice", "heap.py:4"],
        ),
        ("import os; os.environ['QNNMEM_LEAKS'] = '0'", []),
    ],
)
def test_buffers_without_a_backend_are_told_at_the_end(
    tmp_path: Path, last: str, said: list[str]
) -> None:
    """Buffers that are not freed are reported at exit, even if no variable refers to them."""
    script = tmp_path / "heap.py"
    lines = ("import os; os.environ.pop('QNNMEM_LEAKS', None)", "from qnnmem import htp")
    made = "one, two = (htp.rpcmem_alloc(25, 1, 64) for _ in range(2))"
    script.write_text("\n".join((*lines, made, last, "del one, two")), "utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    found = done.stderr.splitlines()
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


@pytest.mark.parametrize("kind", ["O", "datetime64[s]"])
def test_memory_of_objects_is_no_buffer(client: Client, kind: str) -> None:
    """An array of objects or dates is refused as a raw buffer, because writing would corrupt it."""
    client.y.client_buf = numpy.zeros(200, kind)
    assert "does not contain plain numbers" in client.refused(6004, "Q7")


def test_a_session_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    """A session that fails to open, and a forked child, report no leaks at exit."""
    path = write(tmp_path, small_graph())
    script = tmp_path / "failing.py"
    script.write_text(
        "import os; os.environ.pop('QNNMEM_LEAKS', None)\n"
        "from qnnmem import htp\n"
        "try:\n"
        f"    htp.open({str(path)!r}, graph='nope', compute=print)\n"
        "except Exception:\n"
        "    pass\n"
        "buffer = htp.rpcmem_alloc(25, 1, 64)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "    htp.rpcmem_free(buffer)\n",
        "utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_buffer_freed_twice_is_found(client: Client) -> None:
    """Freeing a buffer twice is a finding at the second call that names the line of the first."""
    htp.rpcmem_free(client.buffer)
    new = htp.rpcmem_alloc(htp.RPCMEM_HEAP_ID_SYSTEM, htp.RPCMEM_DEFAULT_FLAGS, 64)
    htp.rpcmem_free(new)
    assert client.rules == []
    htp.rpcmem_free(client.buffer)  # again
    (found,) = client.backend.findings
    assert (found.rule, found.call) == ("Q15", "rpcmem_free")
    assert "8,192 bytes was already freed at test_qmem_client.py:" in found.sentence
    assert found.line.endswith("# again")


def test_a_buffer_freed_twice_after_its_backend_is_found(client: Client) -> None:
    """A buffer freed again after its backend is still a finding of that backend."""
    htp.rpcmem_free(client.buffer)
    client.context.free()
    assert client.backend.free() == ()
    htp.rpcmem_free(client.buffer)
    assert client.rules == ["Q15"]


def test_the_end_of_the_process_can_be_kept_quiet(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """QNNMEM_LEAKS=0 disables the report at exit, like for LPAI."""
    monkeypatch.setenv("QNNMEM_LEAKS", "0")
    report()
    assert capsys.readouterr().err == ""
    assert not client.context.is_freed
    assert "Q13" in [found.rule for found in leaks()]


def test_graphs_too_small_for_mistakes_are_told(client: Client) -> None:
    """`obstacle_to_misuse` names a graph without inputs or with less than 128 bytes of input."""
    assert obstacle_to_misuse(small_graph()) == ""
    short = small_graph(inputs=(tensor(1, "x", 100),))
    assert "less than 128 bytes" in obstacle_to_misuse(short)
    assert "no input" in obstacle_to_misuse(small_graph(inputs=()))


def test_executing_without_the_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library, registration works and the first execution raises NoCompiler."""

    def nowhere() -> None:
        raise NoCompiler("the real HTP library is not installed")

    monkeypatch.setattr("qnnmem.htp.worker.find_library", nowhere)
    with (
        htp.open(write(tmp_path, small_graph())) as session,
        pytest.raises(NoCompiler, match="not installed"),
    ):
        session.run({"x": numpy.zeros(200, "uint8")})


# --- Sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["raw", "memhandle"])
def test_a_session_runs_and_lets_go(tmp_path: Path, io: str) -> None:
    """A session returns separate results for each run, and closing leaves no findings."""
    values = numpy.arange(200, dtype="uint8")
    with htp.open(write(tmp_path, small_graph()), io=io, compute=add_one) as session:
        first = session.run({"x": values})["y"]
        second = session.run({"x": values + 1})["y"]
        assert session.last is not None
        assert (session.last.copied_in == 0) is (io == "memhandle")
    assert (first == values + 1).all()
    assert (second == values + 2).all()
    assert session.findings == ()
    session.close()


def test_a_session_refuses_other_values(tmp_path: Path) -> None:
    """A session refuses unknown names, wrong types or shapes, and unknown io modes."""
    path = write(tmp_path, small_graph())
    with pytest.raises(UsageError, match="raw or memhandle"):
        htp.open(path, io="ion")
    with htp.open(path, compute=add_one) as session:
        for feeds, words in (
            ({}, "'x' is missing"),
            ({"x": numpy.zeros(200, "uint8"), "z": 1}, "'z' is missing or unknown"),
            (
                {"x": numpy.zeros(200, "float32")},
                r"type uint8 and shape \[200\], but the array has type float32",
            ),
            ({"x": numpy.zeros(199, "uint8")}, "type uint8 and shape \\[199\\]"),
            (7, "mapping"),
        ):
            with pytest.raises(UsageError, match=words):
                session.run(feeds)  # type: ignore[arg-type]


# --- The real library ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a model that returns the first row of its input."""
    folder = tmp_path_factory.mktemp("sliced")
    (folder / "sliced.onnx").write_bytes(sliced_inputs(1, 1))
    binary = folder / "sliced.bin"
    made = compile_model(
        folder / "sliced.onnx", find_soc("SM8650"), CompileOptions(memhandle=True), output=binary
    )
    assert made.log is not None
    return binary


@pytest.mark.htp
@needs_library
@pytest.mark.parametrize("io", ["raw", "memhandle"])
def test_the_library_computes_in_the_clients_memory(sliced: Path, io: str) -> None:
    """The real library computes the same in raw memory and in handles, also when reused."""
    random = numpy.random.default_rng(5)
    with htp.open(sliced, io=io) as session:
        (given,), (wanted,) = session.graph.described.inputs, session.graph.described.outputs
        for _ in range(2):
            values = random.integers(0, 256, given.dimensions).astype("uint8")
            found = session.run({given.name: values})[wanted.name]
            assert found.ravel().tolist() == values[0, 0, 0].tolist()
        assert session.last is not None
        copied = session.last.copied_in + session.last.copied_out
        assert copied == (0 if io == "memhandle" else given.nbytes + wanted.nbytes)
    assert session.findings == ()


@pytest.mark.htp
@needs_library
def test_the_library_answers_mistakes_as_documented(sliced: Path) -> None:
    """The library answers each mistake with the code that the contract quotes from the library."""
    graph = read_context(sliced).graphs[0]
    with Worker() as worker:
        rows = try_misuses(sliced, graph, 57, worker=worker)
    answers = {row.id: row.library for row in rows}
    for name, answer in answers.items():
        assert answer is not None
        assert (answer.code, answer.signal) == LIBRARY.get(name, (1000, None)), name
    same = {row.id for row in rows if row.library and row.library.code == row.code != 0}
    assert same == {row.id for row in rows if row.source == MEASURED}


@pytest.mark.htp
@needs_library
def test_a_limit_ends_an_execution(sliced: Path) -> None:
    """An execution over the time limit raises CannotTell."""
    from qnnmem.errors import CannotTell

    backend = htp.HtpBackend.create(time_limit_s=0.001)
    context = htp.HtpClientContext.create_from_binary(backend, sliced)
    (x,), (y,) = context.graph_retrieve().tensors()
    for one in (x, y):
        one.mem_type, one.client_buf = TensorMemType.RAW, bytearray(one.nbytes)
    with pytest.raises(CannotTell, match="not finished within"):
        context.graph_retrieve().execute([x], [y])
    context.free()
    assert backend.free() == ()


def test_the_descriptor_is_frozen(client: Client) -> None:
    """A descriptor is an immutable value: a changed copy compares unequal."""
    assert replace(client.place(), offset=64) != client.place()


def test_the_page_names_no_line_that_depends_on_where_it_is_pasted() -> None:
    """Python on the Qmem page names no line numbers, because users paste it at any line."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "commands" / "qmem.md"
    blocks = page.read_text("utf-8").split("```python\n")[1:]
    assert blocks
    assert not [one for one in blocks if re.search(r"\.py:\d", one.split("```")[0])]
