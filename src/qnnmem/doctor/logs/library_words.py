"""What a line says of libraries that are not there, in words of its own.

Rows are as those of `topics`: a cause, what a line in small letters must hold in any order, and
what it must not hold.
"""

from __future__ import annotations

from qnnmem.doctor.logs.topic_words import LACKS, LIBRARY, OPTIONAL, OTHER_FILES

MISSING: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("skel_missing", (LIBRARY, LACKS), rf"{OPTIONAL}|{OTHER_FILES}"),
    # Whatever its name: a program that uses QNN does not start without it.
    (
        "skel_missing",
        (
            r"\.so[\w.]*\b.{0,8}\bcannot open shared object file"
            r"|\blibrary [\"'][^\"']{3,120}[\"'] not found",
        ),
        rf"{OPTIONAL}|permission|not permitted|invalid elf|wrong elf|symbol",
    ),
    ("skel_missing", (r"dllnotfoundexception: (?:\S+ ){0,5}?\S*(?:qnn|htp|snpe|genie)",), ""),
    (
        "skel_missing",
        (
            r"adsp_library_path",
            r"\bpoint(?:s|ed)? (?:to|at)\b.{0,60}\binstead\b"
            r"|\bnot in\b|\bnot\b.{0,12}\b(?:point|set|contain|includ)|wrong|\bunset\b|\bmissing\b"
            r"|\bempty\b",
        ),
        "",
    ),
    (
        "skel_missing",
        (r"\bskel(?:eton)?s?\b", LACKS),
        rf"{OPTIONAL}|{OTHER_FILES}|not the problem",
    ),
    (
        "skel_missing",
        (r"\bdll\b|\.so\b|librar(?:y|ies)\b", r"specified module could not be found|8007007e"),
        "",
    ),
    (
        "skel_missing",
        (
            r"\b(?:qnn|htp|snpe|genie|hexagon|fastrpc)\b(?: \w+){0,2} librar(?:y|ies)\b",
            r"not (?:be )?found|cannot (?:be found|find)|could not (?:be found|find)|\bmissing\b",
        ),
        rf"{OPTIONAL}|symbol|function",
    ),
    # `No QNN provider library`, `no usable dispatch runtime found`.
    (
        "skel_missing",
        (
            r"\bno (?:[\w.-]+ ){1,5}?(?:librar(?:y|ies)|dlls?|runtimes?|skels?)\b"
            r"(?: (?:(?:was|were|is|are|could be) )?(?:found|resolved|loaded|present|available)\b"
            r"|[.,;)]|$)",
            r"\b(?:qnn|qairt|htp|npu|snpe|genie|hexagon|fastrpc|dsp|dispatch)\b",
        ),
        rf"{OPTIONAL}|\berrors?\b|\bneeded\b|\brequired\b",
    ),
    # The shell of a protection domain may be looked for in several folders, which is no failure.
    ("skel_missing", (r"\bfastrpc_shell", LACKS, r"\bbecause\b|\breject|\brefus"), ""),
)
