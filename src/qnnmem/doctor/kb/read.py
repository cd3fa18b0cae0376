"""Read entries from files: Markdown with TOML front matter, or plain notes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qnnmem.doctor.kb import template
from qnnmem.doctor.kb.entry import (
    CAUSES,
    CONFIDENCES,
    READS,
    STAGES,
    VERDICTS,
    Condition,
    Entry,
    Line,
    When,
)
from qnnmem.errors import UsageError
from qnnmem.text import lazy_pattern, quote, sentence

HEADINGS = ("Typical Logs", "Root Cause", "Solutions")

_FENCE = "+++"
_ID = lazy_pattern(r"[a-z0-9][a-z0-9-]{0,63}")
_TEST = lazy_pattern(
    r"(?:([a-z0-9-]+)\.)?([a-z][a-z0-9_]*)\s*(>=|<=|==|!=|<|>)\s*"
    r"((?:0x[0-9a-fA-F]+|[0-9][0-9_]*(?:\.[0-9]+)?)(?:\s*\|\s*(?:0x[0-9a-fA-F]+|[0-9][0-9_]*))*)"
    r"\s*(KB|MB|GB)?"
)
_KEPT = 512  # built-in files, which a process may request repeatedly; a team's files may be large
_MAX_VALUE = 1 << 63
_MAX_PLAIN = 300  # characters of a typical line that count
_SCALE = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_KEYS = {
    *("id", "title", "cause", "stage", "verdict", "confidence", "stage_from_call", "over"),
    *("explains", "candidates", "remedies", "collect", "sources", "documented", "line", "when"),
    *("pool_bytes", "meaning"),
}
_LINE_KEYS = {"sign", "text", "call", "opens", "reads"}
_WHEN_KEYS = {"sign", "where", "needs", "after", "unless", "confidence"}


def read_file(
    data: bytes, name: str, own: bool = False
) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    """Return the line templates and entries in a file; raise UsageError for malformed content."""
    return _read_file(data, name, own) if own else _kept_file(data, name)


@functools.lru_cache(maxsize=_KEPT)
def _kept_file(data: bytes, name: str) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    return _read_file(data, name, own=False)


def _read_file(data: bytes, name: str, own: bool) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    try:
        text = data.decode("utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
        if name.endswith(".toml"):
            return read_lines(text, name), ()
        return (), read_entries(text, name, own)
    except UnicodeDecodeError as exc:
        raise UsageError(f"{name}: not UTF-8 text") from exc
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        raise UsageError(f"{name}: not an entry: {sentence(exc)}") from exc
    except RecursionError as exc:
        raise UsageError(f"{name}: nested too deeply") from exc


def read_entries(text: str, name: str, own: bool = False) -> tuple[Entry, ...]:
    """Return the entries in a file: one if the file has front matter, else one or more."""
    text = text.replace("\r\n", "\n")
    if text.startswith(_FENCE + "\n"):
        return (_formal(text, name, own),)
    found = tuple(_plain(text, name, own))
    if not found:
        raise UsageError(
            f"{name}: neither front matter between lines of {_FENCE} nor a '## title' with "
            "'### Typical Logs' below it"
        )
    return found


def read_lines(text: str, name: str) -> tuple[Line, ...]:
    """Return line templates without a diagnosis from a TOML file with `[[line]]` tables."""
    table = _toml(text, name)
    _known(table, {"line"}, name)
    return _lines(_tables(table, "line", name), name)


def _formal(text: str, name: str, own: bool) -> Entry:
    head, found, body = text[len(_FENCE) + 1 :].partition(f"\n{_FENCE}\n")
    if not found:
        raise UsageError(f"{name}: the front matter is not closed by a line of {_FENCE}")
    table = _toml(head, name)
    _known(table, _KEYS, name)
    missing = [heading for heading in HEADINGS if f"## {heading}\n" not in body + "\n"]
    if missing:
        raise UsageError(f"{name}: the heading '## {missing[0]}' is missing")
    entry = Entry(
        id=_match(_ID, _word(table, "id", name), name),
        title=_word(table, "title", name),
        cause=_one_of(table, "cause", CAUSES, name),
        stage=_one_of(table, "stage", STAGES, name),
        whens=tuple(_when(row, name) for row in _tables(table, "when", name)),
        lines=_lines(_tables(table, "line", name), name),
        verdict=_one_of(table, "verdict", VERDICTS, name, "cause"),
        confidence=_one_of(table, "confidence", CONFIDENCES, name, "high"),
        stage_from_call=_flag(table, "stage_from_call", name),
        over=_words(table, "over", name),
        explains=_signs(_words(table, "explains", name), name),
        candidates=_candidates(candidates := table.get("candidates", []), name),
        words=tuple((row[0], row[2]) for row in candidates if len(row) > 2),
        remedies=_words(table, "remedies", name),
        collect=_words(table, "collect", name),
        sources=_words(table, "sources", name),
        body=body.strip() + "\n",
        own=own,
        pool_bytes=_size(table, "pool_bytes", name),
        meaning=_word(table, "meaning", name) if "meaning" in table else "",
        documented=_flag(table, "documented", name),
    )
    if not entry.whens:
        raise UsageError(f"{name}: without a [[when]] the entry can never match")
    return entry


def _toml(text: str, name: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as exc:  # TOMLDecodeError, or a number with thousands of digits
        raise UsageError(f"{name}: not TOML: {sentence(exc)}") from exc


def _lines(rows: list[Any], name: str) -> tuple[Line, ...]:
    lines = []
    for row in rows:
        _known(row, _LINE_KEYS, name)
        reads = _one_of(row, "reads", (*READS, ""), name, "")
        text = "" if reads else _word(row, "text", name)
        if text:
            _parse(text, name)
        call = _one_of(row, "call", (*STAGES, ""), name, "")
        sign = _match(_ID, _word(row, "sign", name), name)
        opens = _flag(row, "opens", name, default=True)
        lines.append(Line(sign, text, call, opens, reads))
    return tuple(lines)


def _parse(text: str, name: str) -> template.Template:
    try:
        return template.parse(text)
    except UsageError as exc:
        raise UsageError(f"{name}: {exc}") from exc


def _when(row: Mapping[str, Any], name: str) -> When:
    _known(row, _WHEN_KEYS, name)
    signs = row.get("sign")
    if isinstance(signs, str):
        row = {**row, "sign": signs.split("|")}
    if not row.get("sign"):
        raise UsageError(f"{name}: a [[when]] without a sign can never match")
    return When(
        signs=_signs(_words(row, "sign", name), name),
        where=tuple(_test(text, name) for text in _words(row, "where", name)),
        needs=tuple(_signs(text.split("|"), name) for text in _words(row, "needs", name)),
        after=tuple(_signs(text.split("|"), name) for text in _words(row, "after", name)),
        unless=_signs(_words(row, "unless", name), name),
        confidence=_one_of(row, "confidence", ("", *CONFIDENCES), name, ""),
    )


def _signs(names: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(_match(_ID, sign, name) for sign in names)


def _test(text: str, name: str) -> Condition:
    match = _TEST.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{name}: {quote(text)} is not a condition such as 'needed >= 2.5 GB'")
    scale = _SCALE[match[5] or ""]
    try:
        values = tuple(_value(part.strip(), scale) for part in match[4].split("|"))
    except OverflowError as exc:
        raise UsageError(f"{name}: {quote(text)} compares with a number above 2^63") from exc
    return Condition(match[1] or "", match[2], match[3], values)


def _value(text: str, scale: int) -> int:
    # round(inf) raises OverflowError.
    hexadecimal = text.startswith("0x")
    value = int(text, 16) if hexadecimal else round(float(text.replace("_", "")) * scale)
    if value >= _MAX_VALUE:
        raise OverflowError
    return value


def _candidates(rows: object, name: str) -> tuple[tuple[str, float], ...]:
    good = isinstance(rows, list) and all(
        isinstance(row, list)
        and len(row) in (2, 3)
        and all(isinstance(word, str) for word in (row[0], *row[2:]))
        and row[0] in CAUSES
        and type(row[1]) in (int, float)
        and 0 < row[1] <= 1
        for row in rows
    )
    if not good:
        shape = "[[cause, score above 0 and up to 1], ...]; a description can follow each score"
        raise UsageError(f"{name}: candidates must be written as {shape}")
    assert isinstance(rows, list)  # noqa: S101 - for the type checker
    return tuple((row[0], float(row[1])) for row in rows)


def _plain(text: str, name: str, own: bool) -> Iterable[Entry]:
    """Yield entries from notes: a heading `## title`, then typical lines, cause and solution."""
    for number, part in enumerate(re.split(r"^## +", text, flags=re.MULTILINE)[1:], 1):
        title, _, rest = part.partition("\n")
        sections = dict(_sections(rest))
        typical = list(_items(sections.get("typical logs", "")))
        if not typical:
            continue
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48] or f"note-{number}"
        words = f"{title} {sections.get('root cause', '')} {' '.join(typical)}".lower()
        cause = "mem_unknown" if "memory" in words or "alloc" in words else "unknown"
        lines = tuple(
            Line(f"{slug}-{k}", _literal_start(line)) for k, line in enumerate(typical, 1)
        )
        for line in lines:
            _parse(line.text, name)
        yield Entry(
            id=slug,
            title=title.strip(),
            cause=cause,
            stage=_guess_stage(f"{title} {' '.join(typical)}".lower()),
            whens=tuple(When((line.sign,)) for line in lines),
            lines=lines,
            confidence="medium",
            verdict="memory" if cause == "mem_unknown" else "cause",
            remedies=tuple(_items(sections.get("solutions", ""))),
            sources=(name,),
            body=rest.strip() + "\n",
            own=own,
            typical=len(lines),
        )


def _literal_start(line: str) -> str:
    """Return a line's literal template, cut at the maximum length but not inside an escape."""
    text = template.literal(line)[:_MAX_PLAIN]
    odd = (len(text) - len(text.rstrip("\\"))) % 2
    return text[:-1] if odd else text


