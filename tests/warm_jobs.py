"""The workbench's job child for tests, whose own children are forked too; see `warm_start`."""

from __future__ import annotations

from importlib import import_module

import warm_start

from qnnmem.workbench import job_child

for ahead in (*job_child._AHEAD, "qnnmem.workbench.tasks"):
    import_module(ahead)


def main() -> int:
    """Run jobs."""
    warm_start.start_here_too()
    return job_child.main()
