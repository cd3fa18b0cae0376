"""Memory limits of the machine, of its control groups and of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_DIGITS = 20  # digits of a 64-bit number; int() rejects thousands of digits


def usable_memory() -> int | None:
    """Return how many bytes of memory the machine or control group has; None if unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None
    return min(physical, *group_limits(_text), physical)


def address_space_limit() -> int | None:
    """Return the address space limit (`ulimit -v`) in bytes; None if there is no limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limits = [n for n in resource.getrlimit(resource.RLIMIT_AS) if n != resource.RLIM_INFINITY]
    return min(limits, default=None)


def group_limits(read: Callable[[Path], str]) -> Iterator[int]:
    """Yield the memory limits of this process's control groups, version 1 or 2.

    `read` returns the text of a file, or "" if the file is missing; the file can be on
    another machine.
    """
    for line in read(_OWN_GROUPS).splitlines():
        _, controllers, place = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / place.strip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            word = read(folder / name).strip()
            if word.isascii() and word.isdigit() and len(word) <= _DIGITS:
                yield int(word)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
