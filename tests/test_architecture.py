"""The layers of the package: which module may import which, and what no module may do."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from qnnmem.collector import collector_paused

SOURCE = Path(__file__).parents[1] / "src" / "qnnmem"
MODULES = sorted(SOURCE.rglob("*.py"))
BASE = {
    *(
        "deadline",
        "errors",
        "arguments",
        "units",
        "provenance",
        "version",
        "text",
        "child",
        "wire",
        "calibration",
    ),
    "finding",
    *("bounded_file", "atomic_file", "cache", "temporary_folder"),
    "native_parts",
    "installation",
    *("machine", "quiet_onnxruntime", "collector", "caller", "notebook", "flags"),
}
DOORS = {"cli", "workbench"}

# The modules that each folder may import, besides its own.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"finding", "text"},
    "arguments": {"errors", "text"},
    "units": {"errors", "text"},
    "provenance": set(),
    "version": set(),
    "finding": set(),
    "flags": {"errors"},
    "text": set(),
    "child": {
        "deadline",
        "errors",
        "units",
        "machine",
        "quiet_onnxruntime",
        "temporary_folder",
        "text",
        "wire",
    },
    "wire": set(),
    "deadline": {"errors"},
    "machine": set(),
    "collector": set(),
    "caller": {"text"},
    "quiet_onnxruntime": set(),
    "notebook": set(),  # finds the renderer by name on request
    "installation": set(),
    "temporary_folder": {"errors", "atomic_file"},
    "atomic_file": {"errors", "text"},
    "bounded_file": {"errors", "text", "units"},
    "calibration": {"errors", "text", "units", "bounded_file"},
    "cache": {"errors"},
    "native_parts": {"errors", "cache", "temporary_folder", "text"},
    "ir": BASE,
    "loader": {"ir", "qnn", "results"} | BASE,
    # Types of results and their JSON; every higher layer may use them.
    "results": {"qnn"} | BASE,
    "targets": {"results"} | BASE,
    # Types of options; every higher layer may use them.
    "options": {"results"} | BASE,
    "planner": {"ir", "targets", "results", "options"} | BASE,
    "qnn": BASE,
    # Rules, regions, handles and leaks, for every runtime of the contract.
    "contract": {"qnn", "results"} | BASE,
    "lpai": {"contract", "planner", "qnn", "targets", "loader", "ir", "results", "options"} | BASE,
    "programs": {"contract", "lpai", "qnn", "results"} | BASE,
    "htp": {"contract", "planner", "qnn", "targets", "loader", "ir", "results", "options"} | BASE,
    "doctor": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "results"} | BASE,
    "fix": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "doctor"}
    | {"results", "options"}
    | BASE,
    # Budgets and comparison of results read from JSON.
    "gate": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "results", "options"}
    | BASE,
    # Renderers may import every type of result.
    "report": {"planner", "ir", "qnn", "lpai", "htp", "programs", "doctor", "fix", "targets"}
    | {"contract", "gate", "results"}
    | BASE,
    # The work of each verb, for every entry point.
    "verbs": {"planner", "ir", "qnn", "loader", "lpai", "htp", "programs", "doctor", "fix"}
    | {"contract", "targets", "gate", "report", "results", "options"}
    | BASE,
    # The entry point for pytest, which makes the same calls as the command line.
    "pytest_plugin": {"gate", "report", "loader", "planner"} | BASE,
    # The package itself exports the public names.
    "__init__": {"planner", "loader", "lpai", "htp", "qnn", "ir"} | BASE,
    "__main__": {"cli"},
}

# The only modules that may import each third-party package.
ONLY_IN = {
    "onnx": (
        *("qnnmem.loader.onnx", "qnnmem.loader.dlc", "qnnmem.loader.tflite"),
        *("qnnmem.lpai.program", "qnnmem.lpai.quantize"),
        *("qnnmem.lpai.preparation", "qnnmem.lpai.selftest"),
        *("qnnmem.htp.native", "qnnmem.htp.compile", "qnnmem.htp.provoke", "qnnmem.htp.qmem.table"),
        "qnnmem.htp.llm.decoder_layers",
        "qnnmem.fix",
    ),
    # The module `quiet_onnxruntime` imports it by name, without telemetry.
    "onnxruntime": (),
    "tflite": ("qnnmem.loader.tflite",),
    "ctypes": (
        *("qnnmem.htp.native", "qnnmem.loader.dlc.program", "qnnmem.loader.dlc.recorder"),
        "qnnmem.programs.process_memory",
        "qnnmem.qnn.abi",
        *(
            "qnnmem.doctor.logs.compiled_search",
            "qnnmem.native_parts",
            "qnnmem.planner.packing",
        ),
    ),
    "rich": ("qnnmem.cli",),
    "click": ("qnnmem.cli",),
    "starlette": ("qnnmem.workbench",),
    "uvicorn": ("qnnmem.workbench",),
}
HEAVY = {"numpy", "onnx", "onnxruntime", "tflite", "flatbuffers", "rich", "google"}
BANNED = {"pickle", "marshal", "shelve", "dill"}
MAX_LINES = 700
MAX_FUNCTION = 60


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(path: Path) -> str:
    """Return the folder or top-level module that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


