"""All verbs share one path to compile, load and bill, here with a scripted worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from context_writer import example_context, example_graph
from msgspec import structs
from told_worker import ToldWorker, loading, refused

from qnnmem.htp.bill import bill_of
from qnnmem.htp.compile import CompileFailure, CompileOptions, no_progress
from qnnmem.htp.fit import Fit, judge_model, model_io
from qnnmem.htp.measure import LOAD_TIME_LIMIT_S, MeasuredModel, load_binaries, measure
from qnnmem.htp.provoke import small_convolution
from qnnmem.htp.qmem.table import QmemTable, qmem_of_file
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.sweep import SweepOutcome, compile_task
from qnnmem.results.qmem import IoMode
from qnnmem.targets.socs import find_soc, pd_budget

SM8650 = find_soc("SM8650")
ESTIMATE = 10_546_688
FITS = (f"Setting context 1 reserved space to {ESTIMATE}", "PD 0 chosen for context 1")
FULL = (
    f"Setting context 1 reserved space to {pd_budget().value + 7}",
    "Failed to find available PD for contextId 1 on deviceId 0",
)


def worker(*lines: str, codes: tuple[int, ...] = (0,), crash: str = "") -> Any:
    """Return a worker that compiles every model and logs these lines on load."""
    answer = loading(codes, *lines)

    def crashing(verb: str, options: Mapping[str, Any], limit: int | None) -> RequestOutcome:
        if verb == "load":
            return RequestOutcome("crashed", sentence=crash)
        made: RequestOutcome = answer(verb, options, limit)
        return made

    return ToldWorker(crashing if crash else answer)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a small model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(small_convolution())
    return path


def measured(model: Path, told: Any, **options: Any) -> MeasuredModel:
    """Measure a model that compiles."""
    made = measure(model, SM8650, worker=told, **options)
    assert isinstance(made, MeasuredModel)
    return made


def judged(model: Path, told: Any) -> Fit:
    """Return the verdict of `fit` for a model."""
    return judge_model(model, SM8650, CompileOptions(), {}, worker=told)


def swept(model: Path, told: Any) -> SweepOutcome:
    """Return the result of `sweep` for a model."""
    return compile_task(told, model, SM8650.name, CompileOptions(), {})


def test_the_loaders_estimate_is_in_the_bill(model: Path) -> None:
    """The loader's estimate is the exact process domain, with the time and RAM of the compile."""
    made = measured(model, worker(*FITS))
    assert made.bill.process_domain is not None
    assert (made.bill.process_domain.low.value, made.bill.process_domain.high.value) == (
        ESTIMATE,
        ESTIMATE,
    )
    assert (made.no_estimate, made.compiled.outcome.seconds) == ("", 2.5)
    assert made.bill.host_ram is not None
    assert made.bill.host_ram.value == 1 << 20


def test_the_binary_is_kept_where_it_is_wanted(model: Path, tmp_path: Path) -> None:
    """The requested output file is the binary that was loaded and billed."""
    told, output = worker(*FITS), tmp_path / "out.bin"
    made = measured(model, told, output=output)
    assert [verb for verb, _, _ in told.asked] == ["compile", "load"]
    assert told.asked[1][1] == {"binaries": [output], "soc": SM8650.model_id}
    assert output.stat().st_size == made.bill.file_bytes


def test_weights_are_named_on_request(model: Path) -> None:
    """The bill names the largest weights only on request, because naming reads the model again."""
    assert measured(model, worker(*FITS)).bill.largest_weights == ()
    named = measured(model, worker(*FITS), name_weights=True).bill.largest_weights
    assert [(item.name, item.bytes) for item in named][:1] == [("w", 1024)]


def test_a_model_that_only_the_compiler_reads_has_no_weights(tmp_path: Path) -> None:
    """A model that only the compiler can read has a bill without named weights."""
    path = tmp_path / "strange.onnx"
    path.write_bytes(small_convolution().replace(b"Conv", b"Cunv"))
    assert measured(path, worker(*FITS), name_weights=True).bill.largest_weights == ()


