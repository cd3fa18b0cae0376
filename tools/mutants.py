"""Mutation tests for modules that guard against hostile input: plant faults, count detections.

    python tools/mutants.py --sample 40 --jobs 2        all modules of mutants.toml, 40 faults each
    python tools/mutants.py text.py child.py            all faults of these modules
    python tools/mutants.py --list text.py              list the faults

A fault changes one comparison, limit, condition, call or result. For each fault, the tests that
`mutants.toml` assigns to the module run in a copy of the repository until one fails, which detects
the fault. Faults that no test can detect are listed there with a reason and do not count. The same
seed gives the same sample. The exit code is 1 if too few faults are detected.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from fuzz_case import crowd

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/qnnmem")
WANTED = 90  # percent of the faults
_COPIED = ("src", "tests", "tools", "examples", "pyproject.toml", "SECURITY.md", "docs")
_SLOWEST_S = 120.0  # seconds on an idle machine
_NOT_LOOKED_INTO = ("annotation", "returns", "decorator_list", "args", "bases", "type_comment")

_FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Fault:
    """A fault to plant: one change of a module."""

    module: str
    line: int
    where: str  # name of the enclosing function
    change: str
    source: str  # text of the changed module

    @property
    def name(self) -> str:
        """Name of the fault, which does not change when lines move."""
        return f"{self.where}: {self.change}"


@dataclass(frozen=True)
class Guard:
    """Module with the tests that should detect its faults, and the undetectable faults."""

    module: str
    tests: tuple[str, ...]
    equivalent: dict[str, str]


def guards() -> list[Guard]:
    """Return the modules of mutants.toml."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return [
        Guard(name, tuple(row["tests"]), dict(row.get("equivalent", {})))
        for name, row in table.items()
    ]


# --- Planting ------------------------------------------------------------------------------------

Edit = Callable[[ast.AST], ast.AST | None]


def faults(module: str, text: str) -> Iterator[Fault]:
    """Yield every fault of a module, in the order of its lines."""
    tree = ast.parse(text)
    spots = list(_spots(tree, ""))
    seen: Counter[str] = Counter()
    for number, (node, where) in enumerate(spots):
        for after, edit in _edits(node, where):
            changed = ast.parse(text)
            target = list(_spots(changed, ""))[number][0]
            _Replace(target, edit(copy.deepcopy(target))).visit(changed)
            change = f"{_shown(node)} -> {after}"
            seen[where + change] += 1
            if (count := seen[where + change]) > 1:  # distinguishes it from an equal fault
                change = f"{change} ({count})"
            line = getattr(node, "lineno", 0)
            source = ast.unparse(ast.fix_missing_locations(changed))
            yield Fault(module, line, where or "module", change, source)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:70]


