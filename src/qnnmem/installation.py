"""How this program was installed, and which command adds an extra.

    in a checkout          pip install -e '/path[htp]'
    from a repository      pip install 'qnnmem[htp] @ git+https://...'
    from an index          pip install 'qnnmem[htp]'

If `uv tool install`, `pipx install` or `uv pip install` made the installation, that command is used
instead of pip.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_NAME = "qnnmem"
PACKAGE = "onnxruntime-qnn"  # package with the vendor's libraries


def command_for(extra: str) -> str:
    """Return the shell command that adds an extra to this installation."""
    origin, installer = _recorded()
    here, requirement = Path(sys.prefix), _requirement(origin, extra)
    if (here / "uv-receipt.toml").is_file():
        return f"uv tool install --force {requirement}"
    if (here / "pipx_metadata.json").is_file():
        return f"pipx install --force {requirement}"
    if installer == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)} {requirement}"
    if "vcs_info" in origin and (folder := _folder(origin)):
        # pip before 24.1 rejects a `git+file` URL after a name.
        requirement = shlex.quote(f"{folder}[{extra}]")
    return f"{_pip()} install {requirement}"


def sources() -> str:
    """Return the folder or URL of the sources, for a container build; empty if unknown."""
    origin, _installer = _recorded()
    if folder := _folder(origin):
        return folder if Path(folder, "Dockerfile").is_file() else ""
    url = str(origin.get("url", ""))
    if "vcs_info" not in origin or not url.startswith("https://"):
        return ""
    revision = origin["vcs_info"].get("requested_revision")
    address = url if url.endswith(".git") else f"{url}.git"
    return f"{address}#{revision}" if revision else address


def _requirement(origin: Mapping[str, Any], extra: str) -> str:
    """Return the requirement as a shell word, with `--editable` before it if needed."""
    url = str(origin.get("url", ""))
    if "dir_info" in origin and (folder := _folder(origin)):
        editable = "--editable " if origin["dir_info"].get("editable") else ""
        return f"{editable}{shlex.quote(f'{folder}[{extra}]')}"
    named = f"{_NAME}[{extra}]"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = f"@{vcs['requested_revision']}" if vcs.get("requested_revision") else ""
        return shlex.quote(f"{named} @ {vcs.get('vcs', 'git')}+{url}{revision}")
    return shlex.quote(f"{named} @ {url}" if url else named)


def _recorded() -> tuple[Mapping[str, Any], str]:
    """Return the package's origin (from PEP 610; empty for an index) and its installer."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(_NAME)
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        return origin, (package.read_text("INSTALLER") or "").strip()
    except PackageNotFoundError:
        root = Path(__file__).parents[2]
        if not (root / "pyproject.toml").is_file():
            return {}, ""
        return {"url": root.as_uri(), "dir_info": {"editable": True}}, ""  # run from its sources
    except (OSError, ValueError):  # a malformed record
        return {}, ""


def _folder(origin: Mapping[str, Any]) -> str:
    """Return the local folder that the package came from, or ""."""
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    parts = urlparse(str(origin.get("url", "")))
    return url2pathname(parts.path) if parts.scheme == "file" else ""


def _pip() -> str:
    """Return the command that runs this Python's pip: `pip` if the shell finds the same pip."""
    from shutil import which

    pip = which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def package_folder(libraries: Iterable[str]) -> Path | None:
    """Return the folder of the installed package if it has all these libraries, else None."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE.replace("-", "_"))  # finds the package without importing it
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    wanted = tuple(libraries)
    for folder in map(Path, places):
        if all((folder / name).is_file() for name in wanted):
            return folder
    return None
