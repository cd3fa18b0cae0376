"""Remedies for an incident: the root cause, and commands to paste.

A remedy is text such as "what to do: `command`". The command can hold placeholders such as MODEL
and SOC. If the user or the log names the file or the SoC, that name replaces the placeholder,
quoted for a shell. A remedy that starts with "where the limit is 2 GiB, ..." applies only to
incidents whose log lines print that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from qnnmem.doctor.kb.entry import Entry
from qnnmem.report.shell import LONGEST, file_word, shell_line, shell_word
from qnnmem.results.incident import Incident
from qnnmem.text import lazy_pattern, shorten

# Placeholders in remedy commands, with their meanings.
PLACEHOLDERS = {
    "MODEL": "the model file (--model fills it in)",
    "BINARY": "the context binary (--binary fills it in)",
    "SOC": "the SoC of the device, as listed by `qnnmem socs` (--soc fills it in)",
    "DIM": "a free dimension of the model, such as batch",
    "CODE": "the error code in the decisive line",
    "LOG": "the log file",
    "CONFIG": "the config file of the tool",
    "COMMAND": "the program that failed, with its arguments",
}

_COMMAND = r"`(?:qnnmem|adb) [^`]+`"
_COMMANDS = lazy_pattern(rf"(.*\S)\s*: ({_COMMAND}(?: or {_COMMAND})*)\.?", re.DOTALL)
_WORD = lazy_pattern(rf"(?<![\w./-])({'|'.join(PLACEHOLDERS)})(?![\w./-])")
_WHERE = lazy_pattern(r"where the (\w+) is ([0-9.]+) ([KMG])iB, (.*)", re.DOTALL)
_SCALES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MODELS, _BINARIES = (".onnx", ".tflite"), (".bin",)
_CODES = ("code", "error", "status")
_TAKE_BINARIES = ("fit", "footprint", "qmem")
_NEED_ONNX = ("fit", "fix", "footprint", "qmem", "sweep", "prepare", "validate")


class Advice(NamedTuple):
    """A remedy, and commands that apply it or show whether it is needed."""

    text: str
    commands: tuple[str, ...] = ()


def learned(incident: Incident) -> str:
    """Return a sentence with the words from which the trained model inferred a cause."""
    words = ", ".join(f"'{shorten(word)}'" for word in incident.words)
    return (
        f"no entry matches these lines; in labelled logs these words indicate this cause: {words}"
    )


class Guide:
    """Finds remedies in the knowledge base, and fills in the user's file names and SoC."""

    def __init__(
        self,
        model: str | None = None,
        binary: str | None = None,
        soc: str | None = None,
        settings: Sequence[tuple[str, str]] = (),
        own: Sequence[Path] = (),
    ) -> None:
        """Remember the user's files; `settings` are model options such as ("--dim", "batch=1")."""
        self._named = {"MODEL": model, "BINARY": binary, "SOC": soc}
        self._settings, self._own = tuple(settings), tuple(own)
        self.whys: dict[str, str] = {}  # root causes by entry, a cache

    def why(self, incident: Incident) -> str:
        """Return the words from which the trained model inferred the cause, else the root cause.

        The root cause is that of the entry. The result is empty if there is neither.
        """
        if incident.words:
            return learned(incident)
        return "" if incident.entry is None else self.why_of(incident.entry)

    def why_of(self, name: str) -> str:
        """Return the root cause of an entry; empty if the entry has none."""
        if name not in self.whys:
            from qnnmem.doctor.kb.sections import root_cause

            entry = self._entry(name)
            self.whys[name] = "" if entry is None else root_cause(entry)
        return self.whys[name]

    def remedies(self, incident: Incident) -> list[Advice]:
        """Return the entry's remedies; those for a number in the log lines come first.

        Remedies for a number that the log lines contradict are left out.
        """
        matching, others = [], []
        for text in incident.remedies:
            match = _WHERE.fullmatch(text)
            printed = incident.quantities.get(f"{match[1]}_bytes") if match else None
            if match is None or not isinstance(printed, int):
                others.append(text)
            elif printed == round(float(match[2]) * _SCALES[match[3]]):
                matching.append(match[4])
        return [self._remedy(text, incident) for text in (*matching, *others)]

    def collect(self, incident: Incident) -> list[str]:
        """Return which data to collect next, with the commands filled in."""

        def filled(match: re.Match[str]) -> str:
            return f"`{self._filled(match[0][1:-1], incident) or match[0][1:-1]}`"

        return [re.sub(_COMMAND, filled, text) for text in incident.collect_next]

    def _remedy(self, text: str, incident: Incident) -> Advice:
        match = _COMMANDS.fullmatch(text) if len(text) <= 2 * LONGEST else None
        if match is None:
            return Advice(text)
        filled = (self._filled(command, incident) for command in match[2].split("`")[1::2])
        return Advice(match[1], tuple(filter(None, filled)))

    def _filled(self, command: str, incident: Incident) -> str:
        """Return the command with filled placeholders; empty if its verb cannot read the model."""
        verb = command.split(" ", 2)[1]
        known = self._known(incident, verb)
        varied = known["DIM"] if "DIM=" in command else None
        words = {name: _quoted(name, value) for name, value in known.items() if value}
        if "MODEL" in words and (options := self._given(verb, varied)):
            words["MODEL"] += f" {options}"
        model = known["MODEL"] or ""
        if "MODEL" in command and verb in _NEED_ONNX and model.lower().endswith(".tflite"):
            return ""
        first, _, rest = command.partition("BINARY ")  # nobody has named a second binary
        filled = _WORD.sub(lambda match: words.get(match[1], match[1]), first)
        if rest:
            left = {name: word for name, word in words.items() if name != "BINARY"}
            filled += f"{words.get('BINARY', 'BINARY')} "
            filled += _WORD.sub(lambda match: left.get(match[1], match[1]), rest)
        return filled if len(filled) <= LONGEST else command

    def _known(self, incident: Incident, verb: str) -> dict[str, str | None]:
        values = incident.quantities
        dims = [value.partition("=")[0] for name, value in self._settings if name == "--dim"]
        codes = [str(values[name]) for name in _CODES if name in values]
        known = {
            "MODEL": self._named["MODEL"] or _file(values, _MODELS),
            "BINARY": self._named["BINARY"] or _file(values, _BINARIES),
            "SOC": self._named["SOC"] or _soc(values),
            "DIM": dims[0] if dims else None,
            "CODE": codes[0] if codes else None,
            "LOG": incident.file,
        }
        if known["MODEL"] is None and verb in _TAKE_BINARIES:
            known["MODEL"] = known["BINARY"]
        return known

    def _given(self, verb: str, varied: str | None) -> str:
        """Return the options of the user's model, except a dimension that the command sets."""
        if self._named["MODEL"] is None or verb not in (*_NEED_ONNX, "plan", "doctor"):
            return ""
        kept = [
            (name, value)
            for name, value in self._settings
            if name != "--dim" or varied is None or value.partition("=")[0] != varied
        ]
        return shell_line(word for pair in kept for word in pair)

    def _entry(self, name: str) -> Entry | None:
        if name in self._team:
            return self._team[name]
        from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder

        path = BUILT_IN / f"{name}.md"  # reading one file is faster than reading all
        if not re.fullmatch(r"[a-z0-9-]+", name) or not path.is_file():
            return None
        return next((entry for entry in read_folder(path)[1] if entry.id == name), None)

    @cached_property
    def _team(self) -> Mapping[str, Entry]:
        from qnnmem.doctor.kb.knowledge import read_folder
        from qnnmem.errors import QnnMemError

        try:
            entries = [entry for path in self._own for entry in read_folder(path, own=True)[1]]
        except QnnMemError:  # the entry changed after the diagnosis, which stays valid
            return {}
        return {entry.id: entry for entry in reversed(entries)}


def legend(remedies: Iterable[Advice]) -> str:
    """Return the meanings of the placeholders that are left in the commands."""
    left = {word for remedy in remedies for word in _WORD.findall(" ".join(remedy.commands))}
    meant = [f"{word}: {meaning}" for word, meaning in PLACEHOLDERS.items() if word in left]
    return "; ".join(meant)


def _quoted(name: str, value: str) -> str:
    return shell_word(value if name in ("SOC", "DIM", "CODE") else file_word(value))


def _file(values: Mapping[str, int | str], endings: tuple[str, ...]) -> str | None:
    """Return the first value that is a file name with one of these suffixes, else None."""
    for value in values.values():
        if isinstance(value, str) and value.strip().lower().endswith(endings):
            return value.strip()
    return None


def _soc(values: Mapping[str, int | str]) -> str | None:
    """Return the SoC named in the log lines if it is a known SoC, else None."""
    name = values.get("soc")
    if name is None:
        return None
    from qnnmem.errors import QnnMemError
    from qnnmem.targets.socs import find_soc

    try:
        return find_soc(str(name)).name
    except QnnMemError:
        return None
