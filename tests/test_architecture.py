"""The layers of the package, who may import whom, and what no module may do."""

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

# What each folder may import besides itself.
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
    "notebook": set(),  # finds the renderer by name, when one is asked for
    "installation": set(),
    "temporary_folder": {"errors", "atomic_file"},
    "atomic_file": {"errors", "text"},
    "bounded_file": {"errors", "text", "units"},
    "calibration": {"errors", "text", "units", "bounded_file"},
    "cache": {"errors"},
    "native_parts": {"errors", "cache", "temporary_folder", "text"},
    "ir": BASE,
    "loader": {"ir", "qnn", "results"} | BASE,
    # Types of results and their JSON; every folder above may make or read one.
    "results": {"qnn"} | BASE,
    "targets": {"results"} | BASE,
    # Types of options; every folder above may take a value of one.
    "options": {"results"} | BASE,
    "planner": {"ir", "targets", "results", "options"} | BASE,
    "qnn": BASE,
    # Rules, regions, handles and leaks: for whatever runs under the contract.
    "contract": {"qnn", "results"} | BASE,
    "lpai": {"contract", "planner", "qnn", "targets", "loader", "ir", "results", "options"} | BASE,
    "programs": {"contract", "lpai", "qnn", "results"} | BASE,
    "htp": {"contract", "planner", "qnn", "targets", "loader", "ir", "results", "options"} | BASE,
    "doctor": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "results"} | BASE,
    "fix": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "doctor"}
    | {"results", "options"}
    | BASE,
    # Budgets and comparison: results as read from JSON, whoever wrote them.
    "gate": {"planner", "qnn", "targets", "loader", "ir", "lpai", "htp", "results", "options"}
    | BASE,
    # Renderers may name result values, wherever those live.
    "report": {"planner", "ir", "qnn", "lpai", "htp", "programs", "doctor", "fix", "targets"}
    | {"contract", "gate", "results"}
    | BASE,
    # What each verb does, for every door.
    "verbs": {"planner", "ir", "qnn", "loader", "lpai", "htp", "programs", "doctor", "fix"}
    | {"contract", "targets", "gate", "report", "results", "options"}
    | BASE,
    # A door for pytest, which calls the same as the command line does.
    "pytest_plugin": {"gate", "report", "loader", "planner"} | BASE,
    # The package itself gives the public names a home.
    "__init__": {"planner", "loader", "lpai", "htp", "qnn", "ir"} | BASE,
    "__main__": {"cli"},
}

