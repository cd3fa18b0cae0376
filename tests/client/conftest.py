from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from client_mistakes import build, one_graph


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example client, compiled once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    return build(tmp_path_factory.mktemp("client") / "client", compiler, ("-O1",))


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a context binary with one small stateful graph."""
    path = tmp_path_factory.mktemp("binary") / "counter.bin"
    path.write_bytes(one_graph())
    return path
