"""Real models as QNN is given them: read back, planned beside their ONNX graphs, executed.

    python tools/qnn_graphs.py                 every listed ONNX model that is in the cache
    python tools/qnn_graphs.py lk_embed        one of them
    python tools/qnn_graphs.py --page          the page, from what has been tried so far

Takes the real library, so Linux on x86-64. Each model is tried in a process of its own with a limit
of time; what became of it is kept in `.cache/qnn_graphs/<id>.json`.

    written    ONNX Runtime writes the model as a DLC, and as JSON of its own
    heard      the same model composed for the real library, by a listener
    read       the DLC by qnnmem; operator by operator it is compared with what was heard, and its
               names with the JSON
    planned    as QNN graph and as ONNX graph, both proven
    executed   as a prepared binary in planned memory, against onnxruntime on the source
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import qnn_graphs_page

from qnnmem.errors import QnnMemError

RESULTS = models.ROOT / ".cache" / "qnn_graphs"
SOC = "SM8650"
_SECONDS = 400
_PLAN_S = 10.0


def main() -> int:
    """Try models, or write the page."""
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    words.add_argument("ids", nargs="*")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--cache", type=Path, default=models.CACHE)
    words.add_argument("--page", action="store_true")
    words.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    entries = [one for one in models.read_entries() if one.suffix == ".onnx"]
    if given.page:
        qnn_graphs_page.write(RESULTS, entries)
        return 0
    for entry in entries:
        if given.ids and entry.id not in given.ids:
            continue
        if not entry.target(given.cache).is_file():
            continue
        if given.one:
            found = tried(entry, entry.target(given.cache), given.seed)
            (RESULTS / f"{entry.id}.json").write_text(json.dumps(found, indent=1))
        else:
            in_own_process(entry.id, given)
    return 0


def in_own_process(name: str, given: argparse.Namespace) -> None:
    """Try one model where a crash or an endless search costs nothing but itself."""
    words = ["--one", "--seed", str(given.seed), "--cache", str(given.cache), name]
    started = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - this program
            [sys.executable, __file__, *words], timeout=_SECONDS, capture_output=True, check=False
        )
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = "" if done.returncode == 0 else (said[-1] if said else f"code {done.returncode}")
    except subprocess.TimeoutExpired:
        why = f"not done after {_SECONDS} s"
    if why:
        (RESULTS / f"{name}.json").write_text(json.dumps({"id": name, "failed": why[:300]}))
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    print(
        f"{name:<24}{time.monotonic() - started:6.1f} s  {qnn_graphs_page.short(kept)}", flush=True
    )


def tried(entry: models.Entry, path: Path, seed: int) -> dict[str, Any]:
    """All that is found out about one model."""
    from qnnmem.loader.onnx import executable, read
    from qnnmem.planner import plan_model

    found: dict[str, Any] = {"id": entry.id, "seed": seed}
    shapes = {name: tuple(shape) for name, shape in entry.shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            proto = executable(path, dims=entry.dims, shapes=shapes, values=dict(entry.values))
            source = scratch / "source.onnx"
            source.write_bytes(proto.SerializeToString())
            plan = plan_model(read(source), time_limit=_PLAN_S)
            found["onnx"] = values(plan)
        except QnnMemError as exc:
            return found | {"failed": str(exc)[:300]}
        read_back(found, source, scratch, plan)
        if len(found.get("graphs", ())) == 1 and not found["on_cpu"]:
            executed(found, source, scratch, seed)
        found.pop("composed", None)
    return found


def values(plan: Any) -> dict[str, Any]:
    """Bytes of a plan and what is proven of them."""
    proven = plan.scratch.optimal
    return {"scratch": plan.scratch_bytes, "proven": proven, "ops": len(plan.model.ops)}


def read_back(found: dict[str, Any], source: Path, scratch: Path, plan: Any) -> None:
    """The model through both doors, compared with each other."""
    from qnnmem.htp.as_qnn import difference_notes
    from qnnmem.htp.composing import compose_onnx
    from qnnmem.loader.dlc import as_model, compose
    from qnnmem.planner import plan_model
    from qnnmem.targets.socs import find_soc

    try:
        heard = compose_onnx(source, find_soc(SOC), dims={}, shapes={}, values={}, with_data=True)
    except QnnMemError as exc:
        found["heard"] = str(exc)[:300]
        return
    found["on_cpu"] = [f"{node.operator} {node.name}" for node in heard.on_cpu]
    found["on_htp"] = heard.on_htp
    plans = [plan_model(as_model(source, one), time_limit=_PLAN_S) for one in heard.graphs]
    found["graphs"] = [values(one) for one in plans]
    if len(plans) == 1:
        notes = difference_notes(plan, plans[0], heard)
        found["why"] = [note for note in notes[1:] if "left on" not in note]
    found["quantized"] = any(
        bool(one.data_type.is_quantized) for graph in heard.graphs for one in graph.tensors
    )
    found["composed"] = heard.graphs
    files = written(source, scratch)
    found["dlc"] = "read"
    if len(files) != len(heard.graphs):
        found["dlc"] = f"{len(files)} files for {len(heard.graphs)} graphs"
        return
    read: list[Any] = []
    for file in files:
        try:
            read += compose(file, with_data=True)
        except QnnMemError as exc:
            found["dlc"] = str(exc).partition(": ")[2][:200]
            return
    found["same"] = list(differences(heard.graphs, read))[:5]
    found["witness"] = list(unlike_json(read, scratch))[:5]
    found["constants"] = sum(one.stored_bytes for graph in read for one in graph.tensors)
    found["tensors"] = sum(len(graph.tensors) for graph in read)
    found["file"] = str(files[0])


def written(source: Path, scratch: Path) -> list[Path]:
    """DLC files that ONNX Runtime writes of a model, in the order of its graphs."""
    words = f"import sys, qnn_graphs; qnn_graphs.write_here({str(source)!r}, {str(scratch)!r})"
    subprocess.run(  # noqa: S603 - this program
        [sys.executable, "-c", words],
        cwd=Path(__file__).parent,
        timeout=_SECONDS,
        capture_output=True,
        check=False,
    )
    return sorted(scratch.glob("*.dlc"), key=lambda path: _number(path.stem))


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def write_here(source: str, folder: str) -> None:
    """Have the provider write what it composes."""
    from dlc_examples import provider_session

    provider_session(Path(source), Path(folder), {"dump_json_qnn_graph": "1"})


def differences(heard: Sequence[Any], read: Sequence[Any]) -> Iterator[str]:
    """What the DLC says otherwise than the calls did, operator by operator."""
    for one, other in zip(heard, read, strict=True):
        if len(one.ops) != len(other.ops):
            yield f"{len(one.ops)} operators were composed, {len(other.ops)} were read"
            continue
        mine = {tensor.id: tensor for tensor in one.tensors}
        theirs = {tensor.id: tensor for tensor in other.tensors}
        for a, b in zip(one.ops, other.ops, strict=True):
            pairs = [
                *zip(a.inputs, b.inputs, strict=False),
                *zip(a.outputs, b.outputs, strict=False),
            ]
            for first, second in pairs:
                yield from _unlike(b.name, mine[first], theirs[second])
            if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
                yield f"{b.name}: other tensors"
            for name in a.arrays.keys() & b.arrays.keys():
                yield from _unlike(f"{b.name} {name}", a.arrays[name], b.arrays[name])


def _unlike(where: str, a: Any, b: Any) -> Iterator[str]:
    for name in ("data_type", "dimensions", "quantization", "data"):
        if getattr(a, name) != getattr(b, name):
            yield f"{where}: {name} of {a.name}"


def unlike_json(read: Sequence[Any], scratch: Path) -> Iterator[str]:
    """Tensors of ONNX Runtime's own JSON that the DLC has not, or otherwise."""
    there = {tensor.name: tensor for graph in read for tensor in graph.tensors}
    for file in scratch.glob("*.json"):
        listed = json.loads(file.read_text()).get("graph", {}).get("tensors", {})
        for name, wanted in listed.items():
            tensor = there.get(plain(name))
            if tensor is None:
                if wanted["type"] != _NULL:
                    yield f"{name} is missing"
                continue
            if list(tensor.dimensions) != wanted["dims"] or tensor.data_type != wanted["data_type"]:
                yield f"{name}: {tensor.dimensions} {tensor.data_type} for {wanted['dims']}"