def _spots(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield every node that may be changed, except texts for people, and types."""
    for name, value in ast.iter_fields(node):
        if name in _NOT_LOOKED_INTO and not (name == "args" and isinstance(node, ast.Call)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            inner = where
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{where}.{child.name}".lstrip(".")
            yield child, inner
            yield from _spots(child, inner)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _edits(node: ast.AST, where: str) -> Iterator[tuple[str, Edit]]:
    """Yield each possible change of a node: its new source text, and the edit itself."""
    if isinstance(node, ast.Compare) and len(node.ops) >= 1:
        for place, kind in enumerate(node.ops):
            for other in _FLIPS[type(kind)]:
                yield _edit(node, _flip(place, other))
    elif isinstance(node, ast.BoolOp):
        other_kind = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield _edit(node, _set("op", other_kind()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _edit(node, lambda found: found.operand)  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _SUMS:
        yield _edit(node, _set("op", _SUMS[type(node.op)]()))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _edit(node, _set("value", not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _edit(node, _set("value", node.value + 1))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "never", _set("test", ast.Constant(False))
        if not isinstance(node, ast.While):
            yield "always", _set("test", ast.Constant(True))
    elif isinstance(node, ast.Raise):
        yield "no raise", lambda found: ast.Pass()
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "no call", lambda found: ast.Pass()
    elif isinstance(node, ast.Return) and node.value and not _is_none(node.value):
        yield "return None", _set("value", ast.Constant(None))
    elif isinstance(node, ast.Assign | ast.AnnAssign) and not where and _is_limit(node.value):
        for after in ("{} * 2", "{} // 2", "0"):
            text = after.format(f"({ast.unparse(node.value)})" if node.value else "")
            yield text, _set("value", ast.parse(text, mode="eval").body)


def _is_none(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_limit(value: ast.AST | None) -> bool:
    if value is None:
        return False
    numbers = (ast.Constant, ast.BinOp, ast.operator, ast.Load)
    known = all(isinstance(node, numbers) for node in ast.walk(value))
    return known and any(
        isinstance(node, ast.Constant) and type(node.value) is int for node in ast.walk(value)
    )


def _edit(node: ast.AST, edit: Edit) -> tuple[str, Edit]:
    changed = edit(copy.deepcopy(node))
    return _shown(changed) if changed is not None else "", edit


def _set(name: str, value: object) -> Edit:
    def edit(node: ast.AST) -> ast.AST:
        setattr(node, name, value)
        return node

    return edit


def _flip(place: int, kind: type[ast.cmpop]) -> Edit:
    def edit(node: ast.AST) -> ast.AST:
        node.ops[place] = kind()  # type: ignore[attr-defined]  # a Compare
        return node

    return edit


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST | None:
        return self.new if node is self.old else self.generic_visit(node)


# --- Trying --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """Copy of the repository in which faults are planted."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Copy:
        """Copy the files that tests need, and compile them.

        Bytecode is checked by content, because a file can change twice within a second.
        """
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=ignored)
            elif (ROOT / name).exists():
                shutil.copy(ROOT / name, root / name)
        words = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src", "tests"]
        subprocess.run([sys.executable, *words], cwd=root, check=True)  # noqa: S603
        return cls(root)

    def start(self, tests: Sequence[str]) -> int:
        """Run tests in a fork of this process, which has imported their modules; return its pid."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            code = self._run(tests)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _run(self, tests: Sequence[str]) -> int:
        import pytest

        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        (self.root / "tmp").mkdir(exist_ok=True)
        os.chdir(self.root)
        sys.path.insert(0, str(self.root / "src"))
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = str(self.root / "src")
        os.environ["TMPDIR"] = str(self.root / "tmp")
        tempfile.tempdir = None
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
        # These plugins were imported before pytest started, so their asserts are not rewritten.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return int(pytest.main([*options, *tests]))


@dataclass
class Trial:
    """Tests running in a copy, with or without a planted fault."""

    copy: Copy
    fault: Fault | None
    pid: int
    started: float
    sound: bytes = b""

    def passed(self, limit_s: float) -> bool | None:
        """Return whether all tests passed; None while they run; a timeout counts as a failure."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and time.monotonic() - self.started < limit_s * crowd():
            return None
        with contextlib.suppress(ProcessLookupError):  # also kills processes left by the tests
            os.killpg(self.pid, signal.SIGKILL)
        if pid == 0:
            os.waitpid(self.pid, 0)
        if self.fault is not None:
            (self.copy.root / PACKAGE / self.fault.module).write_bytes(self.sound)
        shutil.rmtree(self.copy.root / "tmp", ignore_errors=True)
        return pid != 0 and status == 0


class _End:
    """Type of the marker at the end of the faults."""


_END: Final = _End()


