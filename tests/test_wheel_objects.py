"""Wheels with compiled parts: built without an index, and used without a compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling builds the wheels")
pytest.importorskip("elftools", reason="pyelftools reads what was compiled")

from wheel_objects import MACHINES, PARTS, PLACE, compiler_for, glibc_versions, write_objects

ROOT = Path(__file__).parents[1]
HERE = platform.machine()
USE = (
    "import sys; from pathlib import Path; from qnnmem.programs.launch import build_objects, SHIM;"
)
USE += "from qnnmem.programs.launch import OBSERVER; from qnnmem.errors import UsageError\n"
USE += "from qnnmem.doctor.logs.compiled_search import TEXTS\n"
USE += "from qnnmem.planner.packing import PACKING\n"
USE += (
    "try: [build_objects(Path(sys.argv[1]), part) for part in (SHIM, OBSERVER, TEXTS, PACKING)]\n"
)
USE += "except UsageError as exc: sys.exit(str(exc))\n"

compiles = pytest.mark.skipif(
    sys.platform != "linux" or HERE not in MACHINES or shutil.which("cc") is None,
    reason="compiled wheels are made for other machines, or with a compiler that is not here",
)


def build(folder: Path, kind: str, **told: str) -> subprocess.CompletedProcess[str]:
    """Return the result of a hatchling build with these variables."""
    others = {k: v for k, v in os.environ.items() if k not in ("CC", "QNNMEM_WHEEL")}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder],
        cwd=ROOT,
        env=others | told,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel for this machine."""
    folder = tmp_path_factory.mktemp("wheel")
    done = build(folder, "wheel", QNNMEM_WHEEL=HERE)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """Return a folder with the unpacked wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")  # noqa: S202 - trusted archive
    return tmp_path / "site"


def use(installed: Path) -> tuple[str, set[str]]:
    """Return stderr and the created files, without a cache or a compiler."""
    target, nothing = installed.parent / "target", installed.parent / "nothing"
    target.mkdir()
    nothing.mkdir()
    told = {"PYTHONPATH": str(installed), "PATH": str(nothing), "XDG_CACHE_HOME": str(nothing)}
    others = {k: v for k, v in os.environ.items() if k != "CC"}
    done = subprocess.run(
        [sys.executable, "-c", USE, target],
        cwd=nothing,
        env=others | told,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr, {path.name for path in target.iterdir()}


def test_a_wheel_is_pure_unless_a_machine_is_named(tmp_path: Path) -> None:
    """Without a named machine, the wheel is pure, whatever compiler is present."""
    assert build(tmp_path, "wheel", CC="false").returncode == 0
    (made,) = tmp_path.glob("*.whl")
    assert made.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as archive:
        assert [name for name in archive.namelist() if name.startswith(PLACE)] == []


def test_a_source_archive_is_what_it_was(tmp_path: Path) -> None:
    """A source archive has the C sources and the build tools, and nothing compiled."""
    assert build(tmp_path, "sdist", QNNMEM_WHEEL=HERE, CC="false").returncode == 0
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/qnnmem/programs/shim.c", "tools/wheel_hook.py", "tools/wheel_objects.py"} <= names
    assert [name for name in names if name.endswith(".so")] == []


def test_every_source_in_c_is_compiled_for_wheels() -> None:
    """Every C source is compiled for wheels, except the report's template for users."""
    known = {Path("src", *part.package.split("."), part.source) for part in PARTS}
    there = {path.relative_to(ROOT) for path in ROOT.glob("src/**/*.c")}
    assert there - known == {Path("src/qnnmem/report/client.c")}
    assert known <= there


@compiles
def test_a_wheel_for_a_machine_needs_no_compiler(wheel: Path, installed: Path) -> None:
    """A wheel for a machine has the machine's name and works without a compiler."""
    assert wheel.name.endswith(f"-py3-none-linux_{HERE}.whl")
    assert use(installed) == ("", {name for part in PARTS for name in part.objects})


@compiles
@pytest.mark.parametrize("damaged", ["programs/line.h", "shipped/libQnnLpai.so"])
def test_objects_that_do_not_fit_their_sources_are_left(installed: Path, damaged: str) -> None:
    """Compiled objects that do not match their sources are ignored; a compiler is then needed."""
    with (installed / "qnnmem" / damaged).open("ab") as file:
        file.write(b"\n")
    said, there = use(installed)
    assert said.startswith("checking a program needs a C compiler once, and none was found")
    assert there == set()


@compiles
def test_objects_say_which_glibc_they_need(installed: Path) -> None:
    """Each object states its glibc versions; the stub libraries may need none."""
    found = {path.name: glibc_versions(path.read_bytes()) for path in installed.rglob("*.so")}
    assert len(found) == 6
    assert all(major == 2 for versions in found.values() for major, _ in versions)
    assert found["libqnnmem_client.so"]
    assert found["libqnnmem_observer.so"]
    assert found["libqnnmem_texts.so"]


@compiles
def test_a_compiler_for_another_machine_is_refused(tmp_path: Path) -> None:
    """A compiler for another machine is refused."""
    (other,) = set(MACHINES) - {HERE}
    with pytest.raises(ValueError, match=f"cc does not compile for {other}"):
        write_objects(tmp_path, other, ["cc"])


def test_a_machine_that_is_not_known_ends_the_build(tmp_path: Path) -> None:
    """An unknown machine ends the build without a file."""
    done = build(tmp_path, "wheel", QNNMEM_WHEEL="riscv64")
    assert done.returncode != 0
    assert "wheels are made for x86_64 and aarch64, not for 'riscv64'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_compiler_is_the_one_that_is_named() -> None:
    """The named compiler is used with its options; else the system's or Debian's cross compiler."""
    assert compiler_for("aarch64", "zig cc '-a b'") == ["zig", "cc", "-a b"]
    assert compiler_for(HERE, "") == ["cc"]
    assert compiler_for("other", "") == ["other-linux-gnu-gcc"]