_NULL = 5


def plain(name: str) -> str:
    """A name as QNN's writer keeps it."""
    made = re.sub(r"\W", "_", name)
    return f"_{made}" if made[:1].isdigit() else made


def executed(found: dict[str, Any], source: Path, scratch: Path, seed: int) -> None:
    """Run the graph in planned memory, and the source in onnxruntime."""
    import qnnmem.loader.dlc as door
    from qnnmem import lpai
    from qnnmem.quiet_onnxruntime import exact_session

    file = Path(found.pop("file", scratch / "heard.dlc"))
    if found["dlc"] != "read":  # the vendor's reader has given up on it
        graphs = found["composed"]
        file.write_bytes(b"heard")
        door.compose = lambda *_, **__: graphs
    try:
        made = lpai.prepare(file, {"allow_float": True, "time_limit_s": _PLAN_S})
        notes = [note for note in made.warnings + made.plans[0].model.notes if "program" in note]
        if notes:
            found["executed"] = notes[0][:300]
            return
        made.write(scratch / "net.bin")
        session = exact_session(source.read_bytes())
        given = feed(session, seed)
        wanted = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True)
        )
        with lpai.open(scratch / "net.bin", native=True) as running:
            results = running.run(named(made.plans[0].model.inputs, given))
    except (QnnMemError, MemoryError) as exc:
        found["executed"] = str(exc)[:300]
        return
    found["executed"] = "yes"
    found["error"], found["steps"] = compared(wanted, results)


