"""The HTP binary in examples/: its numbers match the README and the pages on every machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from command_line import exit_code, run

ROOT = Path(__file__).parents[2]
BINARY = ROOT / "examples" / "small_htp.bin"
PAGES = [ROOT / "README.md", ROOT / "docs" / "how-to" / "htp-anywhere.md"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every HTP library, so that no test here can compile."""
    monkeypatch.setenv("QNNMEM_HTP_WORKER", "no-such-program-anywhere")


def test_it_is_small_and_what_it_was() -> None:
    """The example binary is 49,152 bytes, with a fixed checksum."""
    assert BINARY.stat().st_size == 49_152
    digest = hashlib.sha256(BINARY.read_bytes()).hexdigest()
    assert digest == "010a37179957eabcf48a5ae0246c50efa2aed5d232f5818c4f841c02c2fec3dc"


@pytest.mark.parametrize(
    ("verb", "first"),
    [
        ("inspect", "QNN context binary: 1 graph, soc_model 57, Hexagon v75"),
        ("footprint", "8,417,536 bytes (8.03 MiB) of memory on SM8650; VTCM is 100% of it"),
        ("fit", "fits SM8650: 0 bytes to spare in the VTCM, all of it used"),
        (
            "place",
            "fits: 1 context in 1 process domain, 3,640,179,455 bytes left in the last domain",
        ),
        ("qmem", "prepare and execute with memhandle: this saves 16,384 bytes (16.00 KiB)"),
    ],
)
def test_it_is_read_on_every_machine(verb: str, first: str) -> None:
    """Every HTP verb reads the example binary without a compiler or a device."""
    done = run(verb, BINARY)
    assert exit_code(done) == 0
    assert done.stdout.startswith(first)


def test_its_parts_are_known() -> None:
    """The JSON bill lists the parts that the compiler recorded in the file."""
    parts = json.loads(run("footprint", BINARY, "--json").stdout)["parts"]
    found = {name: part["bytes"] for name, part in parts.items() if part["bytes"]}
    assert found == {"weights": 8192, "IO": 16384, "op data": 4352, "VTCM": 8388608}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_say_that_it_is_read_not_compiled(page: Path) -> None:
    """Pages that show these numbers state that they are read, not compiled."""
    text = " ".join(page.read_text("utf-8").split())
    assert "read, not compiled" in text or "read from it, not compiled" in text
    assert "8,417,536 bytes (8.03 MiB) of memory on SM8650" in text
