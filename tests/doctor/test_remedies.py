"""Remedies: every command can be pasted, with the user's files where known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from command_line import run

from qnnmem.cli.verbs import qnnmem
from qnnmem.doctor.kb.entry import Entry
from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.doctor.kb.sections import root_cause
from qnnmem.report import doctor, doctor_formats
from qnnmem.report.doctor_remedies import PLACEHOLDERS, Guide, legend
from qnnmem.results.incident import Incident, ReadingStats

ENTRIES = read_folder(BUILT_IN)[1]
STATS = ReadingStats(("dev.log",), 1, 9, 0.1, 1)
LIMIT = "graph requires estimated allocation of {} KB, limit is {} KB"


def incident(**changes: Any) -> Incident:
    """Return a default incident with these changes."""
    line = {"file": "dev.log", "line": 1, "text": "failed", "count": 1, "decides": True}
    words = dict.fromkeys(("cause_meaning", "title", "producer"), "x")
    where = {"file": "dev.log", "last_file": "dev.log", "first_line": 1, "last_line": 1}
    lists: dict[str, Any] = {"collect_next": [], "candidates": [], "evidence": [line]}
    found = {
        **{"stage": "graph", "cause": "mem_vtcm", "is_memory": True, "confidence": "high"},
        **{"verdict": "cause", "entry": None, "process": None, "count": 1, "quantities": {}},
        **{"shortage_bytes": None, "remedies": []},
    }
    return msgspec.convert({**found, **words, **where, **lists, **changes}, Incident)


def parse(words: Sequence[str]) -> None:
    """Parse a command line as the program does, without running it."""
    context = qnnmem.make_context("qnnmem", list(words))
    command: click.Command = qnnmem
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


def filled(entry: Entry, guide: Guide) -> list[str]:
    """Return all commands of an entry's remedies."""
    one = incident(remedies=entry.remedies, quantities={"code": 1002})
    return [command for remedy in guide.remedies(one) for command in remedy.commands]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_command_of_every_entry_is_one_of_this_version(entry: Entry) -> None:
    """Every command of every entry parses in this version, with placeholders and with files."""
    for guide in (
        Guide(),
        Guide("my net.onnx", "a b.bin", "SM8650", [("--dim", "batch=1"), ("--shape", "x=1x2")]),
    ):
        for command in filled(entry, guide):
            program, *words = shlex.split(command)
            if program == "qnnmem":
                parse(words)
    shown = " ".join(entry.remedies)
    assert shown.count("`qnnmem ") == sum(c.startswith("qnnmem ") for c in filled(entry, Guide()))
    assert all(remedy.count("`") % 2 == 0 for remedy in entry.remedies)
    for word in re.findall(r"\b[A-Z]{3,}\b", " ".join(filled(entry, Guide()))):
        assert word in PLACEHOLDERS


def test_commands_are_many() -> None:
    """At least 80 % of the memory entries have commands; every entry has a root cause."""
    memory = [one for one in ENTRIES if one.cause.startswith("mem_")]
    assert sum(bool(filled(one, Guide())) for one in memory) >= 0.8 * len(memory)
    assert all(root_cause(one) for one in ENTRIES)
    assert max(len(root_cause(one)) for one in ENTRIES) < 600


def doctor_on(folder: Path, line: str, *words: str | Path) -> str:
    """Return the report on a log of one line."""
    log = folder / "dev.log"
    log.write_text(f"{line}\n", "utf-8")
    return run("doctor", log, *words).stdout


def test_the_users_files_stand_in_the_commands(tmp_path: Path) -> None:
    """The commands contain the user's file, quoted for a shell, and the model's settings."""
    binary = tmp_path / "it's mine.bin"
    text = doctor_on(tmp_path, LIMIT.format(2347229, 2097152), "--binary", binary, "--soc", "57")
    assert f"       qnnmem fit {shlex.quote(str(binary))} --soc 57\n" in text
    assert "qnnmem sweep MODEL --soc 57 --vary vtcm_mb=2,4,8\n" in text
    assert text.count("the model file") == 1


def test_settings_of_the_model_go_along() -> None:
    """The model's settings are repeated, except for the dimension that the command varies."""
    guide = Guide("-m.onnx", soc="SM8650", settings=[("--dim", "n=2"), ("--value", "k=a b")])
    fit, vary = (
        guide.remedies(incident(remedies=[f"do it: `qnnmem {words}`"]))[0].commands[0]
        for words in ("fit MODEL --soc SOC", "sweep MODEL --soc SOC --vary DIM=1..64 --max DIM")
    )
    assert fit == "qnnmem fit ./-m.onnx --dim n=2 --value 'k=a b' --soc SM8650"
    assert vary == "qnnmem sweep ./-m.onnx --value 'k=a b' --soc SM8650 --vary n=1..64 --max n"


def test_the_command_line_hands_its_settings_on(tmp_path: Path) -> None:
    """Model options given to the doctor are repeated in the commands."""
    model = tmp_path / "none.onnx"
    text = doctor_on(
        tmp_path, LIMIT.format(3670100, 3670016), "--model", model, "--dim=n=2", "--soc", "SM8650"
    )
    assert f"       qnnmem fix {model} --dim n=2 --backend htp --soc SM8650 -o fixed\n" in text
    assert f"qnnmem sweep {model} --soc SM8650 --vary n=1..64 --max n\n" in text


