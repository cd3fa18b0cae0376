"""A diagnosis as Markdown, compared character for character."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qnnmem.report import doctor_formats, table
from qnnmem.results.incident import Harmless, Incident, ReadingStats


def incident(**changes: Any) -> Incident:
    """Return an incident with a value in every field."""
    line = {"file": "a.log", "line": 12, "text": "needs <b>5</b>", "count": 2, "decides": True}
    part = {"name": "weights", "bytes": 2048, "origin": "measured", "source": "file"}
    return msgspec.convert(
        {
            **{"stage": "graph", "cause": "mem_graph_limit", "cause_meaning": "over the limit"},
            **{"is_memory": True, "confidence": "high", "verdict": "cause", "entry": "limit"},
            **{"title": "One graph", "remedies": ["use `--split 2`", "[b](c)"]},
            "collect_next": ["a log"],
            "candidates": [{"cause": "one", "score": 0.9}, {"cause": "two", "score": 0.1}],
            **{"file": "a.log", "first_line": 11, "last_line": 14, "last_file": "a.log"},
            **{"process": 412, "producer": "ORT", "count": 2},
            "evidence": [line, {**line, "line": 14, "text": "```", "count": 1, "decides": False}],
            "quantities": {"needed_bytes": 3072, "op": "conv|2"},
            "shortage_bytes": 1024,
            "similar": [{"entry": "e", "title": "T", "score": 0.5, "shared": ["x", "y"]}],
            "own_numbers": {"parts": [part], "sentences": ["2 KiB > 1 KiB"]},
            **changes,
        },
        Incident,
    )


def bare(**changes: Any) -> Incident:
    """Return an undecided incident with few details."""
    return incident(
        **{"verdict": "undecided", "is_memory": "unknown", "entry": None},
        **{"remedies": [], "collect_next": []},
        **{"candidates": [{"cause": "one", "score": 0.9}], "evidence": [], "quantities": {}},
        **{"shortage_bytes": None, "similar": None, "own_numbers": None, "count": 1, **changes},
    )


def shown(*incidents: Incident, **changes: Any) -> list[str]:
    """Return the lines of a report."""
    stats = ReadingStats(("a.log",), 14, 900, 0.1, len(incidents), **changes)
    return "".join(doctor_formats.render_markdown(incidents, stats)).split("\n")


DETAILS = """
**Where:** a.log:11 to 14, process 412, ORT (2 times)

**Cause:** One graph (entry limit)

**Ranked:** one 0.90, two 0.10

**Evidence** (`>` decides):

