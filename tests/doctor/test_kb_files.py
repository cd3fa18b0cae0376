"""Untrusted folders of entries, and notes that are not entries."""

from __future__ import annotations

import heapq
import json
import os
import random
import string
from pathlib import Path

import msgspec
import pytest
from command_line import exit_code, sentence, verb

from qnnmem.doctor.kb import files as kb_files
from qnnmem.doctor.kb import knowledge, prefilter
from qnnmem.doctor.kb.check import skeleton
from qnnmem.doctor.kb.files import read_files
from qnnmem.doctor.kb.listing import list_entries
from qnnmem.doctor.kb.read import read_entries, read_file
from qnnmem.doctor.kb.template import parse
from qnnmem.errors import UsageError
from qnnmem.report import kb as report

NOTE = "## Camera\n\n### Typical Logs\n- boardcam: cdsp busy, owner camera\n"
ENTRY = skeleton("x-y").replace(
    "candidates", "stage_from_call = true\nover = []\nexplains = []\ncandidates"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with a log, one built-in note, a team's note and an empty cache."""
    monkeypatch.chdir(tmp_path)
    Path("ours").mkdir()
    Path("ours/ours.md").write_text(NOTE.replace("Camera", "Sensor").replace("camera", "sensor"))
    monkeypatch.setattr(knowledge, "BUILT_IN", tmp_path / "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("kb").mkdir()
    Path("kb/note.md").write_text(NOTE)
    Path("a.log").write_text("E boardcam: cdsp busy, owner camera\n")


doctor, kb = verb("doctor", "a.log"), verb("kb")


def test_what_is_no_file_is_left_out_and_said() -> None:
    """Pipes, devices and links out of a folder of entries are skipped, each with a note."""
    Path("kb/gone.md").symlink_to("nowhere")
    Path("kb/zero.md").symlink_to("/dev/zero")
    Path("kb/log.md").symlink_to("../a.log")
    os.mkfifo("kb/pipe.toml")
    os.mkfifo("kb/pipe")  # without an entry's suffix: no note
    for _ in range(2):  # first built, then from the cache
        done = doctor("--kb", "kb")
        assert exit_code(done) == 1
        assert "(entry camera)" in done.output
        assert [line for line in done.output.splitlines() if line.startswith("note: ")] == [
            "note: skipped: kb/gone.md: a broken link",
            "note: skipped: kb/log.md: a link out of the folder; name its target instead",
            "note: skipped: kb/pipe.toml: a pipe",
            "note: skipped: kb/zero.md: a link to a device",
        ]
    assert "note: skipped: kb/pipe.toml: a pipe" in kb("list", "--kb", "kb").output
    assert len(json.loads(kb("list", "--kb", "kb", "--json").output)["notes"]) == 4
    assert "kb/pipe.toml: a pipe" in kb("check", "--kb", "kb").output


@pytest.mark.parametrize("words", [("doctor", "a.log"), ("kb", "list"), ("kb", "check")])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/dev/zero", "a device, not a file or folder of entries"),
        ("pipe", "a pipe, not a file or folder of entries"),
        ("gone", "no such file"),
        ("empty", "the folder contains no Markdown or TOML files"),
    ],
)
def test_a_base_that_is_none_is_refused(name: str, why: str, words: tuple[str, ...]) -> None:
    """A missing, empty or unsuitable base is refused with exit code 2, without waiting."""
    os.mkfifo("pipe")
    Path("empty").mkdir()
    done = verb(*words)("--kb", name)
    assert (exit_code(done), sentence(done)) == (2, f"{name}: {why}")


def test_a_folder_in_place_of_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file replaced by a pipe after the listing is refused."""
    os.mkfifo("pipe.md")
    monkeypatch.setattr(kb_files, "files_in", lambda *_, **__: ["pipe.md"])
    with pytest.raises(UsageError, match=r"^pipe\.md: a pipe$"):
        read_files("kb")


def test_an_empty_folder_is_refused_also_when_the_base_is_kept() -> None:
    """An empty folder is refused even if the built-in base is cached."""
    Path("empty").mkdir()
    assert exit_code(doctor()) in (0, 1, 3)
    assert exit_code(doctor("--kb", "empty")) == 2


def test_so_many_files_bytes_and_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit on files, bytes and lines is exact: one more is refused."""
    monkeypatch.setattr(kb_files, "_MAX_FILES", 3)
    Path("kb/b.md").write_text(NOTE)
    Path("kb/gone.md").symlink_to("nowhere")
    assert len(read_files("kb").files) == 2
    Path("kb/c.md").write_text(NOTE)
    with pytest.raises(UsageError, match=r"^kb: more than 3 files of entries$"):
        read_files("kb")
    monkeypatch.setattr(kb_files, "_MAX_FILES", 9)
    monkeypatch.setattr(kb_files, "_MAX_BYTES", 3 * len(NOTE))
    assert len(read_files("kb").files) == 3
    monkeypatch.setattr(kb_files, "_MAX_BYTES", 3 * len(NOTE) - 1)
    with pytest.raises(UsageError, match=r"more than .* bytes of entries"):
        read_files("kb")
    monkeypatch.setattr(kb_files, "_MAX_FILE", len(NOTE))
    assert len(read_files("kb/b.md").files) == 1
    monkeypatch.setattr(kb_files, "_MAX_FILE", len(NOTE) - 1)
    with pytest.raises(UsageError, match="larger than"):
        read_files("kb/b.md")
    monkeypatch.setattr(kb_files, "_MAX_FILE", 1000)
    monkeypatch.setattr(knowledge, "_MAX_LINES", 2)
    two = NOTE + "- another typical line\n"
    Path("two.md").write_text(two)
    assert len(knowledge.read_folder("two.md")[1][0].lines) == 2
    Path("two.md").write_text(two + "- and a third one\n")
    with pytest.raises(UsageError, match="the limit is 2"):
        knowledge.read_folder("two.md")


