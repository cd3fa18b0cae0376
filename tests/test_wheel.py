"""The wheel, installed without extras into a new environment, does the main jobs.

The environment has the wheel and its requirements, and nothing else. The requirements are links
into the test environment, so no package index is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.wheel


def call(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program without the sources or PYTHONPATH."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def pip(*words: str | Path, folder: Path) -> None:
    """Run pip without an index."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-index", "--no-deps")
    done = call(sys.executable, "-m", "pip", *words, *quiet, folder=folder)
    assert done.returncode == 0, done.stderr


def required(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions for these requirements, with their own requirements."""
    found: dict[str, Distribution] = {}
    left = list(map(Requirement, requirements))
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        assert one.specifier.contains(found[name].version), one
        left += map(Requirement, found[name].requires or ())
    return found


def link(made: Distribution, library: Path) -> None:
    """Link the files of a distribution into another folder of packages."""
    for file in made.files or ():
        if ".." not in file.parts:  # scripts are elsewhere
            target = library / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(str(made.locate_file(file)))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with only the wheel and its requirements."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("qnnmem-*.whl")
    venv.create(folder / "venv", with_pip=False)
    paths = sysconfig.get_paths(vars={"base": str(folder / "venv")}, scheme="venv")
    library = Path(paths["purelib"])
    pip("install", "--no-compile", "--target", library, wheel, folder=folder)
    (metadata,) = library.glob("qnnmem-*.dist-info")
    for made in required(Distribution.at(metadata).requires or ()).values():
        link(made, library)
    return Path(paths["scripts"]) / "python"


def test_it_plans(python: Path, tmp_path: Path) -> None:
    """The installed wheel proves the plan of an example without the search extra."""
    model = EXAMPLES / "keyword_spotting.csv"
    done = call(python, "-m", "qnnmem", "plan", model, "--format", "json", folder=tmp_path)
    plan = json.loads(done.stdout)
    assert (plan["scratch_bytes"], plan["optimal"]) == (16_000, True)


def test_it_diagnoses(python: Path, tmp_path: Path) -> None:
    """The installed wheel diagnoses a log, so it has the knowledge base."""
    log = EXAMPLES / "graph_limit.log"
    done = call(python, "-m", "qnnmem", "doctor", log, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "mem_graph_limit" in done.stdout.splitlines()[0]


def test_it_lints(python: Path, tmp_path: Path) -> None:
    """The installed wheel writes a pair of config files and lints it."""
    made = call(
        python, "-m", "qnnmem", "config", "--backend", "lpai", "-o", "pair", folder=tmp_path
    )
    assert made.returncode == 0, made.stderr
    files = sorted((tmp_path / "pair").iterdir())
    done = call(python, "-m", "qnnmem", "lint", *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_ships_schemas_and_types(python: Path, tmp_path: Path) -> None:
    """The wheel has the schema files and the marker for type checkers."""
    program = (
        "from importlib.resources import files; from qnnmem.results.schema import schema_names;"
        "print(len(schema_names()), files('qnnmem').joinpath('py.typed').is_file())"
    )
    count, typed = call(python, "-c", program, folder=tmp_path).stdout.split()
    assert int(count) >= 10
    assert typed == "True"
