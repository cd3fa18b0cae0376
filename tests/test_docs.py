from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from qnnmem.cli.verbs import qnnmem

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402 - a script, not a package

COMMANDS = ROOT / "docs" / "reference" / "commands"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# In pieces, so that this file does not contain the text that it searches for.
MACHINE_PATH = re.compile(
    r"(?<![\w.$}<-])/(?:" + "|".join(("work", "root", "tmp/" + "venv")) + r")\b"
)
REGISTRY = re.compile(
    "|".join(
        ("pypi" + r"\.org", "python" + "hosted", "npm" + r"js\.(?:org|com)", "art" + "ifactory")
    ),
    re.IGNORECASE,
)
WORKPLACE = re.compile(
    r"\b(?:this|earlier|previous|last|next|another|later)\s+" + "session" + r"s?\b", re.IGNORECASE
)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [text for kind, text in FENCE.findall(page.read_text("utf-8")) if kind == language]


def python_snippets() -> Sequence[object]:
    """Return every Python block with a readable id."""
    return [
        pytest.param(text, id=f"{page.name}-{number}")
        for page in PAGES
        for number, text in enumerate(blocks(page, "python"))
    ]


def anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers give a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page."""
    text = FENCE.sub("", page.read_text("utf-8"))
    return {anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def links(page: Path) -> Iterator[str]:
    """Yield the page's links into the repository."""
    for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if not target.startswith(("http://", "https://")):
            yield target


def text_files() -> list[Path]:
    """Return the text files of the repository, tracked or not yet."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so the files of the repository are not known")
    command = [git, "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # Logs of the real library keep the library's words.
    files = [ROOT / name for name in done.stdout.split("\0") if name and not name.endswith(".log")]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()[:8192]]


def hits(pattern: re.Pattern[str]) -> list[str]:
    """Return the places in the repository where a line matches a pattern."""
    return [
        f"{file.relative_to(ROOT)}:{number}"
        for file in text_files()
        if pattern.search(text := file.read_text("utf-8", "replace"))
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a folder with only the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(qnnmem.commands))
def test_every_verb_has_a_page_with_every_option(name: str) -> None:
    """Each verb has a page that names every option in every spelling."""
    page = (COMMANDS / f"{name}.md").read_text("utf-8")
    command = qnnmem.commands[name]
    verbs = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    options = [p for verb in verbs for p in verb.params if isinstance(p, click.Option)]
    spellings = [spelling for option in options for spelling in option.opts]
    assert spellings
    if isinstance(command, click.Group):
        assert all(f"`qnnmem {name} {verb.name}" in page for verb in verbs)
    missing = [s for s in spellings if not re.search(rf"`{re.escape(s)}[` ]", page)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_resolve(page: Path) -> None:
    """Each relative link leads to an existing file and heading."""
    for target in links(page):
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if heading:
            assert heading in anchors(file), target


def test_every_page_is_in_the_index() -> None:
    """The index links to every other page, and the README to the index."""
    docs = ROOT / "docs"
    assert "docs/index.md" in links(ROOT / "README.md")
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert pages == {"index.md", *links(docs / "index.md")}


def test_the_page_of_benchmarks_quotes_numbers_that_were_measured() -> None:
    """Each number on the benchmark page is in a result file that its section names."""
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text("utf-8")
    number = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w])")
    sections = page.split("\n## ")[1:]
    assert len(sections) >= 8
    for section in sections:
        names = re.findall(r"`(benchmarks/results/[\w-]+\.md)`", section)
        measured = " ".join((ROOT / name).read_text("utf-8") for name in names)
        known = {value.strip(",") for value in number.findall(measured)}
        quoted = {value.strip(",") for value in number.findall(section)}
        small = {str(count) for count in range(100)}  # counts of rows, time limits, goals
        assert quoted - known - small == set(), section.splitlines()[0]


def test_pages_stand_in_four_groups() -> None:
    """Every page is a tutorial, a how-to, a reference or an explanation."""
    docs = ROOT / "docs"
    groups = {page.relative_to(docs).parts[0] for page in docs.rglob("*.md")}
    assert groups == {"index.md", "tutorials", "how-to", "reference", "explanation"}


def test_generated_parts_are_current() -> None:
    """The generated parts of the pages are up to date."""
    stale = [str(page.relative_to(ROOT)) for page, _ in reference.stale()]
    assert stale == [], "run python tools/reference.py"


def test_the_page_about_installing_knows_every_extra() -> None:
    """The installation page lists every extra, and the container image uses some of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}
    page = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    section = page.split("## Extras")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == extras
    image = (ROOT / "Dockerfile").read_text("utf-8")
    named = re.search(r"^ARG EXTRAS=(.+)$", image, re.MULTILINE)
    assert named
    assert set(named[1].split(",")) <= extras


