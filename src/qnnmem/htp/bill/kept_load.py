"""What the loader said of a context binary, kept so that every verb gives the same number later.

An entry is found by what the head of the file states. Only where one exists is the whole file
read, whose content must be the one that was loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from qnnmem.cache import ResultCache, cache_folder
from qnnmem.errors import LoadError
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import content_digest, read_context
from qnnmem.htp.kept_values import from_values, to_values
from qnnmem.htp.log import CompileLog, PdEstimate

_KIND = "loaded"


def keep_loads(binaries: Sequence[Path], model_id: int, log: CompileLog) -> None:
    """Keep the loader's estimate of each binary, if its log has one for all of them."""
    if len(log.pd_estimates) != len(binaries):
        return
    cache = ResultCache(cache_folder(), _KIND, must_keep=False)
    for path, estimate in zip(binaries, log.pd_estimates, strict=True):
        if estimate.total is None:
            continue
        try:
            key, content = _key(read_context(path), model_id), content_digest(path)
        except LoadError:  # e.g. deleted since
            continue
        found = {"content": content, "version": log.library_version}
        cache.put(key, {**found, "estimate": to_values(estimate)})


def kept_load(path: Path, context: HtpContext, model_id: int | None) -> CompileLog | None:
    """What the loader said of this very binary for a SoC; None if it was not loaded here."""
    if model_id is None:
        return None
    kept = ResultCache(cache_folder(), _KIND, must_keep=False).get(_key(context, model_id))
    if kept is None or kept.get("content") != content_digest(path):
        return None
    estimate, version = from_values(PdEstimate, kept.get("estimate")), kept.get("version")
    if estimate is None or not isinstance(version, str | None):
        return None
    return CompileLog(version, pd_estimates=(estimate,))


def _key(context: HtpContext, model_id: int) -> str:
    return hashlib.sha256(repr((context, model_id)).encode()).hexdigest()
