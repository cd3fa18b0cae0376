"""The output of `fix` as it is deployed: one model, or parts that run in sequence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from judge.naive import ELEMENTWISE, Run, read_run, rounded, session, storages

Values = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Chain:
    """Models in execution order; parts exchange tensors by name."""

    parts: tuple[Run, ...]
    paths: tuple[Path, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def needed_after(self, at: int) -> set[str]:
        """Return the tensors that a later part or the application reads."""
        later = {name for part in self.parts[at + 1 :] for name in part.inputs}
        made = {name for part in self.parts[: at + 1] for name in part.outputs}
        return later & (made | set(self.inputs)) | made & set(self.outputs)

    def held_before(self, at: int) -> set[str]:
        """Return the tensors that exist before a part and that the part or a later reader needs."""
        made = {name for part in self.parts[:at] for name in part.outputs}
        wanted = {name for part in self.parts[at:] for name in part.inputs} | set(self.outputs)
        return (made | set(self.inputs)) & wanted

    def size(self, name: str) -> int:
        """Return the bytes of a tensor between parts."""
        return next(part.sizes[name] for part in self.parts if name in part.sizes)


def read_chain(folder: Path, original: Run, shapes: Mapping[str, Sequence[int]]) -> Chain:
    """Return the parts in a folder, or the single model in the folder."""
    manifest = folder / "chain.json"
    if manifest.exists():
        files = [part["file"] for part in json.loads(manifest.read_text())["parts"]]
    else:
        (model,) = folder.glob("*.onnx")
        files = [model.name]
    paths = tuple(folder / name for name in files)
    parts = tuple(read_run(path, shapes) for path in paths)
    return Chain(parts, paths, original.inputs, original.outputs)


def run_chain(chain: Chain, feeds: Values) -> Values:
    """Run the parts in sequence and return the outputs; fail if no part makes a needed tensor."""
    known = dict(feeds)
    for path in chain.paths:
        model = onnx.load(path)
        names = [item.name for item in model.graph.output]
        stored = {item.name for item in model.graph.initializer}
        wanted = [item.name for item in model.graph.input if item.name not in stored]
        found = session(model).run(names, {name: known[name] for name in wanted})
        known.update(zip(names, found, strict=True))
    return {name: known[name] for name in chain.outputs}


def least_scratch(chain: Chain, align: int, *, inplace: bool) -> int:
    """Return a lower bound of scratch for the chain, with inputs and outputs inside scratch.

    The bound adds the live tensors of a part and the tensors that later parts need, at each step.
    Each tensor counts once and views are free, so no layout needs less.
    """
    worst = 0
    for at, part in enumerate(chain.parts):
        later = chain.needed_after(at)
        found = storages(part)
        inside = {name for storage in found for name in storage.names}
        end = len(part.steps)
        waiting = sum(
            rounded(chain.size(name), align)
            for name in chain.held_before(at) | later
            if name not in inside
        )
        for storage in found:
            if set(storage.names) & later:
                storage.last = end
        for moment in range(-1, end + 1):
            alive = [one for one in found if one.born <= moment <= one.last]
            total = sum(rounded(one.size, align) for one in alive)
            if inplace and 0 <= moment < end:
                total -= _overwritten(part, moment, alive, align)
            worst = max(worst, total + waiting)
    return worst


def _overwritten(part: Run, moment: int, alive: Sequence[Any], align: int) -> int:
    """Return the bytes of a result that can overwrite an operand at its last use."""
    step = part.steps[moment]
    if step.kind not in ELEMENTWISE:
        return 0
    made = [one for one in alive if one.born == moment and set(one.names) & set(step.writes)]
    dying = [one for one in alive if one.last == moment and one.born >= 0 and one not in made]
    sizes = {rounded(one.size, align) for one in dying}
    return sum(rounded(one.size, align) for one in made if rounded(one.size, align) in sizes)


def most_scratch(chain: Chain, align: int) -> int:
    """Return an upper bound of scratch: the largest part plus every tensor between parts."""
    between = {name for part in chain.parts for name in (*part.inputs, *part.outputs)}
    kept = sum(rounded(chain.size(name), align) for name in between) if len(chain.parts) > 1 else 0
    inside = [
        sum(rounded(storage.size, align) for storage in storages(part)) for part in chain.parts
    ]
    return max(inside) + kept


def check_manifest(folder: Path, chain: Chain) -> None:
    """Fail if a runner that follows the manifest misses a tensor or frees a tensor too early."""
    manifest = json.loads((folder / "chain.json").read_text())
    alive = set(manifest["inputs"])
    assert alive == set(chain.inputs)
    for part, run in zip(manifest["parts"], chain.parts, strict=True):
        assert set(part["inputs"]) == set(run.inputs)
        assert set(part["outputs"]) == set(run.outputs)
        assert set(part["inputs"]) <= alive
        assert part["weights_bytes"] == sum(run.constants.values())
        alive |= set(part["outputs"])
        alive -= set(part["free_after"])
    assert set(chain.outputs) <= alive
    for tensor in manifest["tensors"]:
        assert tensor["bytes"] == chain.size(tensor["name"])
