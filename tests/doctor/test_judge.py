"""The judgement: which entry matches, and when none does."""

from __future__ import annotations

import msgspec

from qnnmem.doctor.judge import Judgement, SeenTemplate, judge
from qnnmem.doctor.kb.entry import Condition, Entry, Line, When
from qnnmem.doctor.kb.knowledge import Knowledge, pack

LINES = (
    Line("skel", "dynamic loading failed for {library}"),
    Line("pd", "no domain for size estimate {needed:bytes}", call="context"),
    Line("map", "memory map with length {length:bytes} failed"),
    Line("device", "device creation failed with {code:code}", call="init"),
    Line("fallback", "switched to the other path", opens=False),
    Line("context", "context failed with {code:code}", call="context"),
)


def entry(name: str, cause: str, *whens: When, **fields: object) -> Entry:
    """Return an entry with these fields."""
    values = {"title": name, "stage": "context", **fields}
    return Entry(id=name, cause=cause, whens=whens, **values)  # type: ignore[arg-type]


LARGE = Condition("", "needed", ">=", (2_000_000_000,))
ENTRIES = (
    entry(
        "full",
        "mem_dsp_va",
        When(("pd",), where=(Condition("", "needed", ">=", (2_000_000_000,)),)),
    ),
    entry("no-skel", "skel_missing", When(("skel",)), stage="init", stage_from_call=True),
    entry("mapping", "mem_dsp_va", When(("map",)), verdict="memory", confidence="medium"),
    entry("leak", "mem_leak", When(("device",), after=(("context",),)), stage="init"),
    entry(
        "bare",
        "unknown",
        When(("device", "context")),
        verdict="undecided",
        candidates=(("skel_missing", 0.5), ("mem_unknown", 0.2)),
        stage_from_call=True,
    ),
    entry(
        "other-path",
        "benign_noise",
        When(("fallback",)),
        explains=("skel", "device"),
        stage="init",
    ),
)
KNOWLEDGE = Knowledge(pack(LINES, ENTRIES))


def said(*signs: str | tuple[str, int]) -> Judgement:
    """Return the judgement about lines, given by their signs in order."""
    names = [line.sign for line in LINES]
    seen = []
    for sign in signs:
        name, value = sign if isinstance(sign, tuple) else (sign, 0)
        index = names.index(name)
        seen.append(SeenTemplate(index, 1, tuple([value] * len(KNOWLEDGE.holes[index]))))
    return judge(KNOWLEDGE, seen)


def spoken(judgement: Judgement) -> str | None:
    """Return the id of the matching entry."""
    return judgement.entry.id if judgement.entry else None


def test_the_first_deciding_line_speaks() -> None:
    """The first deciding line selects the entry."""
    assert spoken(said("skel", ("pd", 3_000_000_000))) == "no-skel"
    assert spoken(said(("pd", 3_000_000_000), "skel")) == "full"


def test_a_cause_beats_what_only_knows_that_memory_is_short() -> None:
    """An entry with a cause beats a memory-only entry, even if its line comes later."""
    assert spoken(said("map", ("pd", 3_000_000_000))) == "full"
    assert spoken(said("map", ("pd", 3_000))) == "mapping"


def test_numbers_in_lines_decide() -> None:
    """Below the entry's bound for a number, no entry matches."""
    judgement = said(("pd", 1_999_999_999))
    assert judgement.entry is None
    assert not judgement.healthy
    assert judgement.stage == "context"


def test_order_matters_where_an_entry_says_so() -> None:
    """An `after` condition matches only if its lines come first."""
    assert spoken(said("context", "device")) == "leak"
    assert spoken(said("device", "context")) == "bare"


def test_the_stage_is_that_of_the_outermost_call() -> None:
    """The stage is that of the last call in the chain."""
    assert said("skel").stage == "init"
    assert said("skel", ("pd", 5)).stage == "context"


def test_lines_of_a_healthy_run_are_no_incident() -> None:
    """Lines that a harmless entry explains are no incident, unless other lines remain."""
    healthy = said("skel", "device", "fallback")
    assert healthy.healthy
    assert healthy.noise == ("other-path",)
    assert spoken(said("skel", "device", "fallback", ("pd", 3_000_000_000))) == "full"


def test_what_cannot_be_decided_is_ranked() -> None:
    """Without a decision, the entry's ranked candidates are returned."""
    assert said("device").candidates == (("skel_missing", 0.5), ("mem_unknown", 0.2))


def test_a_teams_entry_speaks_first() -> None:
    """A team's entry takes precedence, and among two the one with more matched lines."""
    own = Entry(
        "ours",
        "Our board",
        "mem_unknown",
        "init",
        (When(("note-1",)), When(("note-2",))),
        (Line("note-1", "device creation failed"), Line("note-2", "our daemon gave up")),
        verdict="memory",
        own=True,
        typical=2,
    )
    half = msgspec.structs.replace(
        own,
        id="half",
        whens=(When(("half-1",)), When(("half-2",))),
        lines=(Line("half-1", "device creation failed"), Line("half-2", "never printed")),
    )
    knowledge = Knowledge(pack(LINES, (half, own, *ENTRIES)))
    signs = ["device", "note-1", "half-1", "note-2"]
    seen = [
        SeenTemplate(index, 1, (0,) * len(knowledge.holes[index]))
        for index in map(knowledge.signs.index, signs)
    ]
    assert spoken(judge(knowledge, seen)) == "ours"