def trials(
    todo: Iterable[Fault | None], tests: Sequence[str], copies: Sequence[Copy], limit_s: float
) -> Iterator[tuple[Fault | None, bool]]:
    """Yield each fault, and True if the tests passed in spite of it."""
    waiting, free, running = iter(todo), list(copies), list[Trial]()
    while True:
        while free and not isinstance(fault := next(waiting, _END), _End):
            running.append(_plant(free.pop(), fault, tests))
        if not running:
            return
        for one in list(running):
            if (good := one.passed(limit_s)) is not None:
                running.remove(one)
                free.append(one.copy)
                yield one.fault, good
        time.sleep(0.01)


def _plant(copy: Copy, fault: Fault | None, tests: Sequence[str]) -> Trial:
    sound = b""
    if fault is not None:
        path = copy.root / PACKAGE / fault.module
        sound = path.read_bytes()
        path.write_text(fault.source, "utf-8")
    return Trial(copy, fault, copy.start(tests), time.monotonic(), sound)


def chosen(guard: Guard, sample: int, seed: int) -> list[Fault]:
    """Return the faults of a module to try: all, or a sample that depends only on the seed."""
    text = (ROOT / PACKAGE / guard.module).read_text("utf-8")
    found = [one for one in faults(guard.module, text) if one.name not in guard.equivalent]
    rng = random.Random(f"{seed}/{guard.module}")  # noqa: S311  repeatable on purpose
    if sample and len(found) > sample:
        found = sorted(rng.sample(found, sample), key=lambda one: one.line)
    return found


def try_module(guard: Guard, copies: Sequence[Copy], given: argparse.Namespace) -> tuple[int, int]:
    """Try the faults of one module and print the result; return the detected and tried numbers."""
    started = time.monotonic()
    if not all(good for _, good in trials([None], guard.tests, copies, _SLOWEST_S)):
        print(f"{guard.module}: its tests fail without any fault", flush=True)
        return 0, 1
    # Capped: other work may have slowed the first run, and `crowd` would count that twice.
    limit_s = min(3 * (time.monotonic() - started) + 20, _SLOWEST_S)
    todo = chosen(guard, given.sample, given.seed)
    alive = [one for one, good in trials(todo, guard.tests, copies, limit_s) if good and one]
    noticed = len(todo) - len(alive)
    share = 100 * noticed // max(len(todo), 1)
    print(f"{guard.module}: {noticed} of {len(todo)} noticed, {share} %", flush=True)
    for fault in sorted(alive, key=lambda one: one.line):
        print(f"  line {fault.line}, {fault.name}", flush=True)
    return noticed, len(todo)


def import_ahead() -> None:
    """Import modules that the tests need and that are not under test; forks share them."""
    names = ("pytest", "xdist.plugin", "pytest_cov.plugin", "pytest_randomly", "hypothesis")
    more = ("hypothesis.extra.pytestplugin", "numpy", "onnx.parser", "onnx.helper", "msgspec")
    for name in (*names, *more, "click.testing", "jsonschema"):
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()


def options() -> argparse.ArgumentParser:
    """Return the parser of the program's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help="modules to test, named as in mutants.toml")
    parser.add_argument(
        "--sample", type=int, default=0, help=("number of faults for each module; 0: all")
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list the faults, run nothing")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options and run; return the exit code."""
    given = options().parse_args(arguments)
    todo = [one for one in guards() if not given.modules or one.module in given.modules]
    if given.list:
        for guard in todo:
            for fault in chosen(guard, given.sample, given.seed):
                print(f"{fault.module}:{fault.line}: {fault.name}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="mutants"))
    try:
        copies = [Copy.make(folder / str(number)) for number in range(given.jobs)]
        import_ahead()
        scores = [try_module(guard, copies, given) for guard in todo]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    noticed, tried = (sum(column) for column in zip(*scores, strict=True))
    equivalent = sum(len(guard.equivalent) for guard in todo)
    print(
        f"{noticed} of {tried} faults noticed, {100 * noticed / tried:.1f} %; "
        f"{equivalent} more cannot be noticed"
    )
    return 0 if 100 * noticed >= WANTED * tried else 1


if __name__ == "__main__":
    sys.exit(main())
