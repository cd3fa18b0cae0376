from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _compiled(target: Path, source: str, *flags: str) -> Path:
    """Compile a program or a library of the tests."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    end = ("-ldl", "-lpthread")
    command = [compiler, "-g", "-O1", str(HERE / source), "-o", str(target), *flags, *end]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a QNN library that checks every argument."""
    folder = tmp_path_factory.mktemp("backend")
    return _compiled(folder / "libQnnTest.so", "backend.c", "-shared", "-fPIC")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that uses a QNN library."""
    return _compiled(tmp_path_factory.mktemp("program") / "program", "program.c")


@pytest.fixture(scope="session")
def linked(backend: Path) -> Path:
    """Return the same program, linked with the library."""
    flags = ("-DLINKED", str(backend), f"-Wl,-rpath,{backend.parent}")
    return _compiled(backend.parent / "linked", "program.c", *flags)
