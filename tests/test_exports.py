from __future__ import annotations

import ast
import enum
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import qnnmem

HEAVY = ("numpy", "onnx", "onnxruntime", "tflite", "rich")


def heavy_after(statement: str) -> str:
    """Return the heavy packages loaded after a statement in a fresh interpreter."""
    program = (
        f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\n"
        f"print([n for n in {HEAVY} if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stderr.strip()


def test_all_lists_every_public_name() -> None:
    """`__all__`, the lazy imports and the names for type checkers are the same."""
    homes = [name for names in qnnmem._HOMES.values() for name in names]
    tree = ast.parse(inspect.getsource(qnnmem))
    seen = [
        alias.name
        for block in tree.body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]
    assert sorted(homes) == sorted(seen) == qnnmem.__all__


def test_no_import_replaces_a_public_name() -> None:
    """No module but `lpai` shares its name with a public name, which its import would replace."""
    folder = Path(qnnmem.__file__).parent
    modules = {path.stem for path in folder.iterdir()}
    assert modules & {*qnnmem.__all__} == {"lpai"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    """An unknown name of the package raises AttributeError."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        qnnmem.nonsense  # noqa: B018 - the lookup is tested


@pytest.mark.parametrize("name", qnnmem.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Each public name has its own docstring, whose first line is a sentence."""
    value = getattr(qnnmem, name)
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    assert text
    assert not text.startswith(f"{name}(")  # the text that dataclass generates
    assert text.strip().split("\n")[0].endswith(".")


@pytest.mark.parametrize("name", qnnmem.__all__)
def test_public_methods_are_documented(name: str) -> None:
    """Each public method and property of a public class has a docstring."""
    value = getattr(qnnmem, name)
    if inspect.isclass(value) and not issubclass(value, enum.Enum):
        for key, member in vars(value).items():
            if not key.startswith("_") and (inspect.isfunction(member) or hasattr(member, "fget")):
                assert member.__doc__, f"{name}.{key}"


@pytest.mark.parametrize("name", ["load", "plan", "verify", "judge_tcm"])
def test_public_functions_are_typed(name: str) -> None:
    """Each public function has types for all parameters and the result."""
    signature = inspect.signature(getattr(qnnmem, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not p.empty for p in signature.parameters.values())


@pytest.mark.parametrize(
    "statement",
    [
        "import qnnmem",
        "import qnnmem.cli",
        "import qnnmem.report.plan",
        "from qnnmem.cli import main; sys.argv = ['qnnmem', '--help']; main()",
        "from qnnmem.cli import main; sys.argv = ['qnnmem', 'plan', '--help']; main()",
    ],
)
def test_nothing_heavy_is_imported_to_say_hello(statement: str) -> None:
    """Importing the package and showing help load no numeric or model library."""
    assert heavy_after(statement) == "[]"
