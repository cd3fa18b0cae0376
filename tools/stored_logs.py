"""Store excerpts of real logs in the knowledge base: real output of the HTP library and LPAI.

    qnnmem provoke graph-limit --soc SM8750 -o provoked      (and the other kinds)
    python tools/stored_logs.py failures provoked            replaces the records `htp-*`
    python tools/stored_logs.py lpai                         provokes and replaces `lpai-*`
    python tools/stored_logs.py failed op-unsupported LOG "qnnmem prepare ..."
    python tools/stored_logs.py healthy NAME LOG "qnnmem prepare ..."
    python tools/stored_logs.py expect                       records the entries that match
    python tools/stored_logs.py documented                   marks entries without a stored log

Records made by hand, from failures that users reported in public, are not changed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "src" / "qnnmem" / "doctor" / "kb" / "stored_logs"
CASES, HEALTHY = LOGS / "cases.jsonl", LOGS / "healthy.jsonl"

# By kind of failure: stage, cause, whether memory is short, and the verdict that the lines support.
KINDS = {
    "graph-limit": ("graph", "mem_graph_limit", True, "cause"),
    "op-over-vtcm": ("graph", "mem_vtcm", True, "cause"),
    "pd-full": ("context", "mem_dsp_va", True, "cause"),
    "host-memory": ("graph", "mem_system_ram", True, "cause"),
    # No cause in the fixed list fits a damaged file; only `memory is not short` is certain.
    "bad-binary": ("context", "version_mismatch", False, "memory_only"),
    "op-unsupported": ("graph", "op_unsupported", False, "cause"),
    "no-fallback": ("graph", "op_unsupported", False, "memory_only"),
    "not-registered": ("init", "skel_missing", False, "memory_only"),
    "no-backend": ("init", "skel_missing", False, "memory_only"),
    "wrong-library": ("init", "version_mismatch", False, "memory_only"),
    "bad-device": ("init", "soc_mismatch", False, "memory_only"),
    "ddr-pool": ("graph", "mem_graph_limit", True, "cause"),
    "host-threads": ("graph", "mem_system_ram", True, "memory_only"),
}
PROVOKED = ("graph-limit", "op-over-vtcm", "pd-full", "host-memory", "bad-binary")
SOCS = ("SM8350", "SM8750", "SA8797")  # 2 GiB and 3.5 GiB limits, 4 MiB and 8 MiB of VTCM

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FAULT = re.compile(
    r"<E>|ERROR|\[E:|bad_alloc|QnnGraph_finalize done|[cC]reateFromBinary (?:done|started)"
    r"|chosen for context|PD0 exhausted|estimated PD size requirement|unable to tile"
    r"|memory_alloc_limit|terminate called|Specified provider|Fail: |Session successfully"
)
_SCARY = re.compile(
    r"<E>|<W>|ERROR|WARNING|\[[EW]:|[Ff]ail|[Uu]nable|not (?:found|available|support|loaded|init)"
    r"|unsupported|exception|error|mem_|alloc|spill|_bytes=|VTCM|TCM|QnnGraph_finalize|QnnContext_"
    r"|QnnDevice_|QnnBackend_|Starting stage|Completed stage|chosen for context|PD size|SSR|build v"
    r"|Session successfully|All nodes placed|LogNodeSupport"
)
# ONNX Runtime's last lines about a session only repeat the lines above them.
_SPOKEN_OF = re.compile(r"session contains graph nodes")
_MAX_LINE = 400
_MAX_LINES = 80
_RARELY = 200
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[0-9]+|q::[\w.]+|\[[^]]*\]", re.IGNORECASE)
_DULL = re.compile(
    r"EPContext encryption|Option: (?!memory_alloc_limit|vtcm)|type=QNN_|name=\S+ id=|Tensor"
)
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+(?=[\w.+-]+)")


def failures(folder: Path) -> None:
    """Replace the records of provoked HTP failures by those of a folder."""
    for kind in PROVOKED:
        for soc in SOCS:
            record = json.loads((folder / f"{kind}-{soc}.json").read_text("utf-8"))
            source = f"qnnmem provoke {kind} --soc {soc}, {record['library']}"
            numbers = {"needed_bytes": record["need"], "limit_bytes": record["limit"]}
            failed(f"{kind}-{soc.lower()}", folder / f"{kind}-{soc}.log", source, numbers)


def lpai() -> None:
    """Provoke every failure of the LPAI runtime and store its lines."""
    sys.path.append(str(ROOT / "tests"))
    from lpai_failures import FAILURES, SOURCE, good_run, record

    from qnnmem.contract.leaks import separate

    kept = [one for one in read(CASES) if one["id"][:5] != "lpai-"]
    with separate():  # clients with mistakes free nothing
        write(CASES, [*kept, *map(record, FAILURES)])
    good = {"id": "lpai-net-run", "source": SOURCE, "how": "run", "lines": good_run()}
    write(HEALTHY, [*(one for one in read(HEALTHY) if one["id"][:5] != "lpai-"), good])


def failed(name: str, log: Path, source: str, numbers: Mapping[str, Any] | None = None) -> None:
    """Replace the record of one HTP failure; its name starts with the kind."""
    kind = next(kind for kind in KINDS if name.startswith(kind))
    stage, cause, memory, decidable = KINDS[kind]
    found = {
        "id": f"htp-{name}",
        "source": source,
        "framework": "onnxruntime-qnn",
        "how": "provoked",
        "stage": stage,
        "cause": cause,
        "is_memory": memory,
        "decidable": decidable,
        "entry": None,
        **(numbers or {}),
        "lines": around(_lines(log), _FAULT, 1)[-_MAX_LINES:],
    }
    replace(CASES, found)


def healthy(name: str, log: Path, source: str) -> None:
    """Replace a healthy record by the typical and the suspicious lines of a good run's log."""
    found = {"id": name, "source": source, "how": "run", "lines": _one_of_each(_lines(log))}
    replace(HEALTHY, found)


