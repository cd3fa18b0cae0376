"""The JSON of every verb fits its schema, and no field of 0.1.0 is missing.

`json_0_1_0/cases.json` lists commands; the files beside it hold the output of version 0.1.0, which
`tools/record_json.py` recorded.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import jsonschema
import pytest

from qnnmem.htp.library import has_library
from qnnmem.results.schema import load_schema, schema_names

FOLDER = Path(__file__).parent / "json_0_1_0"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text("utf-8"))
RECORDED = [case for case in CASES if case["exit_code"] is not None]
DESK = [case for case in RECORDED if not case["needs_htp_library"]]
LIBRARY = [case for case in RECORDED if case["needs_htp_library"]]
# Later schemas; `cli/test_forms.py` covers their output, `fix/test_chain.py` the chain's manifest.
NEW = {
    "qnnmem.validate/1",
    "qnnmem.inspect-dlc/1",
    "qnnmem.llm/1",
    *(
        "qnnmem.baseline/1",
        "qnnmem.carrier/1",
        "qnnmem.chain/1",
        "qnnmem.check/1",
        "qnnmem.check-client/1",
        "qnnmem.diff/1",
        "qnnmem.error/1",
        "qnnmem.fail-each/1",
        "qnnmem.fits/1",
        "qnnmem.fix/1",
        "qnnmem.fix-recipe/1",
        "qnnmem.fixes/1",
        "qnnmem.host/1",
        "qnnmem.inspect-dlc/1",
    ),
    *("qnnmem.plans/1", "qnnmem.prepared/1", "qnnmem.together/1", "qnnmem.watch/1"),
    "qnnmem.written/1",
}
# Fields of the doctor that depend on the size and content of its knowledge base.
LEARNED = frozenset(
    ("evidence", "similar", "candidates", "remedies", "is_memory", "verdict", "notes", "entries")
) | {"templates", "documented", "lines", "groups", "cases", "collect_next", "last_line"}
UNDECIDED, DECIDED = 3, 1  # exit codes of the doctor; newer knowledge may decide an old case
# Counts of cases, which may grow.
GROWN = {"keeping", "breaking"}
# Keys that identify an item of a list, whatever its position.
NAMES = ("id", "rule")
# Corrected values: the library compiles floats for SM8350, under both of its names.
MENDED = {
    f".socs[{at}].fp16 is True, was False"
    for case in ("socs", "socs-all")
    for at, soc in enumerate(json.loads((FOLDER / f"{case}.json").read_text("utf-8"))["socs"])
    if soc["model_id"] == 30
}
# Corrected values: VTCM counted twice for two graphs, and the process domain covered one.
_MIB_8, _ONE, _BOTH = 8 << 20, 12_743_906, 25_422_276
MENDED |= {
    *(f".{of}.bytes is {_MIB_8}, was {2 * _MIB_8}" for of in ("parts.VTCM", "vtcm_stored")),
    f".total.bytes is 14643584, was {14_643_584 + _MIB_8}",
    f".process_domain.low.bytes is {_BOTH}, was {_ONE}",
    *(f".socs[{at}].checks[1].need_low.bytes is {_BOTH}, was {_ONE}" for at in range(82)),
    f".contexts[1].need_low.value is {_BOTH}, was {_ONE}",
}
# Corrected values: a file that states 4 MiB of VTCM reserves less than the old minimum.
_STORED, _LEAST, _ASSUMED = 4 << 20, 6_312_889, 10_507_193
MENDED |= {
    f".process_domain.low.bytes is {_LEAST}, was {_ASSUMED}",
    f".graphs[0].process_domain.low.bytes is {_LEAST}, was {_ASSUMED}",
    f".socs[0].checks[1].need_low.bytes is {_LEAST}, was {_ASSUMED}",
    f".socs[0].checks[2].need_low.bytes is {_STORED}, was {_MIB_8}",
}
# Values that differ in every run or name the program version.
VOLATILE = {"seconds", "copy_seconds", "copy_time", "host_ram", "peak_rss", "tool", "version"}


def run(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[int, str]:
    """Return the exit code and the JSON of a case, run with its own cache."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "made").mkdir()
    words = [str(folder / word) if word.startswith("made") else word for word in case["argv"]]
    if "stdin" in case:  # a real pipe: a live log is read from its descriptor
        command = [sys.executable, "-m", "qnnmem", *words]
        with (FOLDER / case["stdin"]).open("rb") as source:
            done = subprocess.run(command, stdin=source, capture_output=True, check=False)
        return done.returncode, done.stdout.decode("utf-8")
    for _ in range(case.get("runs", 1) - 1):  # the first run fills the cache
        command_line.run(*words)
    result = command_line.run(*words)
    assert result.exception is None, result.exception
    text = (folder / case["writes"]).read_text("utf-8") if "writes" in case else result.stdout
    return result.return_value or 0, text


