"""One workbench per test file; uploads of one test do not disturb the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a running workbench."""
    with serving(tmp_path_factory.mktemp("bench")) as found:
        yield found
