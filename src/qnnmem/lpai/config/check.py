"""Checks of config files: every key, contradictory settings, and pairs of files.

Every key must be known, be in its section, occur once and have an allowed value. A tool file (the
file of `--config_file`) is checked together with the LPAI file that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.bounded_file import config_file, is_there
from qnnmem.errors import Damaged, LoadError
from qnnmem.loader.file_kind import check_kind
from qnnmem.lpai.config.json_positions import (
    Document,
    JsonKind,
    JsonMember,
    JsonNode,
    Position,
    read_document,
)
from qnnmem.lpai.config.schema import (
    BY_PATH,
    HTP_SECTIONS,
    KEYS,
    MEM_TYPE,
    UINT32,
    FileKind,
    Key,
    file_of,
    keys_of,
    tcm_works_on,
)
from qnnmem.results.lint import CheckedFile, ConfigFinding, LintResult, Severity, lint_result
from qnnmem.text import nearest, plain_or_quoted, quote

# Messages of the LPAI extension for a bad mem_type: from its parser, then its allocator.
MEM_TYPE_MESSAGES = ("Invalid memory type", "Memory type only supports DDR & TCM")

_TARGET, _HW = "lpai_backend.target_env", "lpai_backend.enable_hw_ver"
_EXECUTE = "lpai_graph.execute"
_PERSISTENT = "context_configs.is_persistent_binary"
_LIBRARY = "backend_extensions.shared_library_path"
_POINTER = "backend_extensions.config_file_path"

_ORDER = list(Severity)


class ValueFault(Struct, frozen=True):
    """The reason why a value is not allowed for its key."""

    check: str
    sentence: str
    cure: str


def check_value(key: Key, node: JsonNode) -> ValueFault | None:
    """Return the fault of a value; None if it is allowed."""
    fault = _type_fault(key, node) or _value_fault(key, node)
    if fault is None or key.path != MEM_TYPE:
        return fault
    parser, allocator = MEM_TYPE_MESSAGES
    outcome = f'the run logs "{parser}", then "{allocator}", and initialisation fails'
    return replace(fault, sentence=f"{fault.sentence}; {outcome}")


def _type_fault(key: Key, node: JsonNode) -> ValueFault | None:
    number_fits = key.kind is JsonKind.NUMBER and node.kind is JsonKind.WHOLE
    if node.kind is key.kind or number_fits:
        return None
    sentence = f"{show(node)} is not {key.kind.value}"
    return ValueFault("wrong-type", sentence, _type_cure(key, node))


def _type_cure(key: Key, node: JsonNode) -> str:
    if isinstance(node.value, str) and _unquoted(key, node.value):
        return f"write {node.value} without quotes"
    if key.kind is JsonKind.FLAG and node.kind is JsonKind.WHOLE and node.value in (0, 1):
        return f"write {'true' if node.value else 'false'}"
    if key.values:
        return f"write one of {_listed(key.values)}"
    default = "" if key.default is None else f", e.g. {json.dumps(key.default)}"
    return f"write {key.kind.value}{default}"


def _unquoted(key: Key, text: str) -> bool:
    if key.kind is JsonKind.FLAG:
        return text in ("true", "false")
    return key.kind is JsonKind.WHOLE and text.isascii() and text.isdigit() and len(text) <= 10


def _value_fault(key: Key, node: JsonNode) -> ValueFault | None:
    if key.kind is JsonKind.LIST:
        return _item_fault(key, node)
    if key.values and node.value not in key.values:
        return ValueFault(
            "bad-value", f"{show(node)} is not a value of this key", _value_cure(key, node)
        )
    if key.kind is JsonKind.TEXT and not node.value:
        return ValueFault("bad-value", "the string is empty", "fill it in or remove the key")
    if isinstance(node.value, float | int) and node.value < 0:
        return ValueFault("bad-value", f"{show(node)} is below 0", "write 0 or more")
    if key.kind is JsonKind.WHOLE and isinstance(node.value, int) and node.value > key.high:
        return ValueFault("bad-value", f"{show(node)} is too large", f"write at most {key.high}")
    return None


def _value_cure(key: Key, node: JsonNode) -> str:
    near = nearest(str(node.value), key.values)
    if near is None:
        return f"write one of {_listed(key.values)}"
    others = [value for value in key.values if value != near]
    return f"write {json.dumps(near)}, or {_listed(others)}"


def _item_fault(key: Key, node: JsonNode) -> ValueFault | None:
    for number, item in enumerate(node.items):
        if key.item is not None and item.kind is not key.item:
            sentence = f"entry {number} is {show(item)}, not {key.item.value}"
            return ValueFault("wrong-type", sentence, f"write {key.item.value} as each entry")
    return None


def show(node: JsonNode) -> str:
    """Return a value as short, escaped text for a message."""
    if node.kind is JsonKind.FLAG:
        return "true" if node.value else "false"
    if node.kind is JsonKind.NUMBER:
        return f"{node.value:g}"
    return node.kind.value if node.value is None else quote(node.value)


def _listed(values: Iterable[str]) -> str:
    return " or ".join(map(json.dumps, values))


def setting(root: JsonNode, path: str) -> str | int | float | bool | None:
    """Return a key's effective value, from the file or by default; None if it is not allowed."""
    key, node = BY_PATH[path], root.find(path)
    if node is None:
        return key.default
    return node.value if check_value(key, node) is None else None


