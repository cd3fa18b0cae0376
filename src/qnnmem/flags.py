"""Settings in the syntax of the command line."""

from __future__ import annotations

from qnnmem.errors import Setting, Words, join_words

# Settings whose option differs from their name with dashes.
_FLAGS = {
    "allow_float": "--float",
    "dims": "--dim",
    "hw_version": "--hw-ver",
    "memory_limit_bytes": "--memory-limit",
    "shapes": "--shape",
    "states": "--state",
    "time_limit_s": "--time-limit",
    "values": "--value",
}


def flag(setting: Setting) -> str:
    """Return the option that sets a setting to its value, ready to paste."""
    name = _FLAGS.get(setting.name, f"--{setting.name.replace('_', '-')}")
    if not setting.value:
        return name
    import shlex

    return f"{name} {shlex.quote(setting.value)}"


def flag_word(setting: Setting) -> str:
    """Return a setting as one word, `--option=value`, so that its value can start with a dash."""
    return f"{flag(Setting(setting.name))}={setting.value}" if setting.value else flag(setting)


def with_flags(words: Words) -> str:
    """Return the text with every setting written as a command-line option."""
    return join_words(words, flag)
