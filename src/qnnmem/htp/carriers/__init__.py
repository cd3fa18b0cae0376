"""Read deployment files: the context binaries in them, and what they state about the binaries.

carrier       the common result of all readers
pte           ExecuTorch programs
litert        LiteRT models for an NPU, and .litertlm
folders       Genie bundles and folders of ONNX Runtime GenAI
archive       apps and bundles that contain any of these files
carrier_bill  bills for the distinct binaries, and a check of what the file states about them
pte_file      writes ExecuTorch programs

`opened` chooses the reader by the kind of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.loader.file_kind import ARCHIVES, CARRIERS, KINDS, bundle_config, kind_of_file

if TYPE_CHECKING:
    from qnnmem.htp.carriers.carrier import Carrier, Gathered
    from qnnmem.results.carrier import CarrierKind

_KINDS: dict[str, CarrierKind] = {
    **{"pte": "executorch", "litert": "litert", "litertlm": "litertlm"},
    **{"genie": "genie", "genai": "genai", "zip": "archive", "task": "archive"},
}


def is_carrier(path: Path) -> bool:
    """Return True if a file or folder is of a kind that can contain context binaries."""
    return kind_of_file(path).name in CARRIERS


@contextmanager
def opened(path: Path) -> Iterator[Carrier]:
    """Yield the contents of a deployment file or folder; pieces are readable until the block ends.

    Raise LoadError if the file or folder is damaged or contains no context binary or DLC.
    """
    from qnnmem.errors import LoadError
    from qnnmem.htp.carriers.carrier import Gathered, faults_of
    from qnnmem.temporary_folder import temporary_folder

    kind, gathered = kind_of_file(path).name, Gathered()
    words = KINDS[kind].words
    if kind not in ARCHIVES:
        with faults_of(path, words.removeprefix("a ").removeprefix("an ")):
            _read(path, kind, gathered)
        yield gathered.carrier(path, _KINDS[kind], words)
        return
    from qnnmem.htp.carriers.archive import read_archive

    with temporary_folder() as scratch:
        with faults_of(path, "archive"):
            read_archive(path, Path(scratch), gathered)
            carrier = gathered.carrier(path, _KINDS[kind], words)
        if not (carrier.payloads or carrier.dlcs or carrier.unread):
            problem = "contains no QNN context binary, not even inside a model or another file"
            raise LoadError(path, problem)
        yield carrier


def _read(path: Path, kind: str, gathered: Gathered) -> None:
    from qnnmem.errors import LoadError
    from qnnmem.htp.binary.pieces import Piece

    if kind in ("genie", "genai"):
        from qnnmem.htp.carriers.folders import FolderTree, read_genai, read_genie

        read = read_genie if kind == "genie" else read_genai
        config = bundle_config(path)
        read(FolderTree(path if config else path.parent), config or path.name, gathered)
        return
    piece = Piece.whole(path, path.name)
    if kind == "pte":
        from qnnmem.htp.carriers.pte import read_pte

        read_pte(piece, gathered)
        return
    from qnnmem.htp.carriers.litert import read_litert, read_litertlm

    if kind == "litertlm":
        read_litertlm(piece, gathered)
    elif not read_litert(piece, gathered):
        raise LoadError(path, "is a TFLite model that is not compiled for an NPU")
