"""A memory plan as a C header: macros for pools, offsets and sizes, and assertions about them.

The header is plain C99 and C++17. Names of tensors become identifiers that no language reserves,
that differ in more than upper and lower case, and that are no longer than compilers must tell
apart; the comment beside each has the name as the file spells it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath

from qnnmem.errors import UsageError
from qnnmem.flags import with_flags
from qnnmem.ir.lifetime import stored_bytes
from qnnmem.planner import Io, MemoryPlan, PlacedBuffer, Pool
from qnnmem.report.planned import PlanReport
from qnnmem.report.sizes import size_column
from qnnmem.units import MAX_BYTES

# C99 tells identifiers apart by their first 63 characters.
_LONGEST = 63
_LONGEST_PREFIX = 20
_COMMENT = 160  # characters of a name in a comment
_TITLES = {
    Pool.SCRATCH: "scratch: free for other uses between two runs",
    Pool.PERSISTENT: "persistent: keep it untouched from run to run",
    Pool.IO: "IO: buffers of the application, one after the other",
}
_BYTES = {
    Pool.SCRATCH: "SCRATCH_BYTES",
    Pool.PERSISTENT: "PERSISTENT_BYTES",
    Pool.IO: "IO_BYTES",
    Pool.CONSTANTS: "CONSTANT_BYTES",
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one tensor lies."""

    tensor: str
    pool: Pool
    offset: int
    size: int  # of the tensor itself, without padding
    align: int
    steps: str
    role: str  # "input", "output", both, or nothing