def classify(root: JsonNode) -> FileKind:
    """Return the kind of a config file, judged by its top-level keys."""
    names = [member.name for member in root.members[:1000]]
    scores = {kind: sum(_likeness(name, kind) for name in names) for kind in KEYS}
    best = max(scores, key=lambda kind: scores[kind])
    if scores[best]:
        return best
    return FileKind.HTP if any(name in HTP_SECTIONS for name in names) else FileKind.UNKNOWN


def _likeness(name: str, kind: FileKind) -> int:
    sections = keys_of("", kind)
    if name in sections:
        return 4  # more than any misplaced or misspelt key
    if any(key.name == name for key in KEYS[kind]):
        return 1
    return int(name not in HTP_SECTIONS and nearest(name, list(sections)) is not None)


def is_htp_library(name: str) -> bool:
    """Return whether a library name is that of the HTP extension."""
    return "htp" in name.lower().replace("\\", "/").rpartition("/")[2]


# A hostile file may contain 100,000 unknown keys; a longer list helps nobody.
MAX_FINDINGS = 100
_PLAIN = re.compile(r"\w{1,60}", re.ASCII)


class Finder(Struct, frozen=True):
    """Factory of findings about one file."""

    file: str
    kind: FileKind

    def _make(
        self,
        severity: Severity,
        place: Position | None,
        key: str,
        check: str,
        text: str,
        cure: str,
    ) -> ConfigFinding:
        line, column = (None, None) if place is None else (place.line, place.column)
        return ConfigFinding(self.file, line, column, severity, key, check, text, cure)

    error = partialmethod(_make, Severity.ERROR)  # a run fails, or a setting has no effect
    warning = partialmethod(_make, Severity.WARNING)  # probably a mistake
    note = partialmethod(_make, Severity.NOTE)  # cannot be checked here


def check_keys(document: Document, find: Finder) -> list[ConfigFinding]:
    """Return findings about the syntax and every key, at most a hundred."""
    findings = [
        find.error(issue.at, "", "not-json", issue.sentence, issue.cure)
        for issue in islice(document.issues, MAX_FINDINGS)
    ]
    if find.kind in (FileKind.TOOL, FileKind.LPAI):
        keys = _section(document.root, "", "", find)
        findings += islice(keys, MAX_FINDINGS + 1 - len(findings))
    if len(findings) > MAX_FINDINGS:
        text = f"the list ends after {MAX_FINDINGS} findings"
        findings[MAX_FINDINGS:] = [find.error(None, "", "too-many", text, "correct these first")]
    return findings


def _section(node: JsonNode, section: str, shown: str, find: Finder) -> Iterator[ConfigFinding]:
    """Yield findings about one object; `section` is its schema path, `shown` the printed path."""
    known = keys_of(section, find.kind)
    first: dict[str, Position] = {}
    for member in node.members:
        path = join(shown, member.name)
        if member.name in first:
            text = f"the key is given twice, first on line {first[member.name].line}"
            yield find.error(member.at, path, "duplicate-key", text, "remove one of them")
        first.setdefault(member.name, member.at)
        if member.name in known:
            yield from _value(known[member.name], member.node, path, find)
        else:
            yield _unknown_key(member, known, path, find)