def lost(
    old: Any, new: Any, where: str = "", learned: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield every field that is gone or has another type or number."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - VOLATILE:
            if key in GROWN and key in new:
                yield from () if new[key] >= old[key] else (f"{where}.{key} is less",)
            elif key in learned and key in new:
                yield from _lost_of_learned(old[key], new[key], f"{where}.{key}")
            elif key in new:
                yield from lost(old[key], new[key], f"{where}.{key}", learned)
            else:
                yield f"{where}.{key} is gone"
    elif name := _name_of_items(old, new):
        found = {item[name]: item for item in new}
        for item in old:
            now = found.get(item[name].replace("ise-", "ize-"))  # the spelling has changed since
            yield from lost(item, now, f"{where}[{item[name]}]", learned)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where} has {len(new)} entries, had {len(old)}"
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from lost(one, other, f"{where}[{at}]", learned)
    elif isinstance(old, str) and isinstance(new, str):
        return  # wording may improve
    elif isinstance(old, float) and isinstance(new, int | float):
        if not math.isclose(old, new, rel_tol=1e-6):
            yield f"{where} is {new}, was {old}"
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{where} is {new!r}, was {old!r}"


def _name_of_items(old: Any, new: Any) -> str:
    """Return the key that identifies the items of both lists; new items are accepted."""
    if not (isinstance(old, list) and isinstance(new, list) and old and new):
        return ""
    items = [*old, *new]
    if not all(isinstance(item, dict) for item in items):
        return ""
    named = (name for name in NAMES if all(isinstance(item.get(name), str) for item in items))
    return next(named, "")


def _lost_of_learned(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yield the fields that are gone from values that depend on the growing knowledge base."""
    if isinstance(old, list) and old and isinstance(old[0], dict):
        gone = old[0].keys() - new[0].keys() if new else old[0].keys()
        yield from (f"{where}[0].{key} is gone" for key in sorted(gone))
    elif isinstance(old, list) != isinstance(new, list):
        yield f"{where} is {new!r}, was {old!r}"


def check(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compare a case with its record and its schema."""
    code, text = run(case, monkeypatch, tmp_path)
    values = json.loads(text)
    old = json.loads((FOLDER / f"{case['name']}.json").read_text("utf-8"))
    learned = LEARNED if case["argv"][0] in ("doctor", "kb") else frozenset()
    assert [one for one in lost(old, values, learned=learned) if one not in MENDED] == []
    decided_since = learned and case["exit_code"] == UNDECIDED and code == DECIDED
    assert decided_since or code == case["exit_code"]
    if case["schema"] is not None:
        named = values.get("schema") or values["qnnmem"]["schema"]
        assert named == case["schema"]
        jsonschema.Draft202012Validator(load_schema(named)).validate(values)


@pytest.mark.parametrize("case", DESK, ids=lambda case: case["name"])
def test_json_is_valid_and_complete(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The JSON of each verb fits its schema and has every field and number of 0.1.0."""
    check(case, monkeypatch, tmp_path)


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the QNN library is not installed")
@pytest.mark.parametrize("case", LIBRARY, ids=lambda case: case["name"])
def test_json_of_the_library_is_valid_and_complete(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the library, the JSON fits its schema and has every field and number of 0.1.0."""
    check(case, monkeypatch, tmp_path)


def test_every_schema_is_sound_and_used() -> None:
    """Every schema is valid and describes the output of some verb."""
    for name in schema_names():
        jsonschema.Draft202012Validator.check_schema(load_schema(name))
    recorded = {case["schema"] for case in RECORDED} - {None}
    assert set(schema_names()) == recorded | NEW


def test_a_lost_field_would_be_noticed() -> None:
    """A lost field, a changed type or number is found; a new field is accepted."""
    old = {"a": {"b": 1, "c": [1, 2]}, "d": True, "e": None, "seconds": 1.0}
    assert list(lost(old, {"a": {"b": 1, "c": [1, 2], "x": 0}, "d": True, "e": None})) == []
    knew = {"entries": [{"a": 1}], "x": 1}
    assert list(lost(knew, {"entries": [{"a": 2}, {}], "x": 1}, learned=LEARNED)) == []
    assert list(lost(knew, {"entries": [{}], "x": 2}, learned=LEARNED)) != []
    rules = {"rules": [{"id": "R1", "keeping": 2}, {"id": "R2", "keeping": 1}]}
    more = {"rules": [{"id": "R0", "keeping": 1}, {"id": "R1", "keeping": 3}]}
    assert len(list(lost(rules, more))) == 1  # R2 is gone
    assert len(list(lost(more, rules))) == 2  # R0 is gone too, and R1 has fewer cases
    found = list(lost(old, {"a": {"c": [1]}, "d": 1, "e": 0}))
    assert len(found) == 4, found
