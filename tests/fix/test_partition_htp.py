"""Parts for HTP, with a scripted worker and with the real library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy
import onnx
import pytest
from chain_proofs import prove_partition, write_htp_chain
from onnx import TensorProto, helper, numpy_helper
from told_worker import ToldWorker, done, loaded, refused

from qnnmem.errors import CannotTell, UsageError
from qnnmem.fix.library.trials import (
    HtpParts,
    LibraryJudge,
    LibraryTrials,
    partition_htp,
)
from qnnmem.fix.parts.chain import MANIFEST, SCHEMA, read_chain
from qnnmem.fix.parts.op_sequence import read_sequence
from qnnmem.fix.parts.partition import NoPartition
from qnnmem.fix.parts.parts_remedy import parts_at
from qnnmem.htp import provoke as models
from qnnmem.htp.compile import CompileOptions, HtpPrecision
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import read_line as log_line
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.schema import load_schema
from qnnmem.targets.socs import find_soc

SM8650 = find_soc("SM8650")
ToldWorker = ToldWorker
done: Callable[..., RequestOutcome] = done
refused: Callable[..., RequestOutcome] = refused
OVER_VTCM = (
    "Operator named q::Op (0x1) not sufficiently tiled to fit in TCM. Requires 9437184 bytes"
)
needs_library = pytest.mark.skipif(
    not has_library(), reason=f"the HTP library is not here; {INSTALL}"
)


def sliced(folder: Path, count: int, mib: int) -> Path:
    """Write a model with inputs of a number of MiB."""
    path = folder / "model.onnx"
    path.write_bytes(models.sliced_inputs(count, mib))
    return path


def told(
    folder: Path, answer: Callable[[str, Mapping[str, Any]], RequestOutcome], **more: Any
) -> LibraryJudge:
    """Return a judge with a scripted worker."""
    worker = ToldWorker(lambda verb, options, _limit: answer(verb, options))
    return LibraryJudge(LibraryTrials(SM8650, cast("Worker", worker), folder), **more)


def input_mib(options: Mapping[str, Any]) -> int:
    """Return the MiB of all inputs of the model to compile."""
    graph = onnx.load(options["model"]).graph
    return sum(item.type.tensor_type.shape.dim[1].dim_value for item in graph.input)


def over_limit(options: Mapping[str, Any]) -> RequestOutcome:
    """Return the library's refusal of a graph over the limit."""
    need = input_mib(options) * 1024
    text = f"graph requires estimated allocation of {need} KB, limit is 3670016 KB"
    return refused(f"x.cc:1::ERROR:{text}")


# --- Scripted answers ----------------------------------------------------------------------------


def load_answer(options: Mapping[str, Any], room: int) -> RequestOutcome:
    """Admit a number of contexts, each with an estimate in the log."""
    lines, codes = [], []
    for number in range(1, len(options["binaries"]) + 1):
        lines.append(f"Setting context {number} reserved space to 1000000")
        chosen = f"PD 0 chosen for context {number}"
        full = f"Failed to find available PD for contextId {number} on deviceId 0"
        lines.append(chosen if number <= room else full)
        codes.append(0 if number <= room else 1002)
    return RequestOutcome("done", loaded(*codes), log=tuple(map(log_line, lines)))


@pytest.mark.parametrize(("room", "refusing"), [(2, None), (1, 2)])
def test_the_library_decides_where_to_cut(room: int, refusing: int | None, tmp_path: Path) -> None:
    """Inputs of 1.2 times the limit need two parts; the result says if both load together."""
    asked = []

    def answer(verb: str, options: Mapping[str, Any]) -> RequestOutcome:
        if verb == "load":
            return load_answer(options, room)
        asked.append(input_mib(options))
        return over_limit(options) if asked[-1] > 3584 else done(options)

    found = partition_htp(read_sequence(sliced(tmp_path, 6, 700)), told(tmp_path, answer))
    assert isinstance(found, HtpParts)
    assert (asked[0], len(found.binaries)) == (4200, 2)
    assert (found.together, found.refused) == (refusing is None, refusing)
    assert len(asked) <= 8


def test_an_op_over_vtcm_is_in_every_part(tmp_path: Path) -> None:
    """If one op exceeds VTCM, no partition exists, and fewer than ten compiles show it."""
    asked = []

    def answer(_verb: str, options: Mapping[str, Any]) -> RequestOutcome:
        asked.append(options)
        return refused(OVER_VTCM)

    found = partition_htp(read_sequence(sliced(tmp_path, 4, 1)), told(tmp_path, answer))
    assert isinstance(found, NoPartition)
    assert "9,437,184 bytes of VTCM" in "".join(map(str, found.why))
    assert len(asked) < 10


def test_an_op_that_is_not_taken_is_not_a_matter_of_size(tmp_path: Path) -> None:
    """An unsupported op raises CannotTell with the library's sentence after one compile."""

    def answer(_verb: str, _options: Mapping[str, Any]) -> RequestOutcome:
        text = "Unsupported nodes in QNN EP: { name: slice0, type: Slice }"
        return refused(text, code=None)

    with pytest.raises(CannotTell, match="does not support a node"):
        partition_htp(read_sequence(sliced(tmp_path, 2, 1)), told(tmp_path, answer))


