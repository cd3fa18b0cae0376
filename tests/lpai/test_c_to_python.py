"""The tutorial from C to Python: its Python runs, its C compiles, and both use the same calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qnnmem.programs.c_headers import write_headers

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "c-to-python.md"
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)


def together(kind: str, between: str = "") -> str:
    """Return all code blocks of one language, in order."""
    return between.join(text for name, text in BLOCKS if name == kind)


def test_the_python_is_one_program_that_prints_what_the_page_says(tmp_path: Path) -> None:
    """The page's Python prints exactly the output that the page shows."""
    (tmp_path / "page.py").write_text(together("py", "\n"), "utf-8")
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == together("text")


@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_the_c_is_one_file_that_compiles(program: str, tmp_path: Path) -> None:
    """The page's C compiles without a warning against qnnmem's headers."""
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    file = tmp_path / "page.c"
    file.write_text(together("c", "\n"), "utf-8")
    quiet = ("-Wno-unused-function", "-Wno-unused-variable")  # the page has no main function
    flags = ("-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", *quiet)
    write_headers(tmp_path / "include")
    include = f"-I{tmp_path / 'include'}"
    command = [program, *flags, include, "-c", str(file), "-o", str(tmp_path / "page.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_constant_of_the_c_is_in_the_python_or_is_the_custom_option() -> None:
    """Each QNN constant of the C code also occurs in the Python code."""
    names = set(re.findall(r"\bQNN_[A-Z0-9_]+\b", re.sub(r"/\*.*?\*/", "", together("c"))))
    python = set(re.findall(r"\bQNN_[A-Z0-9_]+\b", together("py")))
    hidden = {name for name in names - python if not name.endswith("_OPTION_CUSTOM")}
    # Two constants are the type of the interface tables; Python returns or raises the others.
    assert hidden == {
        *("QNN_INTERFACE_VER_TYPE", "QNN_SYSTEM_INTERFACE_VER_TYPE"),
        *("QNN_SUCCESS", "QNN_GRAPH_ERROR_EARLY_TERMINATION"),
    }


def test_every_step_is_followed_by_what_breaks_it() -> None:
    """Each section with calls also shows a mistake."""
    sections = re.findall(r"^## (\d\. .+?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(sections) >= 9
    alone = [title for title, text in sections if "**Mistake" not in text]
    assert alone == ["1. Ask for the alignment"]  # a missing query is reported later
