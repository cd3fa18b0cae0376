"""Checks config files: each one alone, and a tool file together with the LPAI file it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qnnmem.bounded_file import is_there
from qnnmem.errors import Damaged, LoadError
from qnnmem.loader.file_kind import check_kind
from qnnmem.lpai.config.check import Finder, check_keys, classify, is_htp_library
from qnnmem.lpai.config.cross import check_lpai, check_pair, check_tool
from qnnmem.lpai.config.json_positions import Document, read_document
from qnnmem.lpai.config.read import Located, locate
from qnnmem.lpai.config.schema import FileKind
from qnnmem.results.lint import CheckedFile, ConfigFinding, LintResult, Severity, lint_result
from qnnmem.text import quote

_LIBRARY = "backend_extensions.shared_library_path"
_POINTER = "backend_extensions.config_file_path"
_ORDER = list(Severity)


def lint_files(paths: Sequence[Path], strict: bool = False) -> LintResult:
    """Checks every file once, and the LPAI files that tool files point to."""
    run = _Run(named={_identity(path) for path in paths})
    for path in paths:
        run.check(path, None)
    order = {file.path: place for place, file in enumerate(run.files)}
    findings = sorted(run.findings, key=lambda finding: order[finding.file])
    return lint_result(tuple(run.files), tuple(findings), strict=strict)


@dataclass(slots=True)
class _Run:
    """Files and findings of one call, in the order they were met."""

    named: set[Path]
    seen: dict[Path, tuple[Document, FileKind] | None] = field(default_factory=dict)
    files: list[CheckedFile] = field(default_factory=list)
    findings: list[ConfigFinding] = field(default_factory=list)

    def check(self, path: Path, named_by: Path | None) -> tuple[Document, FileKind] | None:
        """Checks a file unless it was checked before; None if it cannot be read."""
        identity = _identity(path)
        if identity not in self.seen:
            self.seen[identity] = None  # a tool file that names itself must not go in circles
            by = None if named_by is None or identity in self.named else str(named_by)
            self.seen[identity] = self._read(path, by)
        return self.seen[identity]

    def _read(self, path: Path, by: str | None) -> tuple[Document, FileKind] | None:
        try:
            check_kind(path, "lint", takes=("config", "graphs", "json", "text"))
            document = read_document(path)
        except LoadError as exc:
            self.files.append(CheckedFile(str(path), "unknown", by, exc.reason))
            return None
        kind = classify(document.root)
        if kind is FileKind.UNKNOWN and by is not None and not document.root.members:
            kind = FileKind.LPAI  # `{}`: every default
        self.files.append(CheckedFile(str(path), kind.value, by))
        found = list(self._findings(document, kind, Finder(str(path), kind)))
        self.findings += sorted(found, key=_rank)
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
            text = "this is a file of the HTP backend; only LPAI's files are checked"
            yield find.error(None, "", "htp-file", text, "name the tool file or the LPAI file")
        else:
            text = "this is neither a tool file nor an LPAI file"
            cure = "a tool file has backend_extensions, an LPAI file lpai_backend or lpai_graph"
            yield find.error(None, "", "unknown-file", text, cure)

    def _library(self, document: Document, find: Finder) -> Iterator[ConfigFinding]:
        node = document.root.find(_LIBRARY)
        if node is None or not isinstance(node.value, str) or "/" not in node.value:
            return  # a bare name is looked up by the loader of the machine that runs it
        if not any(is_there(folder / node.value) for folder in (document.path.parent, Path())):
            text = f"{quote(node.value)} is not on this machine"
            cure = "nothing to do if it is on the device"
            yield find.note(node.at, _LIBRARY, "missing-library", text, cure)

    def _pointer(self, document: Document, find: Finder) -> Iterator[ConfigFinding]:
        node = document.root.find(_POINTER)
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        if _is_for_htp(document):
            return  # that was said, and the HTP's own file is not ours to judge
        try:
            found = locate(node.value, document.path)
        except Damaged as exc:
            cure = "put the file beside this one, or below its folder"
            yield find.error(node.at, _POINTER, "outside-folder", str(exc), cure)
            return
        if found is None:
            text = f"{quote(node.value)} is neither beside this file nor in the current folder"
            cure = "correct the path, or write the pair anew with qnnmem config"
            yield find.error(node.at, _POINTER, "missing-file", text, cure)
            return
        if found.in_place_of:
            text = f"{quote(node.value)} is not on this machine"
            cure = "the file of that name beside this one is checked instead"
            yield find.note(node.at, _POINTER, "other-place", text, cure)
        yield from self._pointed(document, found, find)

    def _pointed(self, document: Document, found: Located, find: Finder) -> Iterator[ConfigFinding]:
        node = document.root.find(_POINTER)
        pointed = self.check(found.path, document.path)
        if pointed is not None and pointed[1] is FileKind.LPAI:
            yield from check_pair(document, pointed[0].root, find)
        elif node is not None and (pointed is not None or _same(found.path, document.path)):
            kind = FileKind.TOOL if pointed is None else pointed[1]
            what = "of unknown kind" if kind is FileKind.UNKNOWN else f"a {kind.value}"
            text = f"{quote(str(node.value))} is {what}, and an LPAI file is wanted"
            cure = "name the file that holds lpai_backend and lpai_graph"
            yield find.error(node.at, _POINTER, "wrong-file", text, cure)


def _is_for_htp(tool: Document) -> bool:
    library = tool.root.find(_LIBRARY)
    return library is not None and is_htp_library(str(library.value))


def _rank(finding: ConfigFinding) -> tuple[int, int, int]:
    """Order within a file: as they stand in it, then what concerns the whole file."""
    return (finding.line or 1 << 30, finding.column or 0, _ORDER.index(finding.severity))


def _identity(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL byte
        return path


def _same(one: Path, other: Path) -> bool:
    return _identity(one) == _identity(other)