WRONG = (
    *("1", "-1", "9" * 30, "9" * 5000, "1.5", "nan", "inf", "true", '""', '"\\u0000"'),
    *('"\\u001b[31m"', "[]", "[1]", "[[]]", '["a"]', '[["a"]]', '[[["a"],0.5]]', "[[{},0.5]]"),
    *('[["unknown",nan]]', '[["unknown",true]]', "{}", "{a=1}", "1979-05-27", "07:32:00", '"{"'),
    *('"(a|b"', '"{}{}"', '["|"]', '[""]', f'["code >= 0x{"f" * 6000}"]', '["\\u202e"]'),
    *(f'["code >= {"9" * 400} GB"]', f'["code >= {"9" * 6000}"]', '["code >= 1.5.5"]'),
    *("[" * 300 + "]" * 300, "[" * 9000 + "]" * 9000, '"' + "a" * 100_000 + '"', "[{}]", "[1,{}]"),
)
FIELDS = [
    number for number, line in enumerate(ENTRY.splitlines()) if " = " in line and "{" not in line
]


def tried(data: bytes, name: str) -> bool:
    """Return whether a file is accepted; assert that a refusal is one printable sentence."""
    try:
        lines, entries = read_file(data, name, own=True)
        shown = report.render_list(list_entries(entries)) + "".join(
            map(report.render_entry, entries)
        )
        assert all(c.isprintable() or c == "\n" for c in shown)
        msgspec.json.decode(msgspec.json.encode((lines, entries)))  # as in the cache
    except UsageError as exc:
        said = str(exc)
    else:
        return True
    assert len(said) < 600
    assert said.isprintable()
    return False


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_another_shape_is_refused(field: int) -> None:
    """Any TOML value in any field gives an entry or one sentence."""
    assert tried(ENTRY.encode(), "x.md")
    for value in WRONG:
        lines = ENTRY.splitlines()
        lines[field] = f"{lines[field].split(' = ')[0]} = {value}"
        text = "\n".join(lines) + "\n"
        tried(text.encode(), "x.md")
        tried(text.split("+++\n")[1].encode(), "x.toml")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0", b"\xff\xfe", b"+++\n", b"+++\n+++\n", b"+++\n\n+++\n", b"line = 1\n"),
        *(b"line = [1]\n", b"[line]\nsign = 1\n", b"[[lines]]\n", b"x = " + b"9" * 5000),
        *(ENTRY.encode("utf-16"), ENTRY.replace("\n", "\r").encode(), b"a" * 1_000_000),
        *(
            ENTRY.replace("[[line]]", "[line]").encode(),
            ENTRY.replace("[[when]]", "[when]").encode(),
        ),
        ENTRY.replace('sign = ["x-y-sign"]', "").encode(),
    ],
    ids=range(17),
)
def test_a_file_of_another_shape_is_refused(data: bytes) -> None:
    """A malformed file is refused as Markdown and does not crash the TOML reader."""
    assert not tried(data, "x.md")
    tried(data, "x.toml")


def test_files_of_windows_are_read() -> None:
    """Files with a byte order mark and CRLF are read."""
    assert tried(b"\xef\xbb\xbf" + ENTRY.replace("\n", "\r\n").encode(), "x.md")
    assert tried(b'\xef\xbb\xbf[[line]]\r\nsign = "a"\r\ntext = "boardcam fails"\r\n', "x.toml")


def test_mutated_notes_are_read_or_refused() -> None:
    """Randomly damaged notes are read or refused with one sentence."""
    rng = random.Random(11)  # noqa: S311 - reproducible, not secret
    for number in range(400):
        data = bytearray((ENTRY if number % 2 else NOTE).encode())
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(data))
            cut = at + rng.randint(0, 20)
            data[at:cut] = bytes(
                rng.choice(b'{}[]"|\\=+\n#-0a\0`') for _ in range(rng.randint(0, 5))
            )
            data = data or bytearray(b"x")
        tried(bytes(data), "x.md")


def test_a_long_typical_line_is_cut_between_characters() -> None:
    """A long typical line is not cut between a backslash and the brace it escapes."""
    for length in (297, 298, 299, 300):
        text = NOTE.replace("boardcam: cdsp busy, owner camera", "a" * length + "{}{}{}")
        (entry,) = read_entries(text, "x.md")
        assert parse(entry.lines[0].text)


def test_choosing_prefilters_is_linear_in_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of prefilters takes linear work for unlike lines, counted in steps."""
    rng = random.Random(3)  # noqa: S311 - reproducible, not secret
    steps = 0

    def counted(heap: list[tuple[float, str]], item: tuple[float, str]) -> tuple[float, str]:
        nonlocal steps
        steps += 1
        return real(heap, item)

    real = heapq.heapreplace
    monkeypatch.setattr(prefilter, "heapreplace", counted)
    lines = ["".join(rng.choices(string.ascii_lowercase, k=60)) for _ in range(200)]
    templates = [parse(line) for line in lines]
    anchors = [anchor for template in templates for anchor in template.anchors]
    chosen = prefilter.choose(templates)
    found = prefilter.keys(templates, chosen, anchors)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(200))
    assert steps <= 200 * 60