def _sections(text: str) -> Iterable[tuple[str, str]]:
    for part in re.split(r"^### +", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        yield heading.strip().lower(), rest


def _items(text: str) -> Iterable[str]:
    """Yield the lines of a list or of a code block, without list markers."""
    for line in text.splitlines():
        bare = re.sub(r"^\s*(?:[-*+]|[0-9]+[.)])\s+", "", line).strip().strip("`").strip()
        if len(bare) >= 6:
            yield bare


def _guess_stage(words: str) -> str:
    for stage, marks in (
        ("execute", ("infer", "execut")),
        ("graph", ("graph", "finalize", "prepare", "compile")),
        ("context", ("context", "binary")),
        ("memreg", ("register", "memhandle", "rpcmem")),
    ):
        if any(mark in words for mark in marks):
            return stage
    return "init"


def _known(table: Mapping[str, Any], keys: set[str], name: str) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{name}: a table is expected, not {quote(table)}")
    if extra := sorted(set(table) - keys):
        raise UsageError(
            f"{name}: unknown key {quote(extra[0])}; known keys: {', '.join(sorted(keys))}"
        )


def _tables(table: Mapping[str, Any], key: str, name: str) -> list[Any]:
    rows = table.get(key, [])
    if not isinstance(rows, list):
        raise UsageError(f"{name}: '{key}' must be written as [[{key}]] tables")
    return rows


def _flag(table: Mapping[str, Any], key: str, name: str, default: bool = False) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise UsageError(f"{name}: '{key}' must be true or false")
    return value


def _size(table: Mapping[str, Any], key: str, name: str) -> int:
    value = table.get(key, 0)
    if type(value) is not int or not 0 <= value < _MAX_VALUE:
        raise UsageError(f"{name}: '{key}' must be a number of bytes")
    return value


def _word(table: Mapping[str, Any], key: str, name: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name}: '{key}' is missing or not a text")
    return value


def _words(table: Mapping[str, Any], key: str, name: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{name}: '{key}' must be a list of texts")
    return tuple(value)


def _one_of(
    table: Mapping[str, Any], key: str, known: Iterable[str], name: str, default: str | None = None
) -> str:
    value = table.get(key, default)
    if value not in tuple(known):
        raise UsageError(f"{name}: '{key}' must be one of {', '.join(filter(None, known))}")
    return str(value)


def _match(pattern: re.Pattern[str], text: str, name: str) -> str:
    if not pattern.fullmatch(text):
        raise UsageError(
            f"{name}: {quote(text)} is not a name of lower-case letters, digits and dashes"
        )
    return text
