"""`qnnmem fix` of one model for several shapes: each a graph of one binary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.cli.fix_task import FixTask


def is_for_several(task: FixTask) -> bool:
    """Whether a tensor is given more than one shape."""
    names = [name for name, _ in task.wish.shapes]
    return len(names) > len(set(names))


def run(task: FixTask, as_json: bool) -> int:
    """One model for each set of shapes, and the command that makes one binary of them."""
    from qnnmem.cli.fix_task import fix_file
    from qnnmem.cli.output import write
    from qnnmem.fix.graph.shape_sets import set_names, shape_sets
    from qnnmem.report import fix as report
    from qnnmem.report.fix_next import command_lines, together

    if as_json or task.recipe is not None or task.htp is not None:
        raise UsageError(
            "several shapes go with neither --json nor --apply nor --backend htp; one at a time"
        )
    sets, parts, done = shape_sets(task.wish.shapes), [], []
    stem = Path(task.model).stem
    for name, shapes in zip(set_names(sets), sets, strict=True):
        wish = task.wish._replace(shapes=tuple(shapes.items()))
        one = fix_file(task._replace(wish=wish, stem=f"{stem}_{name}", always=True))
        parts.append(f"{name}: {report.render_text(one.result, one.files, (), (), one.validation)}")
        done.append(one)
    code = max(one.exit_code for one in done)
    files = [one.files[0] for one in done if one.files]
    binary = str(Path(task.output, f"{stem}.bin"))
    last = [] if code else command_lines([together([one.result for one in done], files, binary)])
    write("\n".join((*parts, *last, "")), None, task.force)
    return code
