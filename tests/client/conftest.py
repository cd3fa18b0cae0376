from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from client_mistakes import build, one_graph


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example client, compiled once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    return build(tmp_path_factory.mktemp("client") / "client", compiler, ("-O1",))


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context binary with one small graph that has state."""
    path = tmp_path_factory.mktemp("binary") / "counter.bin"
    path.write_bytes(one_graph())
    return path