LAYERS = {layer_of(path) for path in MODULES}
NAMES = {module_name(path) for path in MODULES}


Node = TypeVar("Node", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once."""
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_by_kind(path: Path) -> Mapping[type[ast.AST], list[Any]]:
    """Return all nodes of a file by type, collected once."""
    found: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree_of(path)):
        found[type(node)].append(node)
    return found


def nodes_of(path: Path, kind: type[Node]) -> list[Node]:
    """Return the nodes of one type in a file."""
    return nodes_by_kind(path).get(kind, [])


def imports_of(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a file."""
    return [*nodes_of(path, ast.Import), *nodes_of(path, ast.ImportFrom)]


@pytest.fixture(scope="module", autouse=True)
def all_nodes() -> Iterator[None]:
    """Collect the nodes of all modules without garbage collection, and drop them at the end."""
    with collector_paused():
        for path in MODULES:
            nodes_by_kind(path)
    yield
    nodes_by_kind.cache_clear()
    tree_of.cache_clear()


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layers_imported(path: Path) -> set[str]:
    """Return the layers that a file imports anywhere; the bare package counts as `__init__`."""
    found = set()
    for node in imports_of(path):
        for name in imported(node):
            parts = name.split(".")
            if parts[0] == "qnnmem":
                known = len(parts) > 1 and parts[1] in LAYERS
                whole = isinstance(node, ast.ImportFrom) and node.module == "qnnmem"
                found.add(parts[1] if known and not whole else "__init__")
    return found


def others_imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the third-party packages that these nodes import."""
    names = {name.split(".")[0] for node in nodes for name in imported(node)}
    return names - {"qnnmem", "__future__"}


def modules_imported(path: Path) -> set[str]:
    """Return the package's modules that a file imports anywhere, type-checking blocks included."""
    found = set()
    for node in imports_of(path):
        for name in imported(node):
            while name and name not in NAMES:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {"", module_name(path)}


def is_typing_block(node: ast.AST) -> bool:
    """True for a block that only type checkers read."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run at import; functions and type-checking blocks do not."""
    for child in ast.iter_child_nodes(node):
        if not (
            is_typing_block(child) or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            yield child
            yield from at_import_time(child)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a cycle (Tarjan's components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_a_layer_imports_only_what_the_table_allows() -> None:
    """A layer imports only the layers in the table; the entry points may import everything."""
    wrong = {
        module_name(path): extra
        for path in MODULES
        if layer_of(path) not in DOORS
        and (extra := layers_imported(path) - {layer_of(path)} - MAY_IMPORT[layer_of(path)])
    }
    assert not wrong


def test_walks_name_modules_and_enter_none_twice() -> None:
    """The layout page has five walks, and each names only existing modules, none twice."""
    page = SOURCE.parents[1] / "docs" / "explanation" / "code-layout.md"
    section = page.read_text("utf-8").partition("## How a value travels")[2].partition("\n## ")[0]
    walks = re.split(r"^\*\*(.+)\*\*$", section, flags=re.MULTILINE)[1:]
    assert len(walks) == 2 * 5
    for name, text in zip(walks[::2], walks[1::2], strict=True):
        entered = [SOURCE / words for words in re.findall(r"`([\w/.]+)`", text)]
        missing = [path for path in entered if not _is_module(path)]
        assert not missing, name
        assert len(entered) == len(set(entered)), name


def _is_module(path: Path) -> bool:
    return any(place.exists() for place in (path, path.with_name(f"{path.name}.py")))


def test_nobody_imports_a_door() -> None:
    """Only `__main__` imports the command line, and only the command line imports the workbench."""
    inside = [path for path in MODULES if layer_of(path) not in {"cli", "__main__"}]
    assert not [module_name(path) for path in inside if "cli" in layers_imported(path)]
    inside = [path for path in inside if layer_of(path) != "workbench"]
    assert not [module_name(path) for path in inside if "workbench" in layers_imported(path)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No modules import each other in a cycle."""
    assert circles({module_name(path): modules_imported(path) for path in MODULES}) == []


def test_a_circle_would_be_found() -> None:
    """The search for import cycles finds a cycle and only its members."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles(graph) == [["a", "b", "c"]]


def test_imports_are_absolute() -> None:
    """Every import is absolute, since these checks do not see relative imports."""
    for path in MODULES:
        relative = [node for node in nodes_of(path, ast.ImportFrom) if node.level]
        assert not relative, module_name(path)


def test_packages_of_others_stay_where_they_belong() -> None:
    """Each third-party package is imported only in its allowed modules."""
    for path in MODULES:
        for package in others_imported(imports_of(path)):
            homes = ONLY_IN.get(package, ("",))
            assert module_name(path).startswith(homes), f"{module_name(path)} imports {package}"


def test_heavy_packages_are_imported_late() -> None:
    """Importing a module loads no heavy package."""
    for path in MODULES:
        heavy = others_imported(at_import_time(tree_of(path))) & HEAVY
        assert not heavy, f"{module_name(path)} imports {heavy}"


def test_nothing_runs_code_from_files() -> None:
    """No module uses pickle, eval, exec or a shell."""
    for path in MODULES:
        assert not others_imported(imports_of(path)) & BANNED, module_name(path)
        # Only short names are compared: a chain of calls is slow to print and is none of these.
        called = (call.func for call in nodes_of(path, ast.Call))
        short = (one for one in called if isinstance(getattr(one, "value", one), ast.Name))
        wrong = {*map(ast.unparse, short)} & {"eval", "exec", "compile", "os.system", "os.popen"}
        assert not wrong, f"{module_name(path)} calls {wrong}"


def test_only_the_command_line_speaks_of_its_options() -> None:
    """Outside the entry points, no text names a command-line option of qnnmem.

    Errors carry settings as data. Options of the vendor's tools are named where they are needed.
    """
    theirs = (
        *("qnnmem.lpai.net_run", "qnnmem.lpai.config.settings", "qnnmem.htp.qmem.table"),
        *("qnnmem.doctor.incident_builder", "qnnmem.installation", "qnnmem.flags"),
    )
    for path in MODULES:
        name = module_name(path)
        if layer_of(path) in DOORS | {"report", "options", "verbs"} or name.startswith(theirs):
            continue
        docstrings = {id(node.value) for node in nodes_of(path, ast.Expr)}
        texts = nodes_of(path, ast.Constant)
        flags = [
            text.value
            for text in texts
            if isinstance(text.value, str)
            and id(text) not in docstrings
            and re.search(r"(?<![\w-])--[a-z][a-z-]+", text.value)
        ]
        assert not flags, f"{name} says {flags[0]!r}"


def test_a_module_is_short() -> None:
    """A module has at most 700 lines; a longer one holds more than one concept."""
    for path in MODULES:
        count = len(path.read_text("utf-8").splitlines())
        assert count <= MAX_LINES, f"{module_name(path)} has {count} lines"


def test_a_function_is_short() -> None:
    """A function has at most 60 lines; a longer one does more than one thing."""
    for path in MODULES:
        for node in nodes_of(path, ast.FunctionDef):
            if node.end_lineno is not None:
                count = node.end_lineno - node.lineno + 1
                assert count <= MAX_FUNCTION, f"{module_name(path)}.{node.name} has {count} lines"


def test_a_class_name_means_one_thing() -> None:
    """No two public classes of the package share a name."""
    homes = defaultdict(list)
    for path in MODULES:
        for node in nodes_of(path, ast.ClassDef):
            if not node.name.startswith("_"):
                homes[node.name].append(module_name(path))
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_a_module_says_what_it_is_for() -> None:
    """Every module has a docstring."""
    assert not [module_name(path) for path in MODULES if not ast.get_docstring(tree_of(path))]


def test_the_verifier_trusts_nobody() -> None:
    """The plan verifier imports the problem and no part of the planners."""
    tree = tree_of(SOURCE / "planner" / "verify.py")
    ours = {n for node in ast.walk(tree) for n in imported(node) if n.startswith("qnnmem")}
    assert all(name.startswith("qnnmem.planner.problem.") for name in ours)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    """No source file has an absolute path of a machine or a path outside the repository."""
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in {".py", ".toml", ".json", ".md"}:
            text = path.read_text("utf-8")
            found = re.findall(r"\.\./shared|/(?:work|home|root|tmp|opt|Users|mnt)/\S*", text)
            assert not found, f"{path.relative_to(SOURCE)} mentions {found[0]}"


def test_the_check_sees_imports_inside_functions(tmp_path: Path) -> None:
    """The check sees an import inside a function, and does not count it as an early import."""
    path = tmp_path / "hidden.py"
    path.write_text("def f():\n    import numpy\n    from qnnmem.cli import main\n")
    tree = ast.parse(path.read_text("utf-8"))
    assert layers_imported(path) == {"cli"}
    assert others_imported(ast.walk(tree)) == {"numpy"}
    assert not others_imported(at_import_time(tree))


def test_the_check_sees_early_imports_in_blocks() -> None:
    """An import in a class, `try` or `if` block counts as an early import."""
    source = "try:\n    import numpy\nexcept OSError:\n    import rich\nclass A:\n    import onnx\n"
    assert others_imported(at_import_time(ast.parse(source))) == {"numpy", "rich", "onnx"}
