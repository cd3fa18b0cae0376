"""A small project with budgets for tests of `check`, the pytest plugin and the action."""

from __future__ import annotations

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"

CONFIG = """\
[project]
name = "demo"

[tool.qnnmem]
models = ["models/*"]
baseline = "qnnmem-baseline.json"
budget = { scratch = "16K" }

[[tool.qnnmem.model]]
path = "models/tiny.eaix"
budget = { scratch = "4K", tcm = "1M", total = "4K" }

[[tool.qnnmem.model]]
path = "models/small_htp.bin"
budget = { ram = "64M", spill = 0 }
"""


def buffers(*sizes: int) -> str:
    """Return a buffer list in which each buffer overlaps the next; the largest pair is the peak."""
    rows = [f"t{at},{at},{at + 2},{size}" for at, size in enumerate(sizes)]
    return "\n".join(["id,lower,upper,size", *rows]) + "\n"


def make_project(folder: Path) -> Path:
    """Create three models with budgets and return the folder."""
    models = folder / "models"
    models.mkdir(parents=True)
    for name in ("tiny.eaix", "small_htp.bin"):
        shutil.copy(EXAMPLES / name, models / name)
    (models / "spotter.csv").write_text(buffers(512, 8000, 7000, 64), "utf-8")
    (folder / "pyproject.toml").write_text(CONFIG, "utf-8")
    return folder


def grow(folder: Path, size: int = 8000) -> None:
    """Make one model need more memory."""
    (folder / "models" / "spotter.csv").write_text(buffers(512, 8000, size, 64), "utf-8")
