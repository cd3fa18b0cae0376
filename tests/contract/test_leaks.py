from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qnnmem import lpai
from qnnmem.contract.leaks import Resource, separate
from qnnmem.errors import UsageError
from qnnmem.lpai.selftest.client import Client
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.enums import DataType

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _alone() -> Iterator[Resource]:
    """Hide objects that other tests left."""
    with separate() as process:
        yield process


def make() -> lpai.Context:
    """Return a context with its own backend."""
    return lpai.Context.create_from_binary(lpai.Backend.create(), binary(), trusted=True)


def left() -> list[tuple[str, str]]:
    """Return the rule and the sentence of each leak."""
    return [(found.rule, found.sentence) for found in lpai.leaks()]


def test_each_thing_is_named_with_the_line_that_made_it() -> None:
    """A leaked backend, context, graph and signal each name the line of the caller."""
    context = make()
    context.graph_retrieve("plain")
    lpai.Signal()
    sentences = [sentence for _, sentence in left()]
    assert [rule for rule, _ in left()] == ["L1", "L2", "L2", "L4"]
    assert all(f"{HERE}:" in sentence for sentence in sentences)
    lines = [sentence.split(f"{HERE}:")[1].split(",")[0].split()[0] for sentence in sentences]
    first = make.__code__.co_firstlineno
    assert lines[:2] == [str(first + 2)] * 2
    assert len(set(lines)) == 3


def test_what_is_freed_is_not_left() -> None:
    """Freeing everything in the documented order leaves no leak."""
    client = Client("plain").ready()
    signal = lpai.Signal(client.backend)
    client.graph.execute(signal=signal)
    signal.free()
    client.context.free()
    client.backend.free()
    assert (client.rules, left()) == ([], [])


def test_a_backend_that_made_nothing_leaves_nothing() -> None:
    """A backend without objects is not a leak, because a property query needs no free."""
    lpai.Backend.create()
    assert left() == []


def test_what_python_collected_is_still_not_freed() -> None:
    """Dropping the last Python reference does not free an object."""
    make().graph_retrieve("plain")
    assert [rule for rule, _ in left()] == ["L1", "L2", "L2"]


def test_a_backend_freed_too_early_names_what_it_leaves() -> None:
    """Objects left at the release of a backend are findings once, not again at exit."""
    client = Client("plain").ready()
    lpai.Signal(client.backend)
    client.backend.free()
    assert client.rules == ["L1"] * 3
    sentences = [found.sentence for found in client.backend.findings]
    assert all("was not freed before the backend" in sentence for sentence in sentences)
    assert left() == []
    client.context.free()
    assert client.rules == ["L1"] * 3


def test_registered_memory_is_named_when_its_context_goes(tmp_path: Path) -> None:
    """Registered memory is named when its context is freed; deregistered memory is not."""
    client = Client("plain")
    with (tmp_path / "shared").open("w+b") as file:
        file.truncate(4096)
        handles = client.context.mem_register(
            [
                lpai.MemDescriptor(
                    (1, 25), DataType.INT_32, custom_info=lpai.MemInfoCustom(file.fileno(), at)
                )
                for at in (0, 128)
            ]
        )
        assert [rule for rule, _ in left()].count("L3") == 2
        client.context.mem_deregister(handles[:1])
        client.context.free()
    assert client.rules == ["L3"]
    assert f"memory of 100 bytes, registered at {Path(__file__).name}" in (
        client.backend.findings[0]
        .sentence.replace(f"{Path(__file__).parent}{os.sep}", "")
        .replace("tests/contract/", "")
    )


def test_a_session_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    """A session that fails to open frees everything that it made."""
    path = tmp_path / "all.bin"
    path.write_bytes(binary())
    with pytest.raises(UsageError, match="several graphs"):
        lpai.open(path, trusted=True)
    assert left() == []
    session = lpai.open(path, graph="plain", trusted=True)
    assert [rule for rule, _ in left()] == ["L1", "L2", "L2"]
    session.close()
    assert left() == []


def test_names_with_braces_are_only_names() -> None:
    """A graph name with braces appears unchanged in the sentence."""
    made = Resource("backend", "L1", "the backend made at {at}", Resource("process", "", ""))
    made.part("graph", "L2", "graph '{0}{x}', retrieved at {at},")
    (found,) = made.left("was never freed")
    assert found.sentence.startswith("graph '{0}{x}', retrieved at ")


def test_leaks_without_end_are_counted() -> None:
    """The list of leaks stops after 1,000 entries and counts the rest."""
    owner = Resource("process", "", "")
    for _ in range(1200):
        owner.part("context", "L2", "the context made at {at}")
    found = list(owner.left("was never freed"))
    assert len(found) == 1001
    assert found[-1].sentence.startswith("200 more resources, each ")


PROGRAM = """
import sys
from qnnmem import lpai
from qnnmem.lpai.selftest.models import binary
for _ in range(2):
    context = lpai.Context.create_from_binary(lpai.Backend.create(), binary(), trusted=True)
    context.graph_retrieve("plain")
"""


def run(tmp_path: Path, program: str, **environment: str) -> str:
    """Return the standard error of a program."""
    (tmp_path / "client.py").write_text(program, "utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "QNNMEM_LEAKS"}
    done = subprocess.run(
        [sys.executable, "client.py"],
        cwd=tmp_path,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_a_process_says_at_its_end_what_it_never_freed(tmp_path: Path) -> None:
    """At exit a process lists its leaks, with equal lines counted."""
    assert run(tmp_path, PROGRAM) == (
        "qnnmem: 6 not freed\n"
        "  [L1] the backend made at client.py:6 was never freed (2 times)\n"
        "  [L2] the context made at client.py:6 was never freed (2 times)\n"
        "  [L2] graph 'plain', retrieved at client.py:7, was never freed (2 times)\n"
    )


def test_the_list_can_be_switched_off(tmp_path: Path) -> None:
    """QNNMEM_LEAKS=0 switches the list off."""
    assert run(tmp_path, PROGRAM, QNNMEM_LEAKS="0") == ""


def test_a_traceback_is_not_followed_by_a_list(tmp_path: Path) -> None:
    """After a traceback no list follows, because the exception explains the leaks."""
    text = run(tmp_path, PROGRAM + "raise SystemError('other')\n")
    assert text.endswith("SystemError: other\n")
    assert "not freed" not in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_answers_for_itself_alone(tmp_path: Path) -> None:
    """A forked child lists only its own objects, not those of its parent."""
    text = PROGRAM + "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\n"
    assert run(tmp_path, text).count("not freed") == 1


def test_a_system_context_is_freed_too() -> None:
    """A leaked system context is found, although it has no backend."""
    system = lpai.SystemContext.create()
    (found,) = lpai.leaks()
    assert HERE in found.sentence
    assert found.line.endswith("system = lpai.SystemContext.create()")
    assert "QnnSystemContext_free" in found.cure
    system.free()
    assert left() == []
