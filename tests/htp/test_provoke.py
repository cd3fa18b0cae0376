"""Failures on demand: recipes with a scripted worker and with the real library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from told_worker import ToldWorker, done, loading, refused

from qnnmem.errors import CannotTell
from qnnmem.htp import provoke as models
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.provoke import FailureKind, Provoked, provoke
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.report import provoke as report
from qnnmem.results.schema import encode, load_schema
from qnnmem.targets.socs import MIB, find_soc

SM8650, SM7325 = find_soc("SM8650"), find_soc("SM7325")
OVER_LIMIT = "x.cc:1::ERROR:graph requires estimated allocation of 3674152 KB, limit is 3670016 KB"
OVER_VTCM = (
    "Operator named q::Op (0x1) not sufficiently tiled to fit in TCM. Requires 9437184 bytes"
)
NO_ROOM = "Failed to find available PD for contextId 4 on deviceId 0 coreId 0with context size "
BAD_ALLOC = "graph_prepare.cc:1::ERROR:Exception during graph prepare stage 1. std::bad_alloc"
ToldWorker = ToldWorker
Answer = Callable[[str, Mapping[str, Any], int | None], RequestOutcome]
done: Callable[[Mapping[str, Any]], RequestOutcome] = done
refused: Callable[..., RequestOutcome] = refused
loading: Callable[..., Answer] = loading


def told(kind: FailureKind, answer: Answer, soc: Any = SM8650) -> Provoked:
    """Provoke a failure with a worker that gives this answer."""
    return provoke(kind, soc, worker=cast("Worker", ToldWorker(answer)))


# --- Crafted models ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        models.sliced_inputs(3, 7),
        models.wide_softmax(100),
        models.small_convolution(),
    ],
    ids=["slices", "softmax", "convolution"],
)
def test_crafted_models_are_valid_and_small(model: bytes) -> None:
    """Each crafted model passes the ONNX checker and has less than 4 KiB."""
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    assert len(model) < 4096


def test_inputs_have_the_size_that_is_asked_for() -> None:
    """An input of 7 MiB has 7 MiB of 8-bit elements."""
    model = onnx.load_from_string(models.sliced_inputs(2, 7))
    sizes = [d.dim_value for d in model.graph.input[1].type.tensor_type.shape.dim]
    assert (len(model.graph.input), sizes) == (2, [1, 7, 1024, 1024])


# --- Recipes -------------------------------------------------------------------------------------


def test_the_graph_limit_is_tried_from_both_sides() -> None:
    """The recipe tries inputs just below the limit, which compile, and just above, which do not."""
    seen = []

    def answer(_verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        model = onnx.load(options["model"])
        dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        seen.append(len(model.graph.input) * dims[1])
        return refused(OVER_LIMIT) if seen[-1] > 3584 else done(options)

    found = told(FailureKind.GRAPH_LIMIT, answer)
    assert seen == [3580, 3588]
    assert [attempt.code for attempt in found.record.attempts] == [0, 1002]
    assert (found.record.as_expected, found.record.code, found.record.stage) == (
        True,
        1002,
        "compile",
    )
    assert onnx.load_from_string(found.input_bytes).graph.input[0].name == "x0"


def test_a_library_that_does_not_fail_is_believed() -> None:
    """If the library compiles everything, the record says that it did not fail."""
    found = told(FailureKind.OP_OVER_VTCM, lambda _verb, options, _limit: done(options))
    assert (found.record.failed, found.record.as_expected, found.record.code) == (
        False,
        False,
        None,
    )
    assert report.verdict(found.record).startswith(
        "the library did not fail: op-over-vtcm does not happen"
    )


def test_another_failure_is_not_taken_for_the_one_announced() -> None:
    """A refusal with the right code but another cause is not the announced failure."""
    found = told(FailureKind.GRAPH_LIMIT, lambda *_all: refused(OVER_VTCM))
    assert (found.record.failed, found.record.as_expected, found.record.code) == (True, False, 1002)
    assert "but this is not graph-limit" in report.verdict(found.record)


def test_the_softmax_is_longer_than_the_vtcm_of_the_soc() -> None:
    """The softmax of the recipe exceeds the VTCM of each SoC."""
    lengths = []

    def answer(_verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        shape = onnx.load(options["model"]).graph.input[0].type.tensor_type.shape
        lengths.append(shape.dim[1].dim_value)
        return refused(OVER_VTCM)

    assert told(FailureKind.OP_OVER_VTCM, answer, SM8650).record.as_expected
    assert told(FailureKind.OP_OVER_VTCM, answer, SM7325).record.as_expected
    assert lengths == [9 * MIB, 9 * MIB // 4]


def test_the_last_context_finds_no_room() -> None:
    """The record has the code and the sentence of the context that was refused."""
    found = told(FailureKind.PD_FULL, loading([0, 0, 0, 1002], f"{NO_ROOM}estimate 1084256768"))
    assert (found.record.as_expected, found.record.code, found.record.stage) == (True, 1002, "load")
    assert [attempt.outcome for attempt in found.record.attempts] == [
        "done",
        "done",
        "done",
        "refused",
    ]
    assert "1,084,256,768 bytes" in found.record.sentence


def test_contexts_that_all_load_are_no_failure() -> None:
    """If all contexts load, the record is not a failure."""
    found = told(FailureKind.PD_FULL, loading([0, 0, 0, 0]))
    assert (found.record.failed, found.record.sentence) == (False, "the binary was loaded")


def test_what_is_to_be_loaded_has_to_compile() -> None:
    """Without a compiled binary the recipe for a full domain cannot tell."""
    with pytest.raises(CannotTell, match="did not compile"):
        told(FailureKind.PD_FULL, lambda *_all: refused(OVER_LIMIT))


@pytest.mark.parametrize("threshold", [300, 655, 1000])
def test_host_memory_is_recorded_where_it_just_fails(threshold: int) -> None:
    """The recorded attempt is the failure with the most memory, within 16 MiB of the threshold."""

    def answer(_verb: str, options: Mapping[str, Any], limit: int | None) -> RequestOutcome:
        assert limit is not None
        return refused(BAD_ALLOC, "memory") if limit < threshold * MIB else done(options)

    found = told(FailureKind.HOST_MEMORY, answer)
    sizes = [
        int(one.what.split(" in ")[1].split()[0].replace(",", "")) for one in found.record.attempts
    ]
    failed = [size for size in sizes if size < threshold]
    assert found.record.as_expected
    assert sizes[-1] == max(failed)
    assert threshold - sizes[-1] <= 16


def test_enough_memory_is_no_failure() -> None:
    """A compile that succeeds in the smallest address space ends the search without a failure."""
    found = told(FailureKind.HOST_MEMORY, lambda _verb, options, _limit: done(options))
    assert (found.record.failed, len(found.record.attempts)) == (False, 1)


def test_damaged_binaries_differ_from_the_good_one() -> None:
    """The recipe loads a good binary first; the last damaged binary lacks one byte."""
    sizes: list[int] = []

    def answer(verb: str, options: Mapping[str, Any], limit: int | None) -> RequestOutcome:
        if verb == "load":
            sizes.extend(Path(path).stat().st_size for path in options["binaries"])
        return loading([0, 30001, 30002, 30010])(verb, options, limit)

    found = told(FailureKind.BAD_BINARY, answer)
    assert (found.record.code, found.record.as_expected) == (30010, True)
    assert sizes[-1] == sizes[0] - 1 == len(found.input_bytes)


def test_a_crash_while_loading_is_a_failure_without_code() -> None:
    """A crash during the load is a failure without a code, and the sentence names the signal."""

    def answer(verb: str, options: Mapping[str, Any], _limit: int | None) -> RequestOutcome:
        return done(options) if verb == "compile" else RequestOutcome("crashed", sentence="SIGSEGV")

    found = told(FailureKind.PD_FULL, answer)
    assert (found.record.failed, found.record.as_expected, found.record.code) == (True, False, None)
    assert "SIGSEGV" in found.record.sentence


def test_logs_do_not_tell_where_they_were_made() -> None:
    """Stored logs replace folders of the host with placeholders."""
    found = told(FailureKind.OP_OVER_VTCM, lambda *_all: refused(OVER_VTCM))
    assert found.log_text == b"reading <work>/model.onnx with <library>/libQnnHtp.so"


def test_a_record_satisfies_its_schema() -> None:
    """A record satisfies its schema and holds code, cause, decisive line and file names."""
    import jsonschema

    found = told(FailureKind.GRAPH_LIMIT, lambda *_all: refused(OVER_LIMIT))
    values = json.loads(encode(found.record))
    jsonschema.validate(values, load_schema("qnnmem.provoked/1"))
    assert (values["code"], values["cause"]) == (1002, "graph-limit")
    assert (values["need"], values["limit"]) == (3674152 << 10, 3584 * MIB)
    assert values["lines"] == [OVER_LIMIT]
    assert values["log_file"] == "graph-limit-SM8650.log"


# --- The real library ----------------------------------------------------------------------------


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}")
@pytest.mark.parametrize(
    ("kind", "soc", "code"),
    [
        (FailureKind.GRAPH_LIMIT, SM8650, 1002),
        (FailureKind.GRAPH_LIMIT, SM7325, 1002),
        (FailureKind.OP_OVER_VTCM, SM8650, 1002),
        (FailureKind.PD_FULL, SM8650, 1002),
        (FailureKind.HOST_MEMORY, SM8650, None),  # the code depends on the machine
        (FailureKind.BAD_BINARY, SM8650, 30010),
    ],
    ids=lambda value: getattr(value, "value", getattr(value, "name", str(value))),
)
def test_the_real_library_fails(kind: FailureKind, soc: Any, code: int | None) -> None:
    """Each recipe makes the real library fail with the named cause."""
    found = provoke(kind, soc)
    assert found.record.as_expected, found.record.sentence
    assert code in (None, found.record.code)
    assert found.record.library_version is not None
    assert b"<library>" in found.log_text or kind in (FailureKind.PD_FULL, FailureKind.BAD_BINARY)
    if kind is not FailureKind.BAD_BINARY:
        assert found.record.cause == kind.value
