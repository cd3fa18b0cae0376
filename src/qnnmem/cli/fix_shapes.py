"""`qnnmem fix` of one model for several shapes: each a graph of one binary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from qnnmem.errors import UsageError

if TYPE_CHECKING:
    from qnnmem.verbs.fix import FixTask


def is_for_several(task: FixTask) -> bool:
    """Whether a tensor is given more than one shape."""
    names = [name for name, _ in task.options.shapes]
    return len(names) > len(set(names))


def run(task: FixTask, as_json: bool) -> int:
    """One model for each set of shapes, and the command that makes one binary of them."""
    from qnnmem.cli.output import write
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.cli.recorded_args import verb_call
    from qnnmem.fix.graph.shape_sets import set_names, shape_sets
    from qnnmem.report import fix as report
    from qnnmem.report.fix import command_lines, together
    from qnnmem.verbs.fix import fix_file

    if as_json or task.options.recipe is not None or task.options.is_htp:
        raise UsageError(
            "several shapes go with neither --json nor --apply nor --backend htp; one at a time"
        )
    sets, parts, done = shape_sets(task.options.shapes), [], []
    stem = Path(task.model).stem
    for name, shapes in zip(set_names(sets), sets, strict=True):
        options = replace(task.options, shapes=tuple(shapes.items()))
        own = task._replace(options=options, stem=f"{stem}_{name}", always=True)
        with ProgressBar(f"reading {Path(task.model).name}") as bar:
            one = fix_file(own, verb_call(bar))
        parts.append(f"{name}: {report.render_text(one.result, one.files, (), (), one.validation)}")
        done.append(one)
    code = max(one.exit_code for one in done)
    files = [one.files[0] for one in done if one.files]
    binary = str(Path(task.options.output, f"{stem}.bin"))
    last = [] if code else command_lines([together([one.result for one in done], files, binary)])
    write("\n".join((*parts, *last, "")), None, task.options.force)
    return code