def _value(key: Key, node: JsonNode, shown: str, find: Finder) -> Iterator[ConfigFinding]:
    fault = check_value(key, node)
    if fault is not None:
        yield find.error(node.at, shown, fault.check, fault.sentence, fault.cure)
    if node.kind is not key.kind or key.open:
        return
    if node.kind is JsonKind.OBJECT:
        yield from _section(node, key.path, shown, find)
    for number, item in enumerate(node.items):
        if item.kind is JsonKind.OBJECT:
            yield from _section(item, f"{key.path}[]", f"{shown}[{number}]", find)


def _unknown_key(
    member: JsonMember, known: dict[str, Key], path: str, find: Finder
) -> ConfigFinding:
    """Return the finding for a key that does not exist in this section."""
    home = next((key for key in BY_PATH.values() if key.name == member.name), None)
    if home is not None:
        where = home.section or "the top-level object"
        other = "" if file_of(home) is find.kind else f" of the {file_of(home).value}"
        text = f"{member.name} belongs in {where}{other}; it has no effect here"
        return find.error(member.at, path, "misplaced-key", text, f"move it to {where}{other}")
    text = "unknown key; the tools silently ignore it"
    near = nearest(member.name, list(known))
    if near is not None:
        return find.warning(member.at, path, "unknown-key", text, f"did you mean {near}?")
    return find.warning(member.at, path, "unknown-key", text, _key_cure(member.name, known))


def _key_cure(name: str, known: dict[str, Key]) -> str:
    """Return advice that names a similar key of any section, or the keys of this section."""
    by_name = {key.name: key for key in BY_PATH.values()}
    near = nearest(name, list(by_name))
    if near is not None:
        return f"did you mean {by_name[near].path}?"
    return f"remove it, or use one of {', '.join(known)}"


def join(section: str, name: str) -> str:
    """Return the dotted path of a key; a name with unusual characters is quoted."""
    shown = name if _PLAIN.fullmatch(name) else quote(name)
    return f"{section}.{shown}" if section else shown


def check_lpai(document: Document, find: Finder) -> Iterator[ConfigFinding]:
    """Yield findings about contradictory settings in an LPAI file."""
    yield from _tcm(document.root, find)
    yield from _real_time(document.root, find)
    yield from _cores(document.root, find)