# Where a package of others may be used at all.
ONLY_IN = {
    "onnx": (
        *("qnnmem.loader.onnx", "qnnmem.loader.dlc", "qnnmem.loader.tflite"),
        *("qnnmem.lpai.program", "qnnmem.lpai.quantize"),
        *("qnnmem.lpai.preparation", "qnnmem.lpai.selftest"),
        *("qnnmem.htp.native", "qnnmem.htp.compile", "qnnmem.htp.provoke", "qnnmem.htp.qmem.table"),
        "qnnmem.htp.llm.decoder_layers",
        "qnnmem.fix",
    ),
    # Its home imports it by name, without telemetry.
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
    """Dotted name of a module of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(path: Path) -> str:
    """Folder, or module on the top level, that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


LAYERS = {layer_of(path) for path in MODULES}
NAMES = {module_name(path) for path in MODULES}


Node = TypeVar("Node", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once."""
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_by_kind(path: Path) -> Mapping[type[ast.AST], list[Any]]:
    """All nodes of a file, found once."""
    found: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree_of(path)):
        found[type(node)].append(node)
    return found


def nodes_of(path: Path, kind: type[Node]) -> list[Node]:
    """The nodes of one kind in a file."""
    return nodes_by_kind(path).get(kind, [])


def imports_of(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a file."""
    return [*nodes_of(path, ast.Import), *nodes_of(path, ast.ImportFrom)]


@pytest.fixture(scope="module", autouse=True)
def all_nodes() -> Iterator[None]:
    """A million values: not looked through for garbage while they are made, and not kept after."""
    with collector_paused():
        for path in MODULES:
            nodes_by_kind(path)
    yield
    nodes_by_kind.cache_clear()
    tree_of.cache_clear()


def imported(node: ast.AST) -> Iterator[str]:
    """Modules that one statement imports, as full names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layers_imported(path: Path) -> set[str]:
    """Layers of ours that a file imports anywhere; the bare package counts as `__init__`."""
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
    """Names of packages of others that are imported by these nodes."""
    names = {name.split(".")[0] for node in nodes for name in imported(node)}
    return names - {"qnnmem", "__future__"}


def modules_imported(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere, if only for type checkers."""
    found = set()
    for node in imports_of(path):
        for name in imported(node):
            while name and name not in NAMES:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {"", module_name(path)}


def is_typing_block(node: ast.AST) -> bool:
    """Whether only type checkers read a block."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when a module is imported; functions and blocks for type checkers do not."""
    for child in ast.iter_child_nodes(node):
        if not (
            is_typing_block(child) or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            yield child
            yield from at_import_time(child)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle (Tarjan's components)."""
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
    """Imports go down the layers, never up or sideways; the doors may import everything."""
    wrong = {
        module_name(path): extra
        for path in MODULES
        if layer_of(path) not in DOORS
        and (extra := layers_imported(path) - {layer_of(path)} - MAY_IMPORT[layer_of(path)])
    }
    assert not wrong


def test_walks_name_modules_and_enter_none_twice() -> None:
    """The five walks of the page about the layout are of modules that exist."""
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
    """Command line and web page are entered from outside only; `serve` opens the page."""
    inside = [path for path in MODULES if layer_of(path) not in {"cli", "__main__"}]
    assert not [module_name(path) for path in inside if "cli" in layers_imported(path)]
    inside = [path for path in inside if layer_of(path) != "workbench"]
    assert not [module_name(path) for path in inside if "workbench" in layers_imported(path)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Every module can be understood after those that it imports."""
    assert circles({module_name(path): modules_imported(path) for path in MODULES}) == []


def test_a_circle_would_be_found() -> None:
    """The search for circles finds one, and only what is part of it."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles(graph) == [["a", "b", "c"]]


def test_imports_are_absolute() -> None:
    """A relative import would hide from these checks."""
    for path in MODULES:
        relative = [node for node in nodes_of(path, ast.ImportFrom) if node.level]
        assert not relative, module_name(path)


def test_packages_of_others_stay_where_they_belong() -> None:
    """Formats and compilers are known to one place each."""
    for path in MODULES:
        for package in others_imported(imports_of(path)):
            homes = ONLY_IN.get(package, ("",))
            assert module_name(path).startswith(homes), f"{module_name(path)} imports {package}"


def test_heavy_packages_are_imported_late() -> None:
    """Importing a module loads nothing heavy."""
    for path in MODULES:
        heavy = others_imported(at_import_time(tree_of(path))) & HEAVY
        assert not heavy, f"{module_name(path)} imports {heavy}"


def test_nothing_runs_code_from_files() -> None:
    """No pickles, no eval, no exec, no shell."""
    for path in MODULES:
        assert not others_imported(imports_of(path)) & BANNED, module_name(path)
        # Only short ones are written out: a chain of calls takes long, and is none of these.
        called = (call.func for call in nodes_of(path, ast.Call))
        short = (one for one in called if isinstance(getattr(one, "value", one), ast.Name))
        wrong = {*map(ast.unparse, short)} & {"eval", "exec", "compile", "os.system", "os.popen"}
        assert not wrong, f"{module_name(path)} calls {wrong}"


def test_only_the_command_line_speaks_of_its_options() -> None:
    """Errors carry settings as data; options of other vendors' tools are theirs to be named."""
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
    """A module of more than 700 lines holds more than one noun."""
    for path in MODULES:
        count = len(path.read_text("utf-8").splitlines())
        assert count <= MAX_LINES, f"{module_name(path)} has {count} lines"


def test_a_function_is_short() -> None:
    """A function of more than 60 lines does more than one thing."""
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
    """The first line of every module is a sentence about it."""
    assert not [module_name(path) for path in MODULES if not ast.get_docstring(tree_of(path))]


def test_the_verifier_trusts_nobody() -> None:
    """The checker of plans knows the problem and none of the planners."""
    tree = tree_of(SOURCE / "planner" / "verify.py")
    ours = {n for node in ast.walk(tree) for n in imported(node) if n.startswith("qnnmem")}
    assert all(name.startswith("qnnmem.planner.problem.") for name in ours)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    """No absolute path of somebody's machine and nothing outside the repository is mentioned."""
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in {".py", ".toml", ".json", ".md"}:
            text = path.read_text("utf-8")
            found = re.findall(r"\.\./shared|/(?:work|home|root|tmp|opt|Users|mnt)/\S*", text)
            assert not found, f"{path.relative_to(SOURCE)} mentions {found[0]}"


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
    source = "try:\n    import numpy\nexcept OSError:\n    import rich\nclass A:\n    import onnx\n"
    assert others_imported(at_import_time(ast.parse(source))) == {"numpy", "rich", "onnx"}
