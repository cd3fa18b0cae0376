"""The layers of the package, who may import whom, and what no module may do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "qnnmem"
MODULES = sorted(SOURCE.rglob("*.py"))
BASE = {
    *("errors", "units", "provenance", "version", "text", "child", "calibration"),
    *("bounded_file", "whole_file", "cache_folder"),
}
DOORS = {"cli", "web"}

# What each folder may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"qnn"},  # for type checkers: what a finding is
    "text": set(),
    "child": set(),
    "bounded_file": {"errors", "text", "units"},
    "calibration": {"errors", "text", "bounded_file", "units"},
    "units": {"errors"},
    "provenance": set(),
    "version": set(),
    "whole_file": {"errors"},
    "cache_folder": set(),
    "ir": BASE,
    "load": {"ir"} | BASE,
    "targets": BASE,
    "plan": {"ir"} | BASE,
    "qnn": BASE,
    "lpai": {"plan", "qnn", "targets", "load", "ir"} | BASE,
    "htp": {"plan", "qnn", "targets", "load", "ir"} | BASE,
    "doctor": {"plan", "qnn", "targets", "load", "ir", "lpai", "htp"} | BASE,
    # Renderers may name result values, wherever those live.
    "report": {"plan", "ir", "lpai", "htp", "doctor", "targets"} | BASE,
    "history": {"plan", "ir", "units", "provenance"},
    # The package itself gives the public names a home.
    "__init__": {"plan", "load", "lpai", "qnn", "ir"} | BASE,
    "__main__": {"cli"},
}

# Where a package of others may be used at all.
ONLY_IN = {
    "onnx": (
        "qnnmem.load.onnx",
        *("qnnmem.lpai.program", "qnnmem.lpai.quantize"),
        *("qnnmem.lpai.preparation", "qnnmem.lpai.selftest"),
        *("qnnmem.htp.native", "qnnmem.htp.compile", "qnnmem.htp.provoke", "qnnmem.htp.qmem"),
    ),
    "onnxruntime": (
        *("qnnmem.load.onnx.trial.program", "qnnmem.lpai.program.run"),
        *("qnnmem.lpai.program.source", "qnnmem.lpai.quantize", "qnnmem.htp.native"),
    ),
    "tflite": ("qnnmem.load.tflite",),
    "numba": ("qnnmem.plan.compiled.",),
    "ctypes": ("qnnmem.htp.native",),
    "rich": ("qnnmem.cli",),
    "click": ("qnnmem.cli",),
}
HEAVY = {"numpy", "onnx", "onnxruntime", "numba", "tflite", "flatbuffers", "rich", "google"}
BANNED = {"pickle", "marshal", "shelve", "dill"}
MAX_LINES = 500


def module_name(path: Path) -> str:
    """Dotted name of a module of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(path: Path) -> str:
    """Folder, or module on the top level, that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(node: ast.AST) -> Iterator[str]:
    """Modules that one statement imports, as full names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layers_imported(path: Path) -> set[str]:
    """Layers of ours that a file imports anywhere; the bare package counts as `__init__`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for name in imported(node):
            parts = name.split(".")
            if parts[0] == "qnnmem":
                known = len(parts) > 1 and parts[1] in {layer_of(p) for p in MODULES}
                whole = isinstance(node, ast.ImportFrom) and node.module == "qnnmem"
                found.add(parts[1] if known and not whole else "__init__")
    return found


def others_imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of packages of others that are imported by these nodes."""
    names = {name.split(".")[0] for node in nodes for name in imported(node)}
    return names - {"qnnmem", "__future__"}


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when a module is imported; functions and blocks for type checkers do not."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (typing_only or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield child
            yield from at_import_time(child)


files = pytest.mark.parametrize("path", MODULES, ids=module_name)


@files
def test_a_layer_imports_only_what_the_table_allows(path: Path) -> None:
    """Imports go down the layers, never up or sideways; the doors may import everything."""
    layer = layer_of(path)
    if layer not in DOORS:
        assert layers_imported(path) - {layer} <= MAY_IMPORT[layer]


