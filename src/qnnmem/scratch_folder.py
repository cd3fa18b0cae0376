"""Temporary folders that are gone when their work is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from qnnmem.errors import OutputError
from qnnmem.whole_file import shown


def scratch_folder(inside: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """An empty folder of our own, to be used in a `with` block.

    It is hidden `inside` a folder where its files are to be renamed into that.
    """
    prefix = "qnnmem-" if inside is None else ".qnnmem-"
    try:
        # What cannot be removed must not hide the result, or the error, of the work.
        return tempfile.TemporaryDirectory(prefix=prefix, dir=inside, ignore_cleanup_errors=True)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        if inside is not None:
            raise OutputError(f"nothing can be written into {shown(inside)} ({reason})") from exc
        raise OutputError(
            f"no temporary folder can be made ({reason}); let TMPDIR name a folder with room in it"
        ) from exc
