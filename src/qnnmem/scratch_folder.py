"""Temporary folders that are gone when their work is."""

from __future__ import annotations

import tempfile

from qnnmem.errors import OutputError


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder of our own, to be used in a `with` block."""
    try:
        # What cannot be removed must not hide the result, or the error, of the work.
        return tempfile.TemporaryDirectory(prefix="qnnmem-", ignore_cleanup_errors=True)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise OutputError(
            f"no temporary folder can be made ({reason.lower()}); "
            "let TMPDIR name a folder with room in it"
        ) from exc