@files
def test_nobody_imports_a_door(path: Path) -> None:
    """Command line and web page are entered from outside only."""
    if layer_of(path) not in DOORS | {"__main__"}:
        assert not layers_imported(path) & DOORS


@files
def test_imports_are_absolute(path: Path) -> None:
    """A relative import would hide from these checks."""
    tree = ast.parse(path.read_text("utf-8"))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]


@files
def test_packages_of_others_stay_where_they_belong(path: Path) -> None:
    """Formats and compilers are known to one place each."""
    name = module_name(path)
    for package in others_imported(ast.walk(ast.parse(path.read_text("utf-8")))):
        homes = ONLY_IN.get(package, ("",))
        assert name.startswith(homes), f"{name} imports {package}"


@files
def test_heavy_packages_are_imported_late(path: Path) -> None:
    """Importing a module loads nothing heavy; the compiled modules are imported late themselves."""
    if not module_name(path).startswith("qnnmem.plan.compiled."):
        tree = ast.parse(path.read_text("utf-8"))
        assert not others_imported(at_import_time(tree)) & HEAVY


@files
def test_compiled_modules_are_imported_late(path: Path) -> None:
    """Only a compiled module may import a compiled module when it is itself imported."""
    if not module_name(path).startswith("qnnmem.plan.compiled."):
        for node in at_import_time(ast.parse(path.read_text("utf-8"))):
            assert not [n for n in imported(node) if n.startswith("qnnmem.plan.compiled.")]


@files
def test_nothing_runs_code_from_files(path: Path) -> None:
    """No pickles, no eval, no exec, no shell."""
    tree = ast.parse(path.read_text("utf-8"))
    assert not others_imported(ast.walk(tree)) & BANNED
    calls = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert not {"eval", "exec", "compile", "os.system", "os.popen"} & set(calls)


@files
def test_a_module_is_short(path: Path) -> None:
    """A module of more than 500 lines holds more than one noun."""
    assert len(path.read_text("utf-8").splitlines()) <= MAX_LINES


@files
def test_a_module_says_what_it_is_for(path: Path) -> None:
    """The first line of every module is a sentence about it."""
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_the_verifier_trusts_nobody() -> None:
    """The checker of plans knows the problem and none of the planners."""
    tree = ast.parse((SOURCE / "plan" / "verify.py").read_text("utf-8"))
    ours = {n for node in ast.walk(tree) for n in imported(node) if n.startswith("qnnmem")}
    assert all(name.startswith("qnnmem.plan.problem.") for name in ours)


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(SOURCE.rglob("*")) if p.suffix in {".py", ".toml", ".json", ".md"}],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_file_knows_the_machine_it_was_written_on(path: Path) -> None:
    """No absolute path of somebody's machine and nothing outside the repository is mentioned."""
    text = path.read_text("utf-8")
    assert not re.findall(r"\.\./shared|/(?:work|home|root|tmp|opt|Users|mnt)/\S*", text)


def test_the_check_sees_imports_inside_functions(tmp_path: Path) -> None:
    """An import hidden in a function counts for the table and not as an early one."""
    path = tmp_path / "hidden.py"
    path.write_text("def f():\n    import numpy\n    from qnnmem.cli import main\n")
    tree = ast.parse(path.read_text("utf-8"))
    assert layers_imported(path) == {"cli"}
    assert others_imported(ast.walk(tree)) == {"numpy"}
    assert not others_imported(at_import_time(tree))


def test_the_check_sees_early_imports_in_blocks() -> None:
    """An import in a class, a try or an if runs at once and is seen."""
    source = (
        "try:\n    import numpy\nexcept OSError:\n    import numba\nclass A:\n    import onnx\n"
    )
    assert others_imported(at_import_time(ast.parse(source))) == {"numpy", "numba", "onnx"}
