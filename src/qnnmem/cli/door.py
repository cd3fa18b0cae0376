"""The short way to the doctor: arguments so plain that click need not read them."""

from __future__ import annotations

import sys

FORMATS = ("text", "json", "markdown", "sarif")


def plain_doctor(words: list[str]) -> tuple[list[str], str] | None:
    """Paths and format of a plain `doctor` command; None for everything that click reads."""
    if not words or words[0] != "doctor":
        return None
    paths: list[str] = []
    forms: list[str] = []
    left = iter(words[1:])
    for word in left:
        if word == "--json":
            forms.append("json")
        elif word == "--format":
            forms.append(next(left, ""))
        elif word.startswith("--format="):
            forms.append(word[len("--format=") :])
        elif (word.startswith("-") and word != "-") or _is_pattern(word):
            return None
        else:
            paths.append(word)
    form = forms[0] if forms else "text"
    if not paths or len(forms) > 1 or form not in FORMATS:
        return None
    return paths, form


def _is_pattern(word: str) -> bool:
    """Whether click would make other words of it, as shells of Windows do not."""
    return sys.platform == "win32" and any(mark in word for mark in "*?[~$%")