def named(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values under the names that a graph has for them."""
    known = {plain(name).lstrip("_"): name for name in names}
    return {known[plain(name).lstrip("_")]: value for name, value in given.items()}


def feed(session: Any, seed: int) -> dict[str, Any]:
    """Seeded values for every input."""
    random = np.random.default_rng(seed)
    given = {}
    for one in session.get_inputs():
        kind = one.type[7:-1]
        if kind.startswith("float"):
            values = random.standard_normal(one.shape).astype(f"f{4 if kind == 'float' else 2}")
        elif kind == "bool":
            values = random.integers(0, 2, one.shape).astype(bool)
        else:
            most = 256 if kind == "uint8" else 65536 if kind == "uint16" else 2
            values = random.integers(0, most, one.shape).astype(kind)
        given[one.name] = values
    return given


def compared(wanted: Mapping[str, Any], results: Mapping[str, Any]) -> tuple[float, int]:
    """The largest difference, as a part of the largest value; and in steps of whole numbers."""
    worst, steps = 0.0, 0
    by_name = {plain(name).lstrip("_"): value for name, value in results.items()}
    for name, values in wanted.items():
        other = np.asarray(by_name[plain(name).lstrip("_")]).reshape(values.shape)
        if values.dtype.kind in "iu":
            steps = max(steps, int(np.abs(values.astype("i8") - other.astype("i8")).max(initial=0)))
        else:
            a, b = values.astype("f8"), other.astype("f8")
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            far = np.nan_to_num(np.where(same, 0, np.abs(a - b)), nan=np.inf).max(initial=0)
            peak = np.abs(a[np.isfinite(a)]).max(initial=0)
            worst = max(worst, float(far / max(1e-6, peak)))
    return worst, steps


if __name__ == "__main__":
    sys.exit(main())
