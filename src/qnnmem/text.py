"""Make untrusted text safe to show (quoted, printable, short); compile patterns lazily."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: the command line starts faster without that import
if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence
    from typing import Any, AnyStr

_QUOTED = 80
_LONGEST_NAME = 64  # length limit for comparing names; longer names take too long
MAX_NAME = 400  # characters of a name that users can paste
_MAX_SENTENCE = 200
_UNSHOWN = "\N{REPLACEMENT CHARACTER}"


def quote(value: object) -> str:
    """Return a name from a file in quotes, escaped and short enough for a sentence."""
    if isinstance(value, int):
        return _digits(value)
    if not isinstance(value, str):
        return a_kind(type(value))  # the value may be deep or large
    quoted = repr(value[: _QUOTED + 1])
    return quoted if len(quoted) <= _QUOTED else f"{quoted[: _QUOTED - 3]}..."


def a_kind(kind: type) -> str:
    """Return a type name with its article: `a dict`, `an object`."""
    name = kind.__name__
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def _digits(value: int) -> str:
    # str() of a giant integer raises ValueError above Python's digit limit.
    return str(value) if abs(value) < 1 << 64 else f"{'-' if value < 0 else ''}2^64 or more"


def plain_or_quoted(name: str, width: int = _QUOTED) -> str:
    """Return a name unchanged if it is printable and not longer than `width`, else quoted."""
    return name if len(name) <= width and name.isprintable() else quote(name)


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with control characters replaced, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _UNSHOWN for c in text)


def shorten(name: str, width: int = 60) -> str:
    """Return a printable name, shortened in the middle to `width` characters."""
    head = name if len(name) <= 4 * width else name[: 2 * width] + name[-2 * width :]
    shown = printable(head)
    if len(shown) <= width:
        return shown
    keep = width - 1
    return f"{shown[: keep - keep // 2]}…{shown[-(keep // 2) :]}"


def by_sizes(shape: Iterable[int | str], scalar: str = "scalar") -> str:
    """Return a shape in the notation of the options: `1x3x224x224`."""
    return "x".join(map(str, shape)) or scalar


def listed(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the number of the others: `a, b and 3 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 buffer`, `12,000 buffers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, else all known names."""
    names = tuple(known)
    meant = nearest(name, names)
    return f"did you mean {meant}?" if meant else f"choose one of {', '.join(names)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`; None if no name is similar enough."""
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name[:_LONGEST_NAME].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def sentence(exc: BaseException) -> str:
    """Return the message of an exception as one printable line."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return printable(lines[0][:_MAX_SENTENCE])


class _LazyPattern:
    """Proxy for a compiled pattern, with the pattern's methods.

    Compiling a pattern can take some milliseconds, and a run needs only a few of the patterns.
    """

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        import re

        method = getattr(re.compile(self._pattern, self._flags), name)
        setattr(self, name, method)  # later accesses bypass this method
        return method


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a proxy for `re.compile(pattern, flags)` that compiles on first use."""
    return _LazyPattern(pattern, flags)  # type: ignore[return-value]  # it has the same methods
