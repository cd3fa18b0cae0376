"""The command that was typed, with what would help: ready to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.errors import Setting
from qnnmem.flags import flag, flag_word
from qnnmem.report.shell import shell_line


def retry_command(words: Sequence[str], settings: Sequence[Setting]) -> str:
    """The same command with these settings; all its other options stay as they are."""
    flags = {flag(Setting(setting.name)) for setting in settings}
    new = list(dict.fromkeys(map(flag_word, settings)))
    replaced = {word.rpartition("=")[0] for word in new}
    kept = [word for word in _joined(words, flags) if word.rpartition("=")[0] not in replaced]
    # What follows two dashes is no option.
    at = kept.index("--") if "--" in kept else len(kept)
    return shell_line(["qnnmem", *kept[:at], *new, *kept[at:]])


def _joined(words: Sequence[str], flags: set[str]) -> Iterator[str]:
    """The words, each of these options as one word with its value."""
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word in flags else None
        yield word if value is None else f"{word}={value}"