````text
> a.log:12: needs <b>5</b> (2 times)
  a.log:14: ```
````

**In the lines:**

| quantity | value | size | origin |
|---|---|---|---|
| `needed` | `3,072 bytes` | `3.00 KiB` | `reported: printed by the log` |
| `op` | <code>conv&#124;2</code> |   | `reported: printed by the log` |
| `missing` | `1,024 bytes` | `1.00 KiB` | `computed: needed minus limit` |

**This model:**

| quantity | value | size | origin |
|---|---|---|---|
| `weights` | `2,048 bytes` | `2.00 KiB` | `measured: file` |

2 KiB &gt; 1 KiB

**Similar, not confirmed:**

1. T (entry e; shared words: x, y)

**What to do:**

1. use `--split 2`
2. \\[b\\](c)

**What to collect next:**

1. a log
""".splitlines()
VERDICT = (
    "graph stage: out of memory: over the limit; 1.00 KiB (1,024 bytes) missing "
    "(mem_graph_limit); confidence high"
)
BARE_VERDICT = (
    "undecided: the graph stage failed, but the log does not show why; "
    "it is unknown whether memory is short (memory causes 0%, other causes 100%)"
)
BARE = """
**Where:** a.log:11 to 14, process 412, ORT

**Why:** One graph

**Evidence** (`>` decides):

```text
```
""".splitlines()
READ = "Read 14 lines, 900 bytes of a.log."


def test_one_incident() -> None:
    """A single incident has its verdict as the title, without a number."""
    assert shown(incident()) == [f"# {VERDICT}", *DETAILS, "", READ, ""]


def test_two_incidents_and_a_note() -> None:
    """Two incidents have numbered headings; absent fields take no line."""
    assert shown(incident(), bare(), notes=("a <b>",)) == [
        *(f"# 2 incidents; the first: {VERDICT}", "", f"## 1 of 2: {VERDICT}"),
        *(*DETAILS, "", f"## 2 of 2: {BARE_VERDICT}", *BARE),
        *("", READ, "", "Note: a &lt;b&gt;", ""),
    ]


def test_a_healthy_log() -> None:
    """A healthy log gives one line and its notes."""
    lines = shown(noise=(Harmless("x", "No *vote*", 3),), notes=("cut",))
    assert lines == [
        "# healthy: no known failure in 14 lines, 900 bytes of a.log; harmless lines "
        "that look like "
        r"failures: No \*vote\* (3 times)",
        *("", "Note: cut", ""),
    ]


def test_the_rest_is_a_table() -> None:
    """From the 21st on, incidents are counted by stage and cause, the most frequent first."""
    rest = [bare(cause="b")] * 2 + [bare(cause="a")] + [bare(cause="b")]
    assert not [line for line in shown(*[bare()] * 20) if "Other incidents" in line]
    lines = shown(*[bare()] * 20, *rest)
    assert sum(line.startswith("## ") for line in lines) == 21
    assert lines[lines.index("## Other incidents, by stage and cause") :] == [
        *(
            "## Other incidents, by stage and cause",
            "",
            "| stage | cause | incidents |",
            "|---|---|---|",
        ),
        *("| `graph` | `b` | `3` |", "| `graph` | `a` | `1` |", "", READ, ""),
    ]


def test_an_incident_of_a_log_that_grows() -> None:
    """An incident of a followed log has its own heading with a number."""
    text = doctor_formats.render_live(bare(), 7)
    assert text.split("\n") == [f"## Incident 7: {BARE_VERDICT}", *BARE, "", ""]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("plain", "plain"),
        ("`a`", "`a`"),
        ("`a` b `c`", "`a` b `c`"),
        ("x `` y", "x  y"),
        ("a ` [b]", "a \\` \\[b\\]"),
        ("`a|b`", "<code>a&#124;b</code>"),
        ("` `", "<code> </code>"),
        ("1. `a`", "1\\. `a`"),
        ("z" * 600, "z" * 600),
    ],
)
def test_advice(text: str, wanted: str) -> None:
    """Code in backticks stays code, other text is escaped, and 600 characters are the limit."""
    assert table.advice(text) == wanted
    assert len(table.advice("z" * 601)) == 600


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12) a", "12\\) a"),
        ("  + a", "  \\+ a"),
        ("=== a", "\\=== a"),
        ("a - 1. b", "a - 1. b"),
        ("12 a", "12 a"),
        ("&<>@", "&amp;&lt;&gt;&#64;"),
        ("http://x", "http&#58;//x"),
        ("~~a~~ $b$ |", "\\~\\~a\\~\\~ \\$b\\$ \\|"),
        ("WWW.x", "WWW&#46;x"),
    ],
)
def test_escape(text: str, wanted: str) -> None:
    """Escaped text starts no list, entity, link, formula or table column."""
    assert table.escape(text) == wanted


def test_a_long_text_is_cut() -> None:
    """Text over 2,000 characters is cut."""
    assert table.escape("z" * 2000) == "z" * 2000
    assert len(table.escape("z" * 2001)) == 2000


def test_code_shows_letters_as_they_are() -> None:
    """In a code cell only characters that could end the code are escaped."""
    assert table.code("a1 `é`") == "<code>a1 &#96;é&#96;</code>"


@pytest.mark.parametrize(("ticks", "fence"), [(0, 3), (1, 3), (2, 3), (3, 4), (7, 8)])
def test_a_fence_is_longer_than_what_it_holds(ticks: int, fence: int) -> None:
    """A fence has more backticks than its content, and at least three."""
    inside = ["`" * ticks + "x", "`"]
    assert table.block(inside) == ["`" * fence + "text", *inside, "`" * fence]