def test_names_in_the_lines_are_used() -> None:
    """A file, a known SoC and a code from the log fill placeholders, each as one shell word."""
    said = {"file": "/sdcard/a;rm -rf $HOME.bin", "soc": "SM8650", "error": -12}
    asked = [
        "one: `qnnmem inspect BINARY`",
        "two: `qnnmem socs SOC`",
        "three: `qnnmem explain CODE`",
    ]
    found = Guide().remedies(incident(remedies=asked, quantities=said))
    assert [one.commands for one in found] == [
        ("qnnmem inspect '/sdcard/a;rm -rf $HOME.bin'",),
        ("qnnmem socs SM8650",),
        ("qnnmem explain -12",),
    ]
    for one in found:
        parse(shlex.split(one.commands[0])[1:])
    strange = Guide().remedies(incident(remedies=asked, quantities={"soc": "toaster"}))
    assert strange[1].commands == ("qnnmem socs SOC",)


def test_a_model_that_a_verb_cannot_read_is_not_recommended_to_it() -> None:
    """A TFLite model is not suggested to verbs that compile for HTP."""
    asked = ["a: `qnnmem fit MODEL --soc SOC`", "b: `qnnmem plan MODEL`"]
    found = Guide("net.tflite").remedies(incident(remedies=asked))
    assert [one.commands for one in found] == [(), ("qnnmem plan net.tflite",)]


@pytest.mark.parametrize(
    ("limit", "first"), [(2097152, "name the target SoC"), (3670016, "cut the model")]
)
def test_the_numbers_order_the_remedies(limit: int, first: str, tmp_path: Path) -> None:
    """With a limit of 2 GiB the first remedy is to name the SoC, otherwise to cut the model."""
    text = doctor_on(tmp_path, LIMIT.format(limit + 84, limit))
    assert f"\n  1. {first}" in text
    assert ("name the target SoC" in text) == (limit == 2097152)


def test_without_a_number_the_condition_is_said(tmp_path: Path) -> None:
    """Without a number, the remedy states its condition."""
    text = doctor_on(tmp_path, "error during serialize: memory usage too large")
    assert "\n  1. where the limit is 2 GiB, name the target SoC" in text


def test_placeholders_are_explained_once() -> None:
    """Each remaining placeholder is explained once."""
    found = Guide(soc="57").remedies(incident(remedies=["a: `qnnmem fit MODEL --soc SOC`"] * 2))
    assert legend(found) == "MODEL: the model file (--model fills it in)"
    assert legend(Guide().remedies(incident())) == ""


def test_why_is_shown_in_text_and_markdown(tmp_path: Path) -> None:
    """The root cause is shown in text and Markdown, for built-in entries and a team's note."""
    line = LIMIT.format(2347229, 2097152)
    for form in ("text", "markdown"):
        text = doctor_on(tmp_path, line, "--format", form)
        assert "the compiler adds up everything one graph will address" in text
    note = tmp_path / "note.md"
    note.write_text(
        "## Ours\n### Typical Logs\n- our daemon ate the heap\n"
        "### Root Cause\n- the daemon leaks.\n- nobody restarts it\n### Solutions\n- restart it\n"
    )
    text = doctor_on(tmp_path, "our daemon ate the heap", "--kb", note)
    assert "\nwhy: the daemon leaks; nobody restarts it\n" in text


@pytest.mark.parametrize(
    "name", ["<b>\x1b[31m\u202e`|@all", "a\nb.onnx", "x" * 3000, "`id`.onnx", "$(id).onnx"]
)
def test_hostile_names_stay_one_word(name: str) -> None:
    """A hostile file name stays one printable word; a very long name is left out."""
    one = incident(remedies=["do: `qnnmem fit MODEL --soc SOC`"])
    guide = Guide(name)
    text = "".join(doctor.render_text([one], STATS, guide=guide))
    assert all(line.isprintable() for line in text.splitlines())
    (command,) = guide.remedies(one)[0].commands
    if len(name) < 2000 and name.isprintable():
        assert shlex.split(command)[2] == name
    if len(name) > 2000:
        assert command == "qnnmem fit MODEL --soc SOC"


def test_markdown_keeps_a_command_whole() -> None:
    """A command in Markdown stays in one code span."""
    one = msgspec.structs.replace(incident(), remedies=("do it: `qnnmem socs SOC`",))
    text = "".join(doctor_formats.render_markdown([one], STATS))
    assert "\n1. do it: `qnnmem socs SOC`\n" in text


def test_json_keeps_the_remedies_as_the_entry_has_them(tmp_path: Path) -> None:
    """The JSON keeps the remedies with their placeholders."""
    text = doctor_on(tmp_path, LIMIT.format(2347229, 2097152), "--json")
    found: Any = msgspec.json.decode(text)
    assert any("qnnmem fit MODEL --soc SOC" in one for one in found["incidents"][0]["remedies"])


@pytest.mark.parametrize("text", [" " * 1_000_000, "x: `qnnmem " * 90_000, "`" * 1_000_000])
def test_a_note_cannot_make_the_doctor_slow(text: str) -> None:
    """A remedy of a million characters is shown as short text, without a slow parse."""
    one = incident(remedies=[f"a{text}b"])
    assert Guide().remedies(one) == [(f"a{text}b", ())]
    shown = "".join(doctor.render_text([one], STATS))
    assert max(map(len, shown.splitlines())) < 700


def test_notes_that_are_gone_meanwhile_take_no_diagnosis_with_them(tmp_path: Path) -> None:
    """If a team's notes vanish while the doctor runs, the diagnosis still works."""
    guide = Guide(own=[tmp_path / "gone.md"])
    assert guide.why(incident(entry="not-ours")) == ""
    assert guide.why(incident(entry="../escape")) == ""
    assert guide.why(incident(entry="graph-over-limit"))