def test_an_op_that_stays_only_at_a_cut_is_cut_around(tmp_path: Path) -> None:
    """A cut that exposes an unsupported node does not fit, and other cuts are tried."""

    def answer(verb: str, options: Mapping[str, Any]) -> RequestOutcome:
        if verb == "load":
            return load_answer(options, 2)
        names = [item.name for item in onnx.load(options["model"]).graph.output]
        if len(names) == 4:
            return over_limit(options)
        text = "Unsupported nodes in QNN EP: { name: slice0, type: Slice }"
        return refused(text, code=None) if names[-1] == "y0" else done(options)

    found = partition_htp(read_sequence(sliced(tmp_path, 4, 1000)), told(tmp_path, answer))
    assert isinstance(found, HtpParts)
    assert len(found.binaries) == 2
    assert found.partition.parts[0].last > 1


def test_parts_are_not_quantized_one_by_one(tmp_path: Path) -> None:
    """Parts are never quantized separately, because calibration needs the whole model."""
    options = CompileOptions(precision=HtpPrecision.INT8)
    judge = told(tmp_path, lambda *_all: refused("no"), options=options)
    with pytest.raises(UsageError, match="quantize the whole model first"):
        partition_htp(read_sequence(sliced(tmp_path, 2, 1)), judge)


# --- The real library ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


@pytest.mark.htp
@needs_library
def test_a_graph_over_the_compile_limit_compiles_in_two_parts(
    worker: Worker, tmp_path: Path
) -> None:
    """The library refuses 4 GiB of inputs as one graph; two parts compile and load in turn."""
    judge = LibraryJudge(LibraryTrials(SM8650, worker, tmp_path))
    sequence = read_sequence(sliced(tmp_path, 4, 1024))
    found = partition_htp(sequence, judge)
    assert isinstance(found, HtpParts)
    whole = judge.found[0, 4].fit
    assert (whole.fits, whole.code) == (False, 1002)
    assert len(found.binaries) == 2
    assert all(fit.fits for fit in found.fits)
    assert not found.together  # 4 GiB exceed one process domain, wherever the cut is
    assert found.refused == 2
    assert len(found.residency.given.domains) == 2
    assert found.residency.given.fits


@pytest.mark.htp
@needs_library
def test_a_context_over_the_process_domain_loads_in_two_parts(
    worker: Worker, tmp_path: Path
) -> None:
    """3.44 GiB of inputs compile but do not load; each of two parts loads."""
    judge = LibraryJudge(LibraryTrials(SM8650, worker, tmp_path))
    found = partition_htp(read_sequence(sliced(tmp_path, 4, 880)), judge)
    assert isinstance(found, HtpParts)
    whole = judge.found[0, 4].fit
    worst = whole.worst
    assert worst is not None
    assert (whole.fits, worst.pool) == (False, "pd")
    assert len(found.binaries) == 2
    assert all(fit.fits for fit in found.fits)


def test_the_same_cuts_of_a_small_copy_compute_the_same(tmp_path: Path) -> None:
    """A small copy of the same cuts computes the same bits; the large models exceed the CPU."""
    sequence = read_sequence(sliced(tmp_path, 4, 1))
    cut = parts_at(sequence, [0, 1, 4])
    assert prove_partition(cut).identical


def layers(path: Path, count: int) -> Path:
    """Write products with 128 KiB of 16-bit weights each."""
    random = numpy.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(size=(256, 256)).astype("float32") / 16, f"w{n}")
        for n in range(count)
    ]
    nodes = [
        helper.make_node("MatMul", [f"t{n}", f"w{n}"], [f"t{n + 1}"], f"layer{n}")
        for n in range(count)
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "layers",
        [info("t0", TensorProto.FLOAT, [1, 256])],
        [info(f"t{count}", TensorProto.FLOAT, [1, 256])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.htp
@needs_library
def test_parts_within_a_budget_load_together_and_compute_the_same(
    worker: Worker, tmp_path: Path
) -> None:
    """Each part meets a budget for weights, and small parts load together."""
    budget = {"weights": Sourced(450_000, Origin.REPORTED, "budget")}
    judge = LibraryJudge(LibraryTrials(SM8650, worker, tmp_path, budget))
    found = partition_htp(read_sequence(layers(tmp_path / "layers.onnx", 6)), judge)
    assert isinstance(found, HtpParts)
    assert len(found.binaries) == 2
    assert found.together
    assert found.refused is None
    assert prove_partition(found.partition).identical
    chain = write_htp_chain(found, tmp_path / "parts")
    assert read_chain(tmp_path / "parts") == chain
    text = (tmp_path / "parts" / MANIFEST).read_text("utf-8")
    jsonschema.Draft202012Validator(load_schema(SCHEMA)).validate(json.loads(text))
    assert chain.htp is not None
    assert (chain.htp.soc, chain.htp.refused_part, chain.htp.domains) == ("SM8650", 0, 1)
    sizes = [one.pd_bytes for one in chain.htp.binaries]
    assert (chain.htp.resident_bytes, chain.htp.in_turn_bytes) == (sum(sizes), max(sizes))


@pytest.mark.htp
@needs_library
def test_a_budget_below_one_layer_is_refused_with_the_op(worker: Worker, tmp_path: Path) -> None:
    """A budget below one layer has no partition, and the reason names the op."""
    budget = {"weights": Sourced(50_000, Origin.REPORTED, "budget")}
    judge = LibraryJudge(LibraryTrials(SM8650, worker, tmp_path, budget))
    found = partition_htp(read_sequence(layers(tmp_path / "layers.onnx", 3)), judge)
    assert isinstance(found, NoPartition)
    assert "MatMul 'layer0'" in "".join(map(str, found.why))
