"""Memory or not by words, where no entry knows a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.doctor.diagnose import diagnose
from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.kb.sides import features, first_side, side_of
from qnnmem.doctor.logs.memory_words import speaks_of_shortage
from qnnmem.doctor.logs.source import find_streams

WEIGHTS = {"allocate": 2.0, "memory": 1.5, "library": -2.0, "symbol": -1.5, "graph": 0.3}


def test_words_are_weighed() -> None:
    """Spellings of one word count as one, and a word alone says nothing."""
    memory = side_of("malloc of more mem went astray", WEIGHTS)
    other = side_of("the lib has another symbol", WEIGHTS)
    assert memory is not None
    assert memory.is_memory
    assert memory.told_by == ("allocate", "memory")
    assert other is not None
    assert not other.is_memory
    assert side_of("memory", WEIGHTS) is None


def test_words_that_disagree_say_nothing() -> None:
    """Also those that are known to say little."""
    assert side_of("the library would not allocate", WEIGHTS) is None
    assert side_of("a graph of a graph", WEIGHTS) is None


def test_who_says_it_and_which_number_does_not_count() -> None:
    """Names of programs and codes are no words; a size is one, whichever it is."""
    assert features("executorch 0x3ea") == frozenset()
    assert features("took 12 MB") & features("took 93847593 of it") == {"took", "#amount"}


def test_foreign_lines_are_left_alone() -> None:
    """A camera that has no buffer is none of ours."""
    assert first_side(["camera: could not allocate memory, heap full"]) is None
    assert first_side(["model: could not allocate memory, heap full"]) is not None


@pytest.mark.parametrize(
    "text",
    [
        "cannot reserve 1.2gb of address space for weights",
        "weights need 6.4 gb, exceeds what the npu can map",
        "rpcmem heap has no free blocks of 64 mb",
        "vtcm window 8mb, kernel asks 10.5mb -> abort",
        "nicht genug speicher für den kontext",
        "unable to allocate space for log handle",
        "mmap fails for the third part",
        "a context binary larger than ~2 gb fails to load",
        "rss keeps growing although sessions are released",
    ],
)
def test_shortage_in_whatever_words(text: str) -> None:
    """Something that takes memory fails, memory is gone, or an amount stands beside a limit."""
    assert speaks_of_shortage(text)


@pytest.mark.parametrize(
    "text",
    [
        "unsupported memory type in tensor descriptor",
        "failed to free memory of the session",
        "invalid memory handle, buffer already registered",
        "permission denied while mapping the dma heap",
        "failed to allocate new session on domain 3",
        "failed to write the cache: no space left on device",
        "the process was killed by the user, rss 2 gb",
        "kernel size 65 exceeds limit 63 of the buffer",
        "too many tensors for the memory plan, limit 2048",
    ],
)
def test_what_is_said_of_memory_and_is_no_shortage(text: str) -> None:
    """Types, handles, rights, and giving back."""
    assert not speaks_of_shortage(text)


def answers(path: Path, text: str) -> tuple[int, list[tuple[str, bool | str, str]]]:
    """The exit code, and of each incident verdict, side and confidence."""
    path.write_text(text, "utf-8")
    found = diagnose(find_streams([str(path)]), built_in())
    try:
        incidents: list[tuple[str, bool | str, str]] = [
            (one.verdict, one.is_memory, one.confidence) for one in found.incidents()
        ]
        return found.exit_code, incidents
    finally:
        found.close()


def test_a_side_by_words_is_a_guess(tmp_path: Path) -> None:
    """It counts as found, with low confidence."""
    text = "qnn runner: the symbol table of the plugin library is in disorder, error\n"
    assert answers(tmp_path / "a.log", text) == (1, [("memory", False, "low")])


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("system is low on memory, QNN session closed by OS\n", True),
        ("blob is for QCS8550, this board is QCS6490\n", False),
        ("QNNExecutionProvider not in available providers\n", False),
        ("oom_reaper: reaped process 6121 (snpe-net-run), now anon-rss:0kB\n", True),
        ("a\nb\nc\nd\nscratch memory 300000 bytes over HTP TCM budget 262144\n", True),
    ],
)
def test_a_message_needs_no_word_of_failure(tmp_path: Path, text: str, memory: bool) -> None:
    """What it names is believed; of more lines than a message only what is said of memory."""
    assert [side for _, side, _ in answers(tmp_path / "a.log", text)[1]] == [memory]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("QNN backend chosen by hand\nstep one\nstep two\nstep three\n", 3),
        ("QNN backend chosen by hand\nstep one\nstep two\ngraph finalize done\n", 0),
        ("QNN: the provider is loaded, all nodes run on the CPU\n", 3),
        ("QNN graph created, the execution never returns\n", 3),
    ],
)
def test_a_few_lines_without_an_outcome_are_not_healthy(
    tmp_path: Path, text: str, code: int
) -> None:
    """One line has to say that all went well."""
    assert answers(tmp_path / "a.log", text) == (code, [])


def test_a_failed_map_does_not_mean_that_the_dsp_did_not_start(tmp_path: Path) -> None:
    """Words that many lines share are no template."""
    assert all(verdict != "cause" for verdict, _, _ in answers(tmp_path / "a.log", _MAPS)[1])


_MAPS = "fastrpc_mmap failed err=1\nfastrpc_mmap failed err=1\n"


def test_1002_where_memory_is_registered_is_about_memory(tmp_path: Path) -> None:
    """Elsewhere it stands for many things."""
    for text in (
        "QnnMem_register returned 1002\n",
        "QNN_COMMON_ERROR_MEM_ALLOC at QnnMem_register\n",
    ):
        assert [side for _, side, _ in answers(tmp_path / "a.log", text)[1]] == [True]