def render_c(report: PlanReport) -> str:
    """The whole header."""
    prefix = c_prefix(report.input)
    body = "\n".join(_body(report, prefix))
    guard = f"QNNMEM_{prefix}_{sha256(body.encode()).hexdigest()[:8].upper()}_H"
    opening = [*_about(report), f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>"]
    return "\n".join([*opening, "", body, "", f"#endif /* {guard} */"]) + "\n"


def c_prefix(file: str) -> str:
    """What every name in the header begins with, from the name of the model's file."""
    words = _identifier(PurePath(file).stem.upper(), _LONGEST_PREFIX).upper()
    return words if words[:1].isalpha() else f"PLAN_{words}"[:_LONGEST_PREFIX].rstrip("_")


def c_names(names: Iterable[str], room: int) -> list[str]:
    """An identifier for each name, in order; no two are the same, whatever the case."""
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    found = []
    for name in names:
        base = _identifier(name, room) or "tensor"
        chosen, key = base, base.lower()
        while chosen.lower() in taken:
            numbers[key] = numbers.get(key, 1) + 1
            end = f"_{numbers[key]}"
            chosen = f"{base[: room - len(end)].rstrip('_')}{end}"
        taken.add(chosen.lower())
        found.append(chosen)
    return found


def _identifier(name: str, room: int) -> str:
    """Letters, digits and single underscores; of a long name both ends, which tell it apart."""
    # Two underscores in a row are for compilers alone, in C++ anywhere in a name.
    ends = name if len(name) <= 8 * room else f"{name[: 4 * room]}_{name[-4 * room :]}"
    spelled = "".join(c if c.isascii() else f"_u{ord(c):04X}_" for c in ends)
    return _both_ends(re.sub(r"[^A-Za-z0-9]+", "_", spelled).strip("_"), room)


def _both_ends(words: str, room: int) -> str:
    """The first and the last words, of which no part is left where a whole word fits."""
    if len(words) <= room:
        return words
    kept = room // 2
    last = words[-kept:]
    if words[-kept - 1] != "_":
        last = last.partition("_")[2] or last
    last = last.strip("_")
    left = room - len(last) - 1
    first = words[:left]
    if words[left] != "_":
        first = first.rpartition("_")[0] or first
    return f"{first.strip('_')}_{last}"


def _about(report: PlanReport) -> Iterator[str]:
    plan = report.plan
    yield f"/* Memory plan of {comment_text(report.input)}"
    for line in (*with_flags(plan.model.assumed).splitlines(), *plan.model.holds_for):
        yield f" * WARNING: {comment_text(line)}"
    yield f" * made by {comment_text(report.tool)}; made again rather than edited."
    yield " *"
    for pool, size in report.pools:
        proof = f", {plan.proof_words}" if pool is Pool.SCRATCH else ""
        yield f" * {pool.value:<11}{size_column(size, 15)}, computed{proof}"
    if report.given:
        yield f" * planned with {comment_text(' '.join(report.given))}"
    yield " *"
    yield " * Offsets count from the start of a pool, which has to be aligned, and hold while the"
    yield " * ops run in the order that was planned. A step is the number of an op; -1 is before"
    yield " * the first."
    yield " */"


def _body(report: PlanReport, prefix: str) -> Iterator[str]:
    plan = report.plan
    places = list(_places(plan))
    align = math.lcm(plan.align, *(place.align for place in places))
    if align > MAX_BYTES:
        raise UsageError("no start of scratch satisfies all alignments of this list in C")
    yield f"#define {prefix}_ALIGN_BYTES {_number(align)}"
    for pool, size in report.pools:
        yield f"#define {prefix}_{_BYTES[pool]} {_number(size)}"
    yield ""
    yield "#if " + " || ".join(f"{prefix}_{size} > SIZE_MAX" for size in _BYTES.values())
    yield '#error "this plan is for machines with more memory"'
    yield "#endif"
    yield ""
    yield from _assertion_macro(prefix)
    room = _LONGEST - len(f"{prefix}_SIZE_")
    named = list(zip(places, c_names((place.tensor for place in places), room), strict=True))
    for pool, title in _TITLES.items():
        inside = [(place, name) for place, name in named if place.pool is pool]
        if inside:
            yield ""
            yield f"/* {title} */"
        for place, name in inside:
            yield from _macros(place, prefix, name)
    pool = Pool.IO if plan.options.io is Io.OUTSIDE else Pool.SCRATCH
    there = {place.tensor: name for place, name in named if place.pool is pool}
    for kind, tensors in (("input", plan.model.inputs), ("output", plan.model.outputs)):
        yield from _in_order(kind, pool, [there[n] for n in tensors if n in there], prefix)


def _assertion_macro(prefix: str) -> Iterator[str]:
    """One that all compilers have: before C11 and C++11 an array type of no possible size."""
    name = f"{prefix}_ASSERT"
    modern = "__STDC_VERSION__ >= 201112L"
    yield "#if defined(__cplusplus) && __cplusplus >= 201103L"
    yield f"#define {name}(what, holds) static_assert((holds), #what)"
    yield f"#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && {modern}"
    yield f"#define {name}(what, holds) _Static_assert((holds), #what)"
    yield "#else"
    yield f"#define {name}(what, holds) typedef char {prefix}_##what[(holds) ? 1 : -1]"
    yield "#endif"
    at, size = f"{prefix}_AT_##name", f"{prefix}_SIZE_##name"
    # Pasted before it is handed on, so that no macro of the same name takes its place.
    yield f"#define {prefix}_PLACED(name, pool, align) \\"
    # Not `<=`: compilers warn where the one side is 0.
    yield f"    {name}(in_##name, {at} % (align) == 0 && 0ULL + {at} + {size} < 1ULL + (pool))"
    yield ""


def _macros(place: _Place, prefix: str, name: str) -> Iterator[str]:
    shown = "" if place.tensor == name else f", {comment_text(place.tensor)}"
    about = f"{place.role}{', ' if place.role else ''}{place.steps}{shown}"
    yield f"#define {prefix}_AT_{name} {_number(place.offset)} /* {about} */"
    yield f"#define {prefix}_SIZE_{name} {_number(place.size)}"
    pool = f"{prefix}_{_BYTES[place.pool]}"
    yield f"{prefix}_PLACED({name}, {pool}, {_number(place.align)});"


def _in_order(kind: str, pool: Pool, names: list[str], prefix: str) -> Iterator[str]:
    """Offsets and sizes of what the application writes or reads, for arrays of it."""
    if not names:  # C has no empty arrays
        return
    where = "IO" if pool is Pool.IO else pool.value
    upper = f"{prefix}_{kind.upper()}"
    yield ""
    yield f"/* {kind}s in {where}, in the order of the model */"
    yield f"#define {upper}_COUNT {_number(len(names))}"
    yield f"#define {upper}_OFFSETS {{ {_listed(f'{prefix}_AT_', names)} }}"
    yield f"#define {upper}_SIZES {{ {_listed(f'{prefix}_SIZE_', names)} }}"


def _listed(before: str, names: list[str]) -> str:
    return ", \\\n    ".join(f"{before}{name}" for name in names)


def _places(plan: MemoryPlan) -> Iterator[_Place]:
    inputs, outputs = set(plan.model.inputs), set(plan.model.outputs)
    listed = {buffer.name: buffer.align for buffer in plan.scratch.problem.buffers}
    for buffer in plan.buffers:
        align = listed[buffer.name] if buffer.pool is Pool.SCRATCH else plan.align
        steps = f"steps {buffer.live.lower} to {buffer.live.upper - 1}"
        for name in (buffer.name, *buffer.aliases):
            size = _tensor_bytes(plan, buffer, name)
            roles = [w for w, of in (("input", inputs), ("output", outputs)) if name in of]
            role = " and ".join(roles)
            yield _Place(name, buffer.pool, buffer.offset, size, align, steps, role)


def _tensor_bytes(plan: MemoryPlan, buffer: PlacedBuffer, name: str) -> int:
    tensor = plan.model.tensors.get(name)
    if tensor is None:  # of a list, or the work space of a control-flow op
        return buffer.size
    return min(stored_bytes(tensor, plan.options.bits), buffer.size)


def _number(value: int) -> str:
    return f"{value}U" if value < 1 << 32 else f"{value}ULL"


def comment_text(text: str) -> str:
    """Text that ends no comment, begins none, and is the same for every compiler."""
    shown = text if len(text) <= _COMMENT else f"{text[: _COMMENT // 2]}...{text[-_COMMENT // 2 :]}"
    plain = shown.encode("unicode_escape").decode("ascii")
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").rstrip("\\ ")
