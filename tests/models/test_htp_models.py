"""Real models compiled by the real HTP library, with three sources for each number."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fetched import ENTRIES, TOOL
from msgspec import to_builtins
from seeds import share
from vendor_reader import vendor_reading

from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import read_context
from qnnmem.htp.compile import Compiled, CompileOptions, compile_model
from qnnmem.htp.fit import fit_bill
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import PdEstimate, parse_log
from qnnmem.htp.requests import LoadRequest
from qnnmem.htp.worker import Worker
from qnnmem.targets.socs import find_soc
from qnnmem.units import round_up

pytestmark = [
    pytest.mark.models,
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]

# Context bytes on SM8650, where an earlier compile through ONNX Runtime alone is on record.
CONTEXT_BYTES: dict[str, int | None] = {
    "silero_ov16k": 774_144,
    "lk_embed": 888_832,
    "magika": 2_097_152,
    "nudenet": 6_680_576,
    "ocr_cls": None,
    "oww_mel": None,
    "centerface": None,
    "light_squeezenet": None,
    "basicpitch": None,
}
SOCS = ("SM8650", "SM8750")


@pytest.fixture(scope="module")
def worker() -> Any:
    """Return one worker for all compiles."""
    with Worker(warm=True) as worker:
        yield worker


def compiled(name: str, soc: str, worker: Worker, target: Path) -> Compiled:
    """Compile a model with its listed dimensions; skip the test if the model is missing."""
    entry = ENTRIES[name]
    if not TOOL.is_present(entry):
        pytest.skip(f"model {name} is not here; fetch it with: python tools/models.py {name}")
    shapes = {key: tuple(shape) for key, shape in entry.shapes.items()}
    options = CompileOptions(dims=entry.dims, shapes=shapes, partition=name == "oww_mel")
    path = Path(entry.target(TOOL.CACHE))
    result = compile_model(path, find_soc(soc), options, output=target, worker=worker)
    assert isinstance(result, Compiled), result.sentence
    return result


def same(mine: Any, theirs: Any) -> bool:
    """True if our reader agrees with each value of the vendor's reader."""
    if isinstance(theirs, dict):
        return all(same(mine[key], value) for key, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs)


def estimate_of(worker: Worker, binary: Path, soc: str) -> PdEstimate:
    """Return the loader's estimate for a binary."""
    outcome = worker.ask(LoadRequest([binary], find_soc(soc).model_id))
    assert outcome.is_done, outcome.sentence
    (estimate,) = parse_log(outcome.log).pd_estimates
    return estimate


def formula(context: HtpContext, estimate: PdEstimate, vtcm: int) -> int:
    """Return the sum of rounded weights, IO, run list, spill/fill and VTCM of the one graph."""
    (graph,) = context.graphs
    assert graph.const is not None
    assert graph.io is not None
    assert graph.spill_fill is not None
    runlist = estimate.graphs[0].runlist
    return round_up(graph.const, 2 << 20) + graph.io + runlist + graph.spill_fill + vtcm


@pytest.mark.parametrize(("name", "soc"), share(list(product(CONTEXT_BYTES, SOCS)), 3))
def test_three_witnesses_agree_on_the_bill(
    name: str, soc: str, worker: Worker, tmp_path: Path
) -> None:
    """Our reader, the vendor's reader and the compiler's log agree, and the model fits."""
    binary = tmp_path / "model.bin"
    result = compiled(name, soc, worker, binary)
    context = read_context(binary)
    if soc == "SM8650" and CONTEXT_BYTES[name] is not None:
        assert context.file_bytes == CONTEXT_BYTES[name]
    mine = to_builtins(context)
    assert [k for k, theirs in vendor_reading(binary).items() if not same(mine[k], theirs)] == []
    graph, said = context.graphs[0], result.log.ram_summary[0]
    assert (graph.const, graph.io, graph.op_data) == (said.const, said.io, said.op_data)
    assert (graph.ddr_tensors, graph.spill_fill) == (said.ddr_tensors, said.spill_fill)
    estimate = estimate_of(worker, binary, soc)
    assert result.log.vtcm_size is not None
    assert estimate.total == formula(context, estimate, result.log.vtcm_size)
    bill = bill_of(context, find_soc(soc), result.log)
    assert fit_bill(bill, find_soc(soc), {}).fits
