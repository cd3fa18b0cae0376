"""The bill of a context binary in a file, without compiling; which SoC a file is meant for.

What the loader said of a binary is kept, so that every verb gives the same number later. An entry
is found by what the head of the file states. Only where one exists is the whole file read, whose
content must be the one that was loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from qnnmem.cache import ResultCache, cache_folder
from qnnmem.errors import CannotTell, LoadError, MissingSoc
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import content_digest, read_context
from qnnmem.htp.kept import from_kept, to_kept
from qnnmem.htp.log import CompileLog, PdEstimate
from qnnmem.results.footprint import Bill
from qnnmem.targets.socs import Soc

_KIND = "loaded"


def stored_bill(path: Path, soc: Soc | None = None, context: HtpContext | None = None) -> Bill:
    """The bill for a SoC, by default the one the binary was made for; nothing is loaded.

    The process domain is the loader's own estimate if it loaded this binary here, else a range.
    """
    context = read_context(path) if context is None else context
    model_id = context.soc_model if soc is None else soc.model_id
    return bill_of(context, soc, kept_load(path, context, model_id), file=str(path))


class _KeptLoad(Struct, frozen=True):
    content: str  # digest of the binary
    version: str | None  # of the library
    estimate: PdEstimate


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
        cache.put(key, to_kept(_KeptLoad(content, log.library_version, estimate)))


def kept_load(path: Path, context: HtpContext, model_id: int | None) -> CompileLog | None:
    """What the loader said of this very binary for a SoC; None if it was not loaded here."""
    if model_id is None:
        return None
    cache = ResultCache(cache_folder(), _KIND, must_keep=False)
    kept = from_kept(_KeptLoad, cache.get(_key(context, model_id)))
    if kept is None or kept.content != content_digest(path):
        return None
    return CompileLog(kept.version, pd_estimates=(kept.estimate,))


def _key(context: HtpContext, model_id: int) -> str:
    return hashlib.sha256(repr((context, model_id)).encode()).hexdigest()


def compile_target(path: Path, soc: Soc | None) -> Soc:
    """The SoC to compile a model for; one must be given."""
    if soc is None:
        raise MissingSoc(path)
    return soc


def load_target(path: Path, context: HtpContext, soc: Soc | None) -> int:
    """The id of the SoC to load a binary for: the one given, else the one it was made for."""
    model_id = context.soc_model if soc is None else soc.model_id
    if model_id is None:
        raise no_soc_named(path)
    return model_id


def no_soc_named(path: Path) -> CannotTell:
    """The error for a binary that names no SoC when none was given either."""
    return CannotTell((f"{path} names no SoC; say which one is meant, e.g. ", *MissingSoc.settings))
