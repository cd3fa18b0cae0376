"""Settings in the words of the command line."""

from __future__ import annotations

import shlex

from qnnmem.errors import Setting

# Settings whose option is not simply their name with dashes.
_FLAGS = {
    "allow_float": "--float",
    "dims": "--dim",
    "hw_version": "--hw-ver",
    "memory_limit_bytes": "--memory-limit",
    "shapes": "--shape",
    "states": "--state",
    "time_limit_s": "--time-limit",
}


def flag(setting: Setting) -> str:
    """The option that gives a setting its value, ready to paste."""
    name = _FLAGS.get(setting.name, f"--{setting.name.replace('_', '-')}")
    return f"{name} {shlex.quote(setting.value)}" if setting.value else name
