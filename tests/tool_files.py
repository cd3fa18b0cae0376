"""Tool files that name a backend file, outside their folder or below it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

# By path, by link, through a linked folder, by absolute path, by a link in the current folder.
OUTSIDE = ("../b.conf", "link.conf", "folder/b.conf", "{}/b.conf", "here.conf")


def naming_outside(top: Path, named: str) -> tuple[Path, Path]:
    """Write a tool file that names a file outside its folder; return it and a current folder."""
    (top / "b.conf").write_text("{}")
    inner, current = top / "inner", top / "current"
    inner.mkdir()
    (inner / "link.conf").symlink_to("../b.conf")
    (inner / "folder").symlink_to(top)
    current.mkdir()
    (current / "here.conf").symlink_to("../b.conf")
    return _written(inner / "tool.json", named.format(top)), current


def naming_below(current: Path) -> Iterator[Path]:
    """Write a tool file that names a file below its folder, in each form; yield its path."""
    inner = current / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "deep" / "b.conf").write_text("{}")
    (inner / "link.conf").symlink_to("deep/b.conf")
    whole = str(inner / "deep" / "b.conf")
    for named in ("deep/b.conf", "inner/deep/b.conf", whole, "link.conf", "deep/../link.conf"):
        yield _written(Path("inner", "tool.json"), named)


def _written(path: Path, named: str) -> Path:
    path.write_text(json.dumps({"backend_extensions": {"config_file_path": named}}))
    return path