def replace(path: Path, record: dict[str, Any]) -> None:
    """Replace the record with the same name, or append the record."""
    records = read(path)
    names = [one["id"] for one in records]
    if record["id"] in names:
        records[names.index(record["id"])] = record
    else:
        records.append(record)
    write(path, records)


def expect() -> None:
    """Store with each failure the entry that matches it, if the entry is right."""
    from qnnmem.doctor.kb.check import judged
    from qnnmem.doctor.kb.knowledge import built_in

    records = read(CASES)
    for one in records:
        found = judged(built_in(), one["lines"])
        entry = None if found is None else found.entry
        right = (
            entry is not None
            and {
                "cause": entry.verdict == "cause" and entry.cause == one["cause"],
                "memory_only": entry.is_memory is one["is_memory"],
                "no": entry.verdict == "undecided",
            }[one["decidable"]]
        )
        one["entry"] = entry.id if right and entry is not None else None
    text = "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in records)
    CASES.write_text(text, "utf-8")


def documented() -> None:
    """Write `documented = true` into exactly those entries that match no stored log."""
    from qnnmem.doctor.kb.check import spoken
    from qnnmem.doctor.kb.knowledge import BUILT_IN, Knowledge, pack, read_folder

    heard = spoken(Knowledge(pack(*read_folder(BUILT_IN))))
    for path in sorted(Path(BUILT_IN).glob("*.md")):
        text = path.read_text("utf-8").replace("documented = true\n", "", 1)
        if path.stem not in heard:
            text = re.sub(
                r'^(stage = "\w+"\n)', r"\1documented = true\n", text, count=1, flags=re.M
            )
        path.write_text(text, "utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; empty if the file does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one record per line; a case keeps its expected entry when its excerpt changes."""
    expected = {one["id"]: one.get("entry") for one in read(path)}
    for one in records:
        if "entry" in one and one["entry"] is None:
            one["entry"] = expected.get(one["id"])
    texts = (json.dumps(one, ensure_ascii=False) for one in records)
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")


def around(lines: Sequence[str], pattern: re.Pattern[str], near: int) -> list[str]:
    """Return the lines that match, and `near` lines before and after each."""
    hits = [at for at, line in enumerate(lines) if pattern.search(line)]
    chosen = {at + step for at in hits for step in range(-near, near + 1)}
    return [lines[at] for at in sorted(chosen) if 0 <= at < len(lines)]


def _one_of_each(lines: Sequence[str]) -> list[str]:
    """Return the first suspicious line of each shape, and some other lines, in order."""
    seen: set[str] = set()
    chosen = []
    for number, line in enumerate(lines):
        shape = _NUMBERS.sub("0", line.partition("] ")[2] or line)
        if _DULL.search(line) or shape in seen:
            continue
        if _SCARY.search(line) or number % _RARELY == 0:
            seen.add(shape)
            chosen.append(line)
    return chosen


def _lines(log: Path) -> list[str]:
    text = log.read_text("utf-8", "replace")
    # Folder names describe a machine, not a failure.
    plain = (
        _PATH.sub("", _COLOUR.sub("", line)).rstrip()[:_MAX_LINE] for line in text.splitlines()
    )
    return [line for line in plain if line and not _SPOKEN_OF.search(line)]


def main(words: Sequence[str]) -> None:
    """Run the command of the command line."""
    if words[0] == "failures":
        failures(Path(words[1]))
    elif words[0] in ("expect", "documented", "lpai"):
        {"expect": expect, "documented": documented, "lpai": lpai}[words[0]]()
    else:
        store = {"failed": failed, "healthy": healthy}[words[0]]
        store(words[1], Path(words[2]), words[3])


if __name__ == "__main__":
    main(sys.argv[1:])
