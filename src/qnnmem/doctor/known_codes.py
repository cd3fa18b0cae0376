"""Cached lookups of error codes that occur in log lines.

Reading the tables takes longer than reading a small log, and most lines contain the same few codes.
Therefore lookups are cached in the user's cache folder; the name of the file depends on the tables.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from qnnmem.doctor import cache

_MOST = 4096  # cached answers: a log may contain any number of names and numbers


class _Answers(msgspec.Struct):
    """Cached lookups: the code for each name, and whether each number is a code."""

    named: dict[str, int | None] = {}
    known: dict[int, bool] = {}
    fresh: bool = False  # True: some answers are not stored yet


def code_named(name: str) -> int | None:
    """Return the first code with this name, ignoring case; None if the name is unknown."""
    answers = _answers()
    if name not in answers.named:
        from qnnmem.qnn.numbers import code_named as look_up

        found = look_up(name)
        if len(answers.named) >= _MOST:
            return found
        answers.named[name] = found
        answers.fresh = True
    return answers.named[name]


def is_known(code: int) -> bool:
    """Return True if a bare number is a code; always False from 0 to 999, which are ambiguous."""
    if 0 <= code < 1000:
        return False
    answers = _answers()
    if code not in answers.known:
        from qnnmem.qnn.numbers import meanings

        found = any(one.code for one in meanings(code))
        if len(answers.known) >= _MOST:
            return found
        answers.known[code] = found
        answers.fresh = True
    return answers.known[code]


def keep() -> None:
    """Store the lookups that this run added."""
    answers = _answers()
    if answers.fresh:
        answers.fresh = False
        cache.keep(_name(), msgspec.msgpack.encode(answers))


@lru_cache(maxsize=1)
def _answers() -> _Answers:
    data = cache.load(_name())
    try:
        return msgspec.msgpack.decode(data, type=_Answers) if data else _Answers()
    except msgspec.DecodeError:
        return _Answers()


@lru_cache(maxsize=1)
def _name() -> str:
    """Return a cache name that depends on the release and on the files beside the tables."""
    from qnnmem.version import __version__

    folder = Path(__file__).parent.parent / "qnn"
    state = [
        (one.name, (found := one.stat()).st_size, found.st_mtime_ns, found.st_ctime_ns)
        for one in sorted(folder.glob("*.*"))
    ]
    return cache.name_of("codes", (__version__.encode(), repr(state).encode()), ".bin")
