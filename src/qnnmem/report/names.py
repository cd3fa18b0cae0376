"""Names from untrusted files, made safe to show."""

from __future__ import annotations


def clean(name: str, width: int = 60) -> str:
    """A name without control characters, shortened in the middle to `width` characters."""
    head = name if len(name) <= 4 * width else name[: 2 * width] + name[-2 * width :]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in head)
    if len(shown) <= width:
        return shown
    keep = width - 1
    return f"{shown[: keep - keep // 2]}…{shown[-(keep // 2) :]}"
