"""The command that adds an extra matches how the program was installed."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from qnnmem.installation import command_for, sources

GIT = {"url": "https://example.com/q.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}
TAGGED = {**GIT, "vcs_info": {**GIT["vcs_info"], "requested_revision": "v1"}}  # type: ignore[dict-item]
LOCAL = {"url": "file:///home/me/qnnmem", "vcs_info": GIT["vcs_info"]}
WHEEL = {"url": "file:///wheels/qnnmem-1-py3-none-any.whl", "archive_info": {}}
CHECKOUT = {"url": "file:///home/me/my%20qnnmem", "dir_info": {"editable": True}}
FOLDER = {"url": "file:///home/me/qnnmem", "dir_info": {}}


class Record:
    """The files that an installer writes beside a package."""

    def __init__(self, origin: str, installer: str) -> None:
        self.files = {"direct_url.json": origin, "INSTALLER": installer}

    def read_text(self, name: str) -> str | None:
        """Return a file of the record, or None."""
        return self.files[name] or None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that simulates an installation, with a file beside Python."""

    def pretend(origin: Any, installer: str = "pip", beside: str = "") -> None:
        text = origin if isinstance(origin, str) else json.dumps(origin)
        record = Record(text, installer)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: record)
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
        monkeypatch.setattr(shutil, "which", lambda _name: str(tmp_path / "bin" / "pip"))
        if beside:
            (tmp_path / beside).touch()

    return pretend


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ("", "pip install 'qnnmem[htp]'"),
        (GIT, "pip install 'qnnmem[htp] @ git+https://example.com/q.git'"),
        (TAGGED, "pip install 'qnnmem[htp] @ git+https://example.com/q.git@v1'"),
        (WHEEL, "pip install 'qnnmem[htp] @ file:///wheels/qnnmem-1-py3-none-any.whl'"),
        (CHECKOUT, "pip install --editable '/home/me/my qnnmem[htp]'"),
        (FOLDER, "pip install '/home/me/qnnmem[htp]'"),
        (LOCAL, "pip install '/home/me/qnnmem[htp]'"),
        ("no json", "pip install 'qnnmem[htp]'"),
    ],
)
def test_the_extra_comes_from_where_the_program_came_from(
    origin: Any, command: str, installed: Any
) -> None:
    """The command takes the extra from the program's source: index, repository, file or folder."""
    installed(origin)
    assert command_for("htp") == command


@pytest.mark.parametrize(
    ("beside", "command"),
    [
        (
            "uv-receipt.toml",
            "uv tool install --force 'qnnmem[htp] @ git+https://example.com/q.git'",
        ),
        (
            "pipx_metadata.json",
            "pipx install --force 'qnnmem[htp] @ git+https://example.com/q.git'",
        ),
    ],
)
def test_tools_that_keep_programs_apart_are_asked_themselves(
    beside: str, command: str, installed: Any
) -> None:
    """A program installed by uv or pipx gets their command, since they may undo pip's changes."""
    installed(GIT, beside=beside)
    assert command_for("htp") == command


def test_an_environment_without_pip_is_left_to_uv(installed: Any, tmp_path: Path) -> None:
    """In a uv environment, which has no pip, the command is `uv pip`."""
    installed("", installer="uv")
    python = tmp_path / "bin" / "python"
    assert command_for("fast") == f"uv pip install --python {python} 'qnnmem[fast]'"


def test_a_pip_of_another_python_is_not_named(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the `pip` on the path belongs to another Python, the command uses `python -m pip`."""
    installed("")
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/pip")
    assert command_for("htp") == f"{sys.executable} -m pip install 'qnnmem[htp]'"


def test_sources_without_an_installation_name_their_folder(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an installation, the command installs the checkout."""

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    installed("")
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    root = Path(__file__).parents[1]
    assert command_for("htp") == f"pip install --editable '{root}[htp]'"


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("", ""),
        (GIT, "https://example.com/q.git"),
        (TAGGED, "https://example.com/q.git#v1"),
        (WHEEL, ""),
        (FOLDER, ""),  # has no Dockerfile
    ],
)
def test_a_container_is_built_from_where_the_sources_are(
    installed: Any, origin: Any, place: str
) -> None:
    """A container is built from a folder with a Dockerfile or from a repository address."""
    installed(origin)
    assert sources() == place


def test_a_checkout_is_what_a_container_is_built_from(installed: Any, tmp_path: Path) -> None:
    """A checkout with a Dockerfile is the source of the container."""
    (tmp_path / "Dockerfile").touch()
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert sources() == str(tmp_path)
