"""Writes `qnnmem/qnn/c_names.py`: every constant of `enums` and `codes` under its name in C.

    python tools/c_names.py            brings the module up to date
    python tools/c_names.py --check    exits with 1 if it is not

Names stand in the module one by one, so that type checkers and editors see them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from qnnmem.qnn import enums
from qnnmem.qnn.codes import codes
from qnnmem.qnn.enums import CEnum

MODULE = Path(__file__).resolve().parent.parent / "src" / "qnnmem" / "qnn" / "c_names.py"
WIDTH = 100  # of a line, as the formatter has it
OPENING = '''"""Every constant under its name in C: `from qnnmem.qnn.c_names import QNN_SUCCESS`.

Made by tools/c_names.py from `enums` and `codes.csv`; made again rather than edited.
"""

from __future__ import annotations

'''


def main() -> int:
    """Writes or checks the module; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    if MODULE.is_file() and MODULE.read_text("utf-8") == text():
        return 0
    print("not current" if check else "Wrote", MODULE.name)
    if not check:
        MODULE.write_text(text(), "utf-8")
    return 1 if check else 0


def kinds() -> list[type[CEnum]]:
    """Every class of constants, in the order of their module."""
    found = [one for one in vars(enums).values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, CEnum) and one is not CEnum]


def text() -> str:
    """The whole module."""
    names = sorted((kind.__name__ for kind in kinds()), key=lambda name: (name.lower(), name))
    imports = "".join(f"    {name},\n" for name in names)
    return f"{OPENING}from qnnmem.qnn.enums import (\n{imports})\n" + "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    for kind in kinds():
        first = (kind.__doc__ or "").splitlines()[0]
        yield from ("", f"# {first}")
        for c_name, member in kind.c_names().items():
            value = f"{kind.__name__}.{member.name}"
            line = f"{c_name} = {value}"
            yield line if len(line) <= WIDTH else f"{c_name} = (\n    {value}\n)"
    for component, group in groupby(codes().values(), lambda code: code.component):
        yield from ("", f"# Error codes: {component}")
        for code in group:
            yield from (f"{name} = {code.code}" for name in (code.name, *code.aliases))


if __name__ == "__main__":
    sys.exit(main())