def test_no_page_names_the_package_as_if_an_index_had_it() -> None:
    """Each install command on a page names its source, since no package index has qnnmem."""
    bare = re.compile(r"pip install [\"']?qnnmem(?!\[[\w,]+\] @)")
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # a record stays as it was
    assert [page.name for page in pages if bare.search(page.read_text("utf-8"))] == []


def test_every_verb_says_its_exit_codes() -> None:
    """The page of each verb lists its exit codes, 0 first."""
    silent = [
        name
        for name, _ in reference.commands()
        if "\nExit codes: 0 " not in reference.PARTS["options"](*name.split())
    ]
    assert silent == []


def test_everything_that_can_be_generated_is_on_a_page() -> None:
    """Every verb, rule family, diagnosis stage and C table has its generated part on a page."""
    import json

    rules = json.loads(CliRunner().invoke(qnnmem, ["lpai", "rules", "--json"]).stdout)["rules"]
    entries = json.loads(CliRunner().invoke(qnnmem, ["kb", "list", "--json"]).stdout)["entries"]
    wanted = {f"options {name}" for name, _ in reference.commands()}
    wanted |= {f"lpai-rules {rule['id'][0]}" for rule in rules}
    wanted |= {f"diagnoses {entry['stage']}" for entry in entries}
    wanted |= {f"c-{kind} {one}" for kind in ("functions", "structs") for one in ("lpai", "htp")}
    several = {"options", "lpai-rules", "diagnoses", "c-functions", "c-structs"}
    wanted |= set(reference.PARTS) - several
    assert wanted == reference.parts()


def test_a_page_that_is_not_current_is_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` names a stale page and exits with 1; otherwise the page is updated."""
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- generated: errors -->\nold\n<!-- end of generated -->\nafter\n")
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    assert reference.main() == 1
    assert "page.md" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["reference.py"])
    assert reference.main() == 0
    assert page.read_text("utf-8").startswith("before\n<!-- generated: errors -->\n\n| error |")
    assert list(reference.stale()) == []


def test_the_layout_page_names_every_folder() -> None:
    """The layout page describes exactly the folders of the package."""
    source = ROOT / "src" / "qnnmem"
    folders = {
        f"{folder.relative_to(source).as_posix()}/"
        for folder in source.rglob("*")
        if folder.is_dir() and folder.name != "__pycache__"
    }
    page = (ROOT / "docs" / "explanation" / "code-layout.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w/]+/)` \|", page, re.MULTILINE)) == folders


def test_the_layout_page_names_every_module_beside_the_folders() -> None:
    """The layout page describes every base module by name."""
    modules = {path.stem for path in (ROOT / "src" / "qnnmem").glob("*.py")}
    page = (ROOT / "docs" / "explanation" / "code-layout.md").read_text("utf-8")
    section = page.split("## Base modules")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert named == {name for name in modules if not name.startswith("__")}


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """The site builds without a broken link, and no page loads anything from the network."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^>]+>")
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 10
    assert [hit for page in pages for hit in loaded.findall(page.read_text("utf-8"))] == []


@pytest.mark.parametrize("code", python_snippets())
def test_python_snippets_run(code: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python snippets on the pages run without a warning, beside the examples."""
    snippet = workplace / "snippet.py"
    snippet.write_text(code, "utf-8")
    monkeypatch.setattr(sys, "argv", [str(snippet)])
    runpy.run_path(str(snippet), run_name="__main__")


def test_there_are_snippets_to_run() -> None:
    """The pages contain at least three Python snippets."""
    assert len(python_snippets()) >= 3


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("plan_a_model.py", "scratch 24,576 bytes, minimal for this order"),
        ("plan_buffers.py", "peak 1,920 bytes, optimal: True"),
        ("run_under_contract.py", "20 executions, 0 waited for more frames"),
        ("small_heap.py", "executed with 769 bytes of its own"),
    ],
)
def test_example_scripts_run(
    script: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each example script prints its answer first."""
    monkeypatch.setattr(sys, "argv", [script])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[0] == line


def test_quantize_is_spelled_in_one_way() -> None:
    """The spelling is "quantize" everywhere, as in QNN and ONNX, except in recorded results."""
    found = hits(re.compile("quanti" + "s", re.IGNORECASE))
    assert [hit for hit in found if not hit.startswith("tests/json_0_1_0/")] == []


@pytest.mark.parametrize(
    "pattern", [MACHINE_PATH, REGISTRY, WORKPLACE], ids=["paths", "registries", "workplace"]
)
def test_files_do_not_tell_where_they_were_made(pattern: re.Pattern[str]) -> None:
    """No file names a machine's paths, a registry's hosts or a workplace."""
    assert hits(pattern) == []
