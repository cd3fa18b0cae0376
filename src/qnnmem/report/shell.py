"""Commands to paste: every word is quoted so that a shell reads back the same word."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path

# characters; nobody pastes a longer command
LONGEST = 2000


def shell_line(words: Iterable[str]) -> str:
    """Return the words as one printable shell line."""
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    """Return one quoted word; unprintable characters use `$'...'` escapes of bash, zsh and ksh."""
    if word.isprintable():
        import shlex

        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def file_word(name: str) -> str:
    """Return a file name that no command mistakes for an option."""
    return f"./{name}" if name.startswith("-") and name != "-" else name


def output_words(name: str) -> tuple[str, str]:
    """Return `-o` and a file name that does not exist yet, for a suggested command."""
    wanted = Path(name)
    numbered = (f"{wanted.stem}-{number}{wanted.suffix}" for number in count(2))
    names = chain((wanted,), map(wanted.with_name, numbered))
    return "-o", file_word(str(next(path for path in names if not os.path.lexists(path))))


def next_line(why: str, words: Sequence[str], *added: str) -> str:
    """Return `next: why: command`; empty if the command is too long to paste.

    An `added` option replaces the same option in `words`.
    """
    new = {word.partition("=")[0] for word in added if word.startswith("-")}
    kept = [word for word in words if word.partition("=")[0] not in new]
    line = command_line((*kept, *added))
    return f"next: {why}: {line}" if line else ""


def command_line(words: Iterable[str]) -> str:
    """Join words such as `--option=value` into a command line; empty if it is too long."""
    line = shell_line(part for word in words for part in option_and_value(word))
    return line if len(line) <= LONGEST else ""


def option_and_value(word: str) -> Sequence[str]:
    """Split `--option=value` into two words, unless the value starts with a dash."""
    option, _, value = word.partition("=")
    if not option.startswith("--") or not value or value.startswith("-"):
        return (word,)
    return (option, value)


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    try:
        raw = os.fsencode(char)
    except UnicodeEncodeError:  # a lone surrogate, which no file system accepts in a name
        raw = char.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in raw)
