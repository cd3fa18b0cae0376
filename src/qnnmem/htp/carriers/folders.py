"""Folders of context binaries and config files: Genie bundles and ONNX Runtime GenAI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qnnmem.bounded_file import file_below
from qnnmem.errors import Damaged, LoadError, NotCompiled
from qnnmem.htp.binary.epcontext import find_contexts
from qnnmem.htp.binary.pieces import Piece
from qnnmem.htp.carriers.carrier import MAX_PARTS, Claim, Gathered, is_binary
from qnnmem.text import quote

_CONFIG = 4 << 20
_DEPTH = 16


class Tree(Protocol):
    """Files by relative name: in a folder, or in an archive."""

    def piece(self, name: str) -> Piece:
        """Return a file; raise Damaged for a name outside the tree, LoadError if it is missing."""
        ...


@dataclass(frozen=True, slots=True)
class FolderTree:
    """A folder that gives access only to files inside it; links out of it are refused."""

    folder: Path

    def piece(self, name: str) -> Piece:
        """Return the file with this name."""
        path = file_below(self.folder, name)
        return Piece.whole(path, name)


def beside(name: str, other: str) -> str:
    """Resolve `other`, a path relative to the file `name`; return its name in the tree."""
    parts = [*name.split("/")[:-1], *other.replace("\\", "/").split("/")]
    kept: list[str] = []
    for part in parts:
        if part == ".." and kept:
            kept.pop()
        elif part not in ("", "."):
            kept.append(part)
    return "/".join(kept)


def read_genie(tree: Tree, name: str, gathered: Gathered) -> None:
    """Add the binaries of every engine of a Genie config to `gathered`, in load order."""
    config = _json(tree.piece(name))
    engines = list(_engines(config, 0))
    if not engines:
        raise Damaged(f"{name} has no ctx-bins")
    dialog = config.get("dialog") if isinstance(config, dict) else None
    context = _table(_table(dialog).get("context"))
    if length := _size(context.get("size"), 1 << 40):
        gathered.claims.append(Claim("context length", length, f"dialog.context.size {length:,}"))
    for engine in engines:
        _engine(tree, name, engine, gathered)


def _engines(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the engine tables that list ctx-bins, at any depth of a dialog or pipeline."""
    if depth > _DEPTH:
        raise Damaged("the config is nested too deeply")
    if isinstance(value, dict):
        binary = _table(_table(value.get("model")).get("binary"))
        if isinstance(binary.get("ctx-bins"), list):
            yield value
        for inner in value.values():
            yield from _engines(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _engines(inner, depth + 1)


def _engine(tree: Tree, config: str, engine: Mapping[str, Any], gathered: Gathered) -> None:
    binary = engine["model"]["binary"]
    names = binary["ctx-bins"]
    if len(names) > MAX_PARTS:
        raise Damaged(f"{config} lists {len(names):,} binaries, over the limit")
    numbers = [
        _binary(tree, beside(config, name), gathered) for name in names if isinstance(name, str)
    ]
    backend = _table(engine.get("backend"))
    options = _table(backend.get("QnnHtp"))
    spill = _size(options.get("spill-fill-bufsize"), 1 << 50)
    if spill is not None:
        words = f"spill-fill-bufsize {spill:,}"
        gathered.claims.append(Claim("spill/fill buffer", spill, words))
        gathered.shares_spill_fill |= spill > 0 and len(numbers) > 1
    extensions = backend.get("extensions")
    if isinstance(extensions, str) and extensions:
        _extensions(tree, beside(config, extensions), numbers, gathered)
    if _table(binary.get("lora")):
        gathered.add_unread(
            "LoRA adapters", "LoRA adapters are applied at run time, so their memory is not counted"
        )


def _binary(tree: Tree, name: str, gathered: Gathered) -> int | None:
    try:
        piece = tree.piece(name)
    except LoadError as exc:
        gathered.add_unread(name, f"a file that the config names is missing: {exc.reason}")
        return None
    if not is_binary(piece):
        gathered.add_unread(
            name, "a file that the config names is not a QNN context binary", piece.size
        )
        return None
    return gathered.add(piece, "")


def _extensions(tree: Tree, name: str, numbers: list[int | None], gathered: Gathered) -> None:
    """Gather claims for the SoC and the Hexagon version that the backend's config file names."""
    try:
        config = _json(tree.piece(name))
    except LoadError as exc:
        gathered.notes.append(f"{quote(name)}, named in the config: {exc.reason}")
        return
    devices = config.get("devices") if isinstance(config, dict) else None
    for device in devices if isinstance(devices, list) else ():
        model, arch = _table(device).get("soc_model"), _table(device).get("dsp_arch")
        about = tuple(number for number in numbers if number is not None)
        if isinstance(model, int) and 0 < model < 1 << 31:
            gathered.claims.append(Claim("SoC", model, f"soc_model {model}", about))
        if isinstance(arch, str) and arch[1:].isdecimal() and len(arch) < 8:
            gathered.claims.append(Claim("Hexagon", int(arch[1:]), f"dsp_arch {arch}", about))


def read_genai(tree: Tree, name: str, gathered: Gathered) -> None:
    """Add the contexts of every stage of a GenAI config to `gathered`."""
    config = _json(tree.piece(name))
    model = _table(config.get("model")) if isinstance(config, dict) else {}
    if length := _size(model.get("context_length"), 1 << 40):
        gathered.claims.append(Claim("context length", length, f"context_length {length:,}"))
    stages = list(_stages(model, 0))
    if not stages:
        raise Damaged(f"{name} does not name a model file")
    if len(stages) > MAX_PARTS:
        raise Damaged(f"{name} has {len(stages):,} stages, over the limit")
    for stage, file in stages:
        where = beside(name, file)
        try:
            add_epcontext(tree, tree.piece(where), stage, gathered)
        except NotCompiled:
            gathered.add_unread(
                where, "the memory of an ONNX model is known only after it is compiled"
            )
        except LoadError as exc:
            gathered.add_unread(where, f"a file that the config names cannot be read: {exc.reason}")


def _stages(value: Any, depth: int, name: str = "model") -> Iterator[tuple[str, str]]:
    if depth > _DEPTH:
        raise Damaged("the config is nested too deeply")
    if isinstance(value, dict):
        file = value.get("filename")
        if isinstance(file, str) and file.lower().endswith(".onnx"):
            yield name, file
        for key, inner in value.items():
            if isinstance(inner, (dict, list)):
                yield from _stages(inner, depth + 1, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _stages(inner, depth + 1, name)


def add_epcontext(tree: Tree, model: Piece, used_by: str, gathered: Gathered) -> None:
    """Add all contexts of an EPContext model to `gathered`; raise NotCompiled if none exist."""
    for context in find_contexts(model):
        if isinstance(context, str) and not context:
            raise LoadError(model.name, "does not state a usable file name for its context binary")
        if isinstance(context, str):
            context = tree.piece(beside(model.name, context))
        gathered.add(context, used_by)


def _json(piece: Piece) -> Any:
    if piece.size > _CONFIG:
        raise LoadError(piece.name, f"{piece.size:,} bytes are too many for a config")
    try:
        return json.loads(piece.head(_CONFIG))
    except (ValueError, RecursionError) as exc:
        raise LoadError(piece.name, "is not JSON") from exc


def _size(value: Any, limit: int) -> int | None:
    """Return the value if it is a whole number, not negative and below the limit; else None."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < limit else None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
