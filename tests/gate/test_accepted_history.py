"""`qnnmem check --history` and its page: accepted numbers by commit, without foreign commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from budget_project import grow, make_project
from command_line import exit_code, run, sentence

from qnnmem.report.page.budgets import check_section
from qnnmem.results.check import CheckResult
from qnnmem.results.read import read_as

SPOTTER = "models/spotter.csv (LPAI)"
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    """Run git with a fixed name and without the machine's configuration."""
    name = ("-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgSign=false")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    clean["GIT_CONFIG_GLOBAL"] = os.devnull
    command = [shutil.which("git") or "git", *name, *words]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up three commits with accepted numbers and one growth that is not accepted."""
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    git(folder, "init", "--quiet")
    for size in (7000, 9000, 8000):
        grow(folder, size)
        assert exit_code(run("check", "--update-baseline")) in (0, 1)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"size {size}")
    return folder


def test_accepted_numbers_come_oldest_first(project: Path) -> None:
    """Accepted numbers come oldest first, in the JSON, the text and the page's curve."""
    found = json.loads(run("check", "--history", "--json").output)
    sizes = [state["models"][SPOTTER]["scratch"] for state in found["history"]]
    assert sizes == [15000, 17000, 16000]
    assert all(
        len(state["commit"]) == 40 and state["time"][:2] == "20" for state in found["history"]
    )
    said = f"accepted scratch of {SPOTTER}: 15,000 -> 17,000 -> 16,000 bytes, now 16,000"
    assert said in run("check", "--history").output
    body = check_section(read_as(found, "it", CheckResult)).body
    assert body.count('class="plot"') == 1
    assert "3 commits of the baseline" in body
    assert json.loads(run("check", "--json").output)["history"] == []


def test_the_page_links_every_cell_to_its_model(project: Path) -> None:
    """Each cell of the page's matrix links to its model's section, which has a map."""
    assert exit_code(run("check", "-o", "page.html")) == 0
    page = (project / "page.html").read_text("utf-8")
    links = [part.partition('"')[0] for part in page.split('href="#')[1:]]
    assert len(links) == 3
    for link in links:
        assert f'<details id="{link}"' in page
    assert page.count("<canvas") == 2
    assert "scratch 98%" in page


def test_a_broken_budget_is_first_and_open(project: Path) -> None:
    """An exceeded budget comes first, with its reason, in an opened section."""
    grow(project, 9500)
    assert exit_code(run("check", "--also", "page.html")) == 1
    page = (project / "page.html").read_text("utf-8")
    assert page.index("over its budget of 16,384") < page.index("<table")
    opened = page.index("<details id=")
    assert page[opened : page.index("</summary>", opened)].endswith(SPOTTER)
    assert " open><summary>" in page[opened : page.index("</summary>", opened)]


def test_no_command_of_the_repository_is_started(project: Path, tmp_path: Path) -> None:
    """No command named by the repository's configuration, hooks or attributes is started."""
    trap = tmp_path / "trap"
    spring = tmp_path / "spring"
    spring.write_text(f"#!/bin/sh\necho $0 $* >> {trap}\n")
    spring.chmod(0o755)
    (project / ".gitattributes").write_text("*.json diff=it filter=it\n")
    hooks = project / ".git" / "hooks"
    for name in ("post-index-change", "reference-transaction", "pre-auto-gc", "post-checkout"):
        shutil.copy(spring, hooks / name)
    stored = git(project, "rev-parse", "HEAD~1:qnnmem-baseline.json")
    for key in (
        *("core.fsmonitor", "core.pager", "pager.rev-list", "pager.cat-file", "core.sshCommand"),
        *("diff.external", "diff.it.textconv", "diff.it.command", "filter.it.smudge"),
        *("gpg.program", "core.askPass", "core.gitProxy", "credential.helper", "core.editor"),
        *("core.alternateRefsCommand", "uploadpack.packObjectsHook", "alias.rev-list"),
    ):
        git(project, "config", key, str(spring))
    for key, value in (
        ("log.showSignature", "true"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::{spring} %S"),
        ("protocol.ext.allow", "always"),
        ("core.repositoryFormatVersion", "1"),
    ):
        git(project, "config", key, value)
    (project / ".git" / "objects" / stored[:2] / stored[2:]).unlink()
    trap.unlink(missing_ok=True)
    found = json.loads(run("check", "--history", "--json").output)
    assert [state["models"][SPOTTER]["scratch"] for state in found["history"]] == [15000, 16000]
    assert not trap.exists(), trap.read_text()


def test_what_is_no_baseline_in_a_commit_is_left_out(project: Path) -> None:
    """Commits with a damaged or foreign baseline are left out of the history."""
    kept = (project / "qnnmem-baseline.json").read_bytes()
    for content in (kept[:50], b'{"schema": "other"}', b"[" * 5000, kept):
        (project / "qnnmem-baseline.json").write_bytes(content)
        git(project, "commit", "--quiet", "--all", "--message", "it")
    assert len(json.loads(run("check", "--history", "--json").output)["history"]) == 4


def test_without_a_repository_or_a_baseline_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a repository, --history gives exit code 3; without a baseline, 2."""
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    done = run("check", "--history")
    assert exit_code(done) == 3
    assert sentence(done).startswith("the history of qnnmem-baseline.json cannot be read: fatal")
    config = folder / "pyproject.toml"
    config.write_text(config.read_text().replace('baseline = "qnnmem-baseline.json"\n', ""))
    done = run("check", "--history")
    assert exit_code(done) == 2
    assert "--history needs a baseline" in sentence(done)
