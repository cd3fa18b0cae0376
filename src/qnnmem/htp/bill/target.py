"""Which SoC a file is compiled or loaded for, and what is said when that is not known."""

from __future__ import annotations

from pathlib import Path

from qnnmem.errors import CannotTell, MissingSoc
from qnnmem.htp.binary.context import HtpContext
from qnnmem.targets.socs import Soc


def compile_target(path: Path, soc: Soc | None) -> Soc:
    """The SoC to compile a model for; one must be given."""
    if soc is None:
        raise MissingSoc(path)
    return soc


def load_target(path: Path, context: HtpContext, soc: Soc | None) -> int:
    """The id of the SoC to load a binary for: the one given, else the one it was made for."""
    found = context.soc_model if soc is None else soc.model_id
    if found is None:
        raise no_soc_named(path)
    return found


def no_soc_named(path: Path) -> CannotTell:
    """The error for a binary that names no SoC when none was given either."""
    return CannotTell((f"{path} names no SoC; say which one is meant, e.g. ", *MissingSoc.settings))