def _tcm(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    if setting(root, MEM_TYPE) != "tcm":
        return
    place, target, version = _place(root, MEM_TYPE), setting(root, _TARGET), setting(root, _HW)
    if target not in ("adsp", None):
        text = f'"tcm" works only in direct mode on the aDSP, but {_TARGET} is "{target}"'
        yield find.error(
            place,
            MEM_TYPE,
            "tcm-needs-adsp",
            text,
            f'set {_TARGET} to "adsp" or mem_type to "ddr"',
        )
    if isinstance(version, str) and not tcm_works_on(version):
        text = f'"tcm" needs LPAI v6 or later, but {_HW} is "{version}"'
        yield find.error(
            place,
            MEM_TYPE,
            "tcm-needs-v6",
            text,
            f'set mem_type to "ddr" for {version} hardware',
        )


def _real_time(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    fps, client = f"{_EXECUTE}.fps", f"{_EXECUTE}.client_type"
    if setting(root, fps) == 0 and setting(root, client) == "real_time":
        text = "with 0 frames per second a real_time client has no rate to guarantee"
        cure = 'set fps to the rate you need, or client_type to "non_real_time"'
        yield find.warning(_place(root, fps), fps, "real-time-without-fps", text, cure)


def _cores(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    path = f"{_EXECUTE}.core_selection"
    mask = setting(root, path)
    if isinstance(mask, int) and several_cores(mask):
        text = f"{mask} selects several cores, which LPAI does not support yet"
        cure = "write 0 for any core, or one bit: 1 for core 0, 2 for core 1"
        yield find.warning(_place(root, path), path, "several-cores", text, cure)


def several_cores(mask: int) -> bool:
    """Return whether a core mask selects several cores; all bits set means any core, like 0."""
    return mask != UINT32 and mask.bit_count() > 1


def check_tool(document: Document, find: Finder) -> Iterator[ConfigFinding]:
    """Yield findings about missing keys of a tool file, but not about missing files."""
    section = document.root.find("backend_extensions")
    if section is None:
        text = "backend_extensions is missing, so no LPAI file is read and the defaults apply"
        cure = "add backend_extensions with shared_library_path and config_file_path"
        yield find.warning(None, "backend_extensions", "missing-key", text, cure)
    elif section.kind is JsonKind.OBJECT:
        yield from _extension(document.root, section, find)
    yield from _graph_names(document.root, find)


def _extension(root: JsonNode, section: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    for path in (_LIBRARY, _POINTER):
        if root.find(path) is None:
            text = "is missing; the tools need the extension library and its config file"
            yield find.error(section.at, path, "missing-key", text, "add it")
    library = root.find(_LIBRARY)
    if library is None or not isinstance(library.value, str):
        return
    if is_htp_library(library.value):
        text = f"{quote(library.value)} is the HTP extension, so this file is not for LPAI"
        cure = 'for LPAI write "libQnnLpaiNetRunExtensions.so"'
        yield find.error(library.at, _LIBRARY, "htp-file", text, cure)
    elif "lpai" not in library.value.lower():
        text = f"{quote(library.value)} does not look like LPAI's extension library"
        cure = 'for LPAI write "libQnnLpaiNetRunExtensions.so" (.dll on Windows)'
        yield find.warning(library.at, _LIBRARY, "library-name", text, cure)


def _graph_names(root: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    entries = root.find("graph_configs")
    for number, entry in enumerate(() if entries is None else entries.items[:1000]):
        if entry.kind is JsonKind.OBJECT and entry.get("graph_name") is None:
            path = f"graph_configs[{number}].graph_name"
            text = "is missing, so the entry applies to no graph"
            yield find.error(entry.at, path, "missing-key", text, "name the graph")
            return  # one finding is enough


def check_pair(tool: Document, lpai: JsonNode, find: Finder) -> Iterator[ConfigFinding]:
    """Yield findings about settings in a tool file that contradict its LPAI file."""
    direct = setting(lpai, _TARGET) == "adsp" and not _only_prepares(lpai)
    if direct and setting(tool.root, _PERSISTENT) is False:
        text = (
            'direct mode (target_env "adsp") reads the model binary in place, so '
            "is_persistent_binary must be true"
        )
        cure = 'add "context_configs": {"is_persistent_binary": true}'
        yield find.error(
            _place(tool.root, _PERSISTENT), _PERSISTENT, "direct-needs-persistent", text, cure
        )


def _only_prepares(lpai: JsonNode) -> bool:
    """Return whether a file has settings for the offline generator but none for a run."""
    return lpai.find("lpai_graph.prepare") is not None and lpai.find(_EXECUTE) is None


def _place(root: JsonNode, path: str) -> Position | None:
    node = root.find(path)
    return None if node is None else node.at


class Located(Struct, frozen=True):
    """An existing file that a config file names."""

    path: Path
    in_place_of: bool = False  # found by its file name, although the full path does not exist


def locate(text: str, tool_file: Path) -> Located | None:
    """Return the LPAI file that a tool file names; None if the file does not exist.

    The file can be in the current folder, where the tools look, or in the folder of the tool file.
    A path on the device, e.g. `/data/x.conf`, also matches `x.conf` in these two folders. Raise
    Damaged if the file is outside both folders.
    """
    named = config_file(tool_file, text)
    if named is not None:
        return Located(named)
    name = PurePosixPath(text).name
    beside = config_file(tool_file, name) if name and text.startswith("/") else None
    return None if beside is None else Located(beside, in_place_of=True)


def lint_files(paths: Sequence[Path], strict: bool = False) -> LintResult:
    """Return the findings about every file, and about the LPAI files that tool files name.

    Each file is checked once.
    """
    run = _Run(named={_identity(path) for path in paths})
    for path in paths:
        run.check(path, None)
    order = {file.path: place for place, file in enumerate(run.files)}
    findings = sorted(run.findings, key=lambda finding: order[finding.file])
    return lint_result(tuple(run.files), tuple(findings), strict=strict)


@dataclass(slots=True)
class _Run:
    """Files and findings of one `lint_files` call, in order of appearance."""

    named: set[Path]
    seen: dict[Path, tuple[Document, FileKind] | None] = field(default_factory=dict)
    files: list[CheckedFile] = field(default_factory=list)
    findings: list[ConfigFinding] = field(default_factory=list)

    def check(self, path: Path, named_by: Path | None) -> tuple[Document, FileKind] | None:
        """Return the content and kind of a file, checked once; None if it cannot be read."""
        identity = _identity(path)
        if identity not in self.seen:
            self.seen[identity] = None  # a tool file that names itself must not cause a loop
            by = None if named_by is None or identity in self.named else str(named_by)
            self.seen[identity] = self._read(path, by)
        return self.seen[identity]

    def _read(self, path: Path, by: str | None) -> tuple[Document, FileKind] | None:
        try:
            check_kind(path, "lint", takes=("config", "graphs", "json", "text", "genie", "genai"))
            document = read_document(path)
        except LoadError as exc:
            self.files.append(CheckedFile(str(path), "unknown", by, exc.reason))
            return None
        kind = classify(document.root)
        if kind is FileKind.UNKNOWN and by is not None and not document.root.members:
            kind = FileKind.LPAI  # `{}` means all defaults
        self.files.append(CheckedFile(str(path), kind.value, by))
        findings = self._findings(document, kind, Finder(str(path), kind))
        self.findings += sorted(findings, key=_rank)
        return document, kind

    def _findings(
        self, document: Document, kind: FileKind, find: Finder
    ) -> Iterator[ConfigFinding]:
        yield from check_keys(document, find)
        if kind is FileKind.LPAI:
            yield from check_lpai(document, find)
        elif kind is FileKind.TOOL:
            yield from check_tool(document, find)
            yield from self._library(document, find)
            yield from self._pointer(document, find)
        elif kind is FileKind.HTP:
            text = "this is an HTP backend file; only LPAI files are checked"
            yield find.error(
                None, "", "htp-file", text, "pass the tools' config file or the LPAI file"
            )
        else:
            text = "this is neither a config file of the QNN tools nor an LPAI file"
            cure = (
                "the tools' config file has backend_extensions; an LPAI file has lpai_backend or "
                "lpai_graph"
            )
            yield find.error(None, "", "unknown-file", text, cure)

    def _library(self, document: Document, find: Finder) -> Iterator[ConfigFinding]:
        node = document.root.find(_LIBRARY)
        if node is None or not isinstance(node.value, str) or "/" not in node.value:
            return  # a bare name is resolved by the loader of the machine that runs it
        if not any(is_there(folder / node.value) for folder in (document.path.parent, Path())):
            text = f"{quote(node.value)} is not on this machine"
            cure = "no change is needed if the file is on the device"
            yield find.note(node.at, _LIBRARY, "missing-library", text, cure)

    def _pointer(self, document: Document, find: Finder) -> Iterator[ConfigFinding]:
        node = document.root.find(_POINTER)
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        if _is_for_htp(document):
            return  # already reported, and the HTP's own file is not checked here
        try:
            file = locate(node.value, document.path)
        except Damaged as exc:
            cure = "move the LPAI file into the folder of this tool file, or into a subfolder of it"
            yield find.error(node.at, _POINTER, "outside-folder", str(exc), cure)
            return
        if file is None:
            where = "is neither next to this tool file nor in the current folder"
            text = f"{quote(node.value)} {where}"
            cure = "correct the path, or write both files again with qnnmem config"
            yield find.error(node.at, _POINTER, "missing-file", text, cure)
            return
        if file.in_place_of:
            text = f"{quote(node.value)} is not on this machine"
            cure = f"{plain_or_quoted(str(file.path))} is checked instead"
            yield find.note(node.at, _POINTER, "other-place", text, cure)
        checked = self.check(file.path, document.path)
        if checked is not None and checked[1] is FileKind.LPAI:
            yield from check_pair(document, checked[0].root, find)
        elif checked is not None or _identity(file.path) == _identity(document.path):
            kind = FileKind.TOOL if checked is None else checked[1]
            what = "of an unknown type" if kind is FileKind.UNKNOWN else f"a {kind.value}"
            text = f"{quote(node.value)} is {what}, but an LPAI file is needed"
            cure = "set the path to the file with lpai_backend and lpai_graph"
            yield find.error(node.at, _POINTER, "wrong-file", text, cure)


def _is_for_htp(tool: Document) -> bool:
    library = tool.root.find(_LIBRARY)
    return library is not None and is_htp_library(str(library.value))


def _rank(finding: ConfigFinding) -> tuple[int, int, int]:
    """Return a sort key that orders findings by position, with those about the whole file last."""
    return (finding.line or 1 << 30, finding.column or 0, _ORDER.index(finding.severity))


def _identity(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
        return path