def test_every_load_has_one_time_limit(model: Path, tmp_path: Path) -> None:
    """Every load has the same time limit, less the time of the compile."""
    told = worker(*FITS)
    measured(model, told)
    load_binaries(told, [tmp_path / "a.bin"], 57)
    limits = [limit for verb, _, limit in told.asked if verb == "load"]
    assert limits == pytest.approx([LOAD_TIME_LIMIT_S] * 2, abs=60)
    assert limits[0] < LOAD_TIME_LIMIT_S


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (worker(crash="ended by SIGSEGV"), "ended by SIGSEGV"),
        (worker(codes=(30_001,)), "code 30001, "),
        (worker(), "the log has no estimate"),
    ],
    ids=["crash", "code", "silence"],
)
class TestNoEstimate:
    """The loader gives no estimate of the process domain."""

    def test_the_bill_stays_and_says_so(self, model: Path, told: Any, why: str) -> None:
        """The bill has the range of the file, and a trap gives the reason."""
        made = measured(model, told)
        assert made.bill.process_domain == bill_of(made.compiled.context, SM8650).process_domain
        assert why in made.no_estimate
        trap = made.bill.traps[-1]
        assert (trap.id, why in str(trap.sentence)) == ("not-loaded", True)

    def test_fit_cannot_tell(self, model: Path, told: Any, why: str) -> None:
        """Without an estimate `fit` cannot tell, even if the bounds are below the limit."""
        fit = judged(model, told)
        assert (fit.fits, why in str(fit.why)) == (None, True)

    def test_sweep_tries_again(self, model: Path, told: Any, why: str) -> None:
        """A sweep row without an estimate keeps its numbers, is marked failed and is not cached."""
        result = swept(model, told)
        assert (result.state, result.is_final, why in str(result.reason)) == ("failed", False, True)
        assert result.ram is not None


def test_fit_and_sweep_agree(model: Path) -> None:
    """`fit` and `sweep` report the same need, verdict and reason."""
    for lines, state in ((FITS, "fits"), (FULL, "over")):
        fit, result = judged(model, worker(*lines)), swept(model, worker(*lines))
        assert (fit.fits, result.state) == (state == "fits", state)
        assert (fit.why, fit.seconds) == (result.reason, result.seconds)
        check = next(check for check in fit.checks if check.pool == "pd")
        assert check.need is not None
        assert (check.need.low.value, check.need.high.value) == (result.pd_low, result.pd_need)


def test_a_sure_no_needs_no_estimate(model: Path) -> None:
    """A lower bound over the limit decides "does not fit", even if the load failed."""
    graph = example_graph(const=3600 << 20)
    context = structs.replace(example_context(), graphs=(graph,))
    answer = loading((1002,))
    fit = judged(model, ToldWorker(answer, context))
    result = swept(model, ToldWorker(answer, context))
    assert (fit.fits, result.state) == (False, "over")


def test_a_refused_model_is_a_failure_for_everybody(model: Path) -> None:
    """A model that the compiler refuses is never loaded; need and limit come from the log."""
    line = "requires estimated allocation of 3674152 KB, limit is 3670016 KB"
    told: Any = ToldWorker(lambda *_all: refused(line))
    assert isinstance(measure(model, SM8650, worker=told), CompileFailure)
    assert (judged(model, told).fits, swept(model, told).state) == (False, "over")
    assert {verb for verb, _, _ in told.asked} == {"compile"}


def test_the_qmem_table_has_the_same_bill(model: Path) -> None:
    """The Qmem table subtracts the loader's estimate from the process domain."""
    told = worker(*FITS)
    found = qmem_of_file(model, SM8650, CompileOptions(), worker=told, progress=no_progress)
    assert isinstance(found, QmemTable)
    row = found.result.row(IoMode.RAW, IoMode.RAW)
    assert row.process_domain_left is not None
    assert row.process_domain_left.value == pd_budget().value - ESTIMATE


def test_a_model_without_a_bill_names_its_tensors(model: Path) -> None:
    """`model_io` lists tensors of an uncompiled model with sizes by element type."""
    found = {item.name: (item.kind, item.bytes) for item in model_io(model, CompileOptions())}
    assert found["x"] == ("input", 8192)
    assert found["w"] == ("weights", 1024)
    assert found["scale"] == ("weights", 4)
