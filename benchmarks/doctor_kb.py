"""A generated knowledge base of any size, equivalent regular expressions, and sample lines.

    python benchmarks/doctor_kb.py FOLDER --templates 300    entries as Markdown, one per file

Three templates in four have holes for names, numbers and codes, like the messages of real runtimes.
The expressions are the simplest equivalents, so that a search tool is not at a disadvantage.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINES = 5  # templates of one entry: a failure is a chain of this many lines

_PARTS = (
    *("htp session", "dsp channel", "skel loader", "graph builder", "context reader"),
    *("tensor mapper", "vtcm planner", "weight store", "rpc endpoint", "queue driver"),
    *("power broker", "shared heap", "spill planner", "node checker", "profile writer"),
    "signal table",
)
_THINGS = (
    *("mapping of the constant segment", "scratch arena", "descriptor block", "input ring"),
    *("weight page table", "fill buffer", "handle of the unsigned domain", "import list"),
    *("op package table", "resume record", "binary section", "buffer pair", "lookup cache"),
    *("kernel stub", "memory group", "version stamp", "packet queue", "worker stack"),
    *("schedule blob", "parcel header"),
)
_FAULTS = (
    *("could not be reserved", "was refused by the other side", "came back empty"),
    *("is out of its range", "has no room left", "did not answer", "broke off early"),
    *("cannot be attached", "lost its owner", "does not match the header"),
    *("was torn down too soon", "failed its own check"),
)
_CAUSES = (
    *("mem_dsp_va", "mem_map_layer", "mem_vtcm", "skel_missing", "signing", "session_limit"),
    *("soc_mismatch", "version_mismatch", "timeout", "op_unsupported", "buffer_misuse"),
)
_STAGES = ("init", "graph", "context", "memreg", "execute")

# Regular expressions for the holes of a template, by type.
_NUMBER, _DECIMAL = r"-?(?:0x[0-9a-f]+|[0-9]+)", r"[0-9]+(?:\.[0-9]+)?"
_HOLES = {
    **{"word": r"\S+", "text": ".*", "int": _NUMBER, "code": _NUMBER, "bytes": r"[0-9,]+"},
    **dict.fromkeys(("level", "added"), r"[0-9,]+"),
    **{"KB": _DECIMAL, "MB": _DECIMAL, "GB": _DECIMAL},
}
_PIECE = re.compile(r"\{([^{}]*)\}|\(([^()]*)\)|\\(.)|([^{}()\\]+)")


class Family(NamedTuple):
    """Kind of failure: an entry of the knowledge base and the lines it prints."""

    id: str
    stage: str
    cause: str
    texts: tuple[str, ...]  # templates, in print order


def families(templates: int, seed: int = 5) -> tuple[Family, ...]:
    """Return kinds of failure with this many templates; the first kinds are always the same."""
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
    words = [(p, t, f) for p in _PARTS for t in _THINGS for f in _FAULTS]
    rng.shuffle(words)
    found = []
    for number in range(templates // LINES):
        chosen = words[number * LINES : (number + 1) * LINES]
        texts = tuple(_text(kind, *one) for kind, one in enumerate(chosen, number))
        cause, stage = _CAUSES[number % len(_CAUSES)], _STAGES[number % len(_STAGES)]
        found.append(Family(f"bench-{number:03}", stage, cause, texts))
    return tuple(found)


def _text(kind: int, part: str, thing: str, fault: str) -> str:
    return (
        f"{part}: {thing} {fault}",
        f"{part}: {thing} {fault}: needs {{needed:bytes}} bytes, {{limit:bytes}} bytes left",
        f"{thing} of {part} {fault} for {{name}}, code {{code:code}}",
        f"[{part}] {thing} fd {{fd:int}} {fault} with err {{code:code}}",
    )[kind % 4]


def expression(text: str) -> str:
    """Return the simplest regular expression that is equivalent to a template."""
    return "".join(_piece(*found) for found in _PIECE.findall(text))


def _piece(hole: str, choice: str, escaped: str, plain: str) -> str:
    if escaped or plain:
        return _literal(escaped or plain)
    if choice:
        return f"(?:{'|'.join(map(_literal, choice.split('|')))})"
    name, _, kind = hole.partition(":")
    return ".*" if hole == "*" else _HOLES[kind or "word"] if name else r"\S*"


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")


def sample(text: str, rng: random.Random) -> str:
    """Return a line that the template matches."""
    limit = rng.randrange(1 << 20, 1 << 31)
    values = {
        "{code:code}": rng.choice(("1002", "0x3ea", "5005", "14001", "0x80000406")),
        "{needed:bytes}": str(limit + rng.randrange(1, 1 << 30)),
        "{limit:bytes}": str(limit),
        "{fd:int}": str(rng.randrange(3, 900)),
        "{name}": f"layer_{rng.randrange(200)}",
    }
    return re.sub(r"\{[^}]*\}", lambda hole: values[hole[0]], text)


def look_alike(text: str) -> str | None:
    """Return a harmless line with the longest fixed text of a template; None without holes."""
    head, hole, _ = text.partition("{")
    return f"{head}nothing to report, checked again" if hole and len(head) > 24 else None


def write_base(folder: Path, kinds: tuple[Family, ...]) -> None:
    """Write the entries, each into a separate file."""
    folder.mkdir(parents=True, exist_ok=True)
    for family in kinds:
        (folder / f"{family.id}.md").write_text("\n".join(_entry(family)), encoding="utf-8")


def _entry(family: Family) -> Iterator[str]:
    yield "+++"
    yield f'id = "{family.id}"'
    yield f'title = "A failure of the benchmark, number {family.id[6:]}"'
    yield f'cause = "{family.cause}"'
    yield f'stage = "{family.stage}"'
    yield 'remedies = ["None: it is made up"]'
    for number, text in enumerate(family.texts):
        yield f'[[line]]\nsign = "{family.id}-{number}"\ntext = "{text}"'
    yield f'[[when]]\nsign = "{family.id}-0"\n+++'
    yield "## Typical Logs\n"
    yield from (f"    {text}" for text in family.texts)
    yield "\n## Root Cause\n\nMade up.\n\n## Solutions\n\nNone.\n"


def main() -> int:
    """Write a knowledge base and print its folder; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--templates", type=int, default=300)
    given = parser.parse_args()
    write_base(given.folder, families(given.templates))
    print(f"Wrote {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
