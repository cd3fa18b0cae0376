"""Facts about the failing model beside the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import pytest
from context_writer import example_context, pack_context

from qnnmem.doctor.backend import ALL, HTP, LPAI, backend_of
from qnnmem.doctor.model_facts import (
    Comparison,
    FactsOfBackends,
    ModelFacts,
    add_facts,
    gather,
    gather_possible,
    of_failure,
)
from qnnmem.errors import LoadError, NoCompiler
from qnnmem.htp.compile import CompileFailure, CompileOptions
from qnnmem.htp.log import Cause, CompileLog, Refusal
from qnnmem.htp.provoke import small_convolution
from qnnmem.provenance import Origin, Sourced
from qnnmem.results.incident import Evidence, Incident, ModelPart
from qnnmem.targets.socs import find_soc

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


def incident(
    cause: str, is_memory: bool | Literal["unknown"] = True, **quantities: int
) -> Incident:
    """Return an incident with this cause and these quantities."""
    return Incident(
        *("graph", cause, "", is_memory, "high", "cause", "an-entry", "Title", (), (), ()),
        *("a.log", 1, 1, "a.log", None, None, 1, ()),
        quantities=dict(quantities),
        shortage_bytes=None,
    )


def numbers(low: int, high: int) -> ModelFacts:
    """Return facts with a process domain of 4 GiB and a graph over its compile limit."""
    parts = (("weights", 2 * GIB), ("shared weights", 0), ("spill/fill", GIB))
    return ModelFacts(
        (("weights", Sourced(2 * GIB, Origin.MEASURED, "file")),),
        (
            Comparison("compile", (("estimate", 3 * GIB),), 3 * GIB, 3 * GIB, 2 * GIB),
            Comparison("process domain", parts, low, high, 4 * GIB),
        ),
    )


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Write a context binary for SM8650."""
    path = tmp_path / "model.bin"
    path.write_bytes(pack_context(example_context()))
    return path


def sentences(found: Incident) -> list[str]:
    """Return the sentences of the model's numbers."""
    assert found.model_numbers is not None
    return list(found.model_numbers.sentences)


def test_what_is_left_is_the_budget_less_what_the_log_says_is_in_use() -> None:
    """The remaining space is the budget minus the bytes in use from the log."""
    found = add_facts(incident("mem_dsp_va", in_use_bytes=2 * GIB), numbers(3 * GIB, 3 * GIB))
    assert sentences(found) == [
        "process domain: weights 2.00 GiB + spill/fill 1.00 GiB = 3.00 GiB > 2.00 GiB left "
        "of 4.00 GiB, 2.00 GiB in use (from log); 1,073,741,824 bytes over the limit"
    ]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (3, 4, "3.00 GiB to 4.00 GiB <= 4.00 GiB at most"),
        (3, 5, "3.00 GiB to 5.00 GiB may exceed 4.00 GiB at most"),
        (5, 6, "5.00 GiB to 6.00 GiB > 4.00 GiB at most; 1,073,741,824 bytes over the limit"),
    ],
)
def test_a_range_is_compared_as_a_range(low: int, high: int, words: str) -> None:
    """A range is called over the limit only if its lower end is."""
    found = add_facts(incident("mem_multi_context"), numbers(low * GIB, high * GIB))
    assert sentences(found)[0].endswith(words)


def test_the_cause_chooses_the_limit() -> None:
    """A known cause is compared with its limit, an unknown cause with every limit."""
    known = numbers(GIB, GIB)
    assert sentences(add_facts(incident("mem_graph_limit"), known)) == [
        "compile: estimate 3.00 GiB > 2.00 GiB at most; 1,073,741,824 bytes over the limit"
    ]
    assert len(sentences(add_facts(incident("unknown", "unknown"), known))) == 2


def test_what_is_not_memory_gets_no_numbers() -> None:
    """An incident that is not about memory gets no numbers; the given incident is unchanged."""
    other, memory = incident("signing", False), incident("mem_dsp_va")
    assert add_facts(other, numbers(GIB, GIB)) == other
    add_facts(memory, numbers(GIB, GIB))
    assert memory.model_numbers is None


def test_every_part_has_an_origin() -> None:
    """Each part has bytes, origin and source."""
    own = add_facts(incident("mem_dsp_va"), numbers(GIB, GIB)).model_numbers
    assert own is not None
    assert own.parts == (ModelPart("weights", 2 * GIB, "measured", "file"),)


def test_a_binary_brings_its_bill(binary: Path) -> None:
    """A binary gives the parts of its bill and the limits of its SoC."""
    found = gather(binary, None, None)
    values = dict(found.parts)
    assert values["total"].value == 11_483_328
    assert values["compile limit"].value == 3_758_096_384
    assert {one.resource for one in found.comparisons} == {"compile", "process domain", "VTCM"}


def test_a_soc_alone_brings_its_limits() -> None:
    """A SoC without a model gives its limits and no comparison."""
    found = gather(None, None, find_soc("SM8650"))
    assert [name for name, _ in found.parts] == [
        "compile limit of SM8650",
        "process domain budget",
        "largest VTCM of SM8650",
    ]
    assert found.comparisons == ()


def test_a_model_without_a_soc_is_planned() -> None:
    """A model without a SoC is planned, and its constants and IO are compared with TCM."""
    found = gather(None, ROOT / "examples" / "tiny.eaix", None)
    assert dict(found.parts)["scratch"].value == 2304
    assert sentences(add_facts(incident("mem_tcm_pool"), found))[0].startswith(
        "TCM: constants 192 B + IO "
    )


def test_a_buffer_list_has_no_tcm() -> None:
    """A buffer list gives no TCM comparison, as it has no constants and IO."""
    found = gather(None, ROOT / "examples" / "keyword_spotting.csv", None)
    assert found.comparisons == ()


def test_an_unreadable_binary_is_refused(tmp_path: Path) -> None:
    """An unreadable binary is refused with the reader's reason."""
    path = tmp_path / "bad.bin"
    path.write_bytes(b"nothing")
    with pytest.raises(LoadError, match=r"bad\.bin"):
        gather(path, None, None)


def test_a_model_that_fails_here_too_brings_what_the_library_says() -> None:
    """If the model fails to compile here, estimate, limit and reason are shown."""
    refusal = Refusal(Cause.GRAPH_LIMIT, "a line", need=3 * GIB, limit=2 * GIB)
    failure = CompileFailure(
        *(Path("m.onnx"), find_soc("SM8650"), CompileOptions(), "library", "compile", "too big"),
        outcome=cast("Any", None),
        log=CompileLog("v2.51"),
        refusal=refusal,
    )
    found = of_failure(failure)
    assert dict(found.parts)["compile estimate"] == Sourced(
        3 * GIB, Origin.MEASURED, "log of QAIRT v2.51"
    )
    assert sentences(add_facts(incident("mem_graph_limit"), found)) == [
        "compile: estimate 3.00 GiB > 2.00 GiB at most; 1,073,741,824 bytes over the limit",
        "compiling the model here for SM8650 also fails: too big",
    ]


def with_line(text: str, cause: str = "unknown", entry: str = "an-entry") -> Incident:
    """Return an incident with one line."""
    found = msgspec.structs.replace(incident(cause), entry=entry)
    return msgspec.structs.replace(found, evidence=(Evidence("a.log", 1, text, 1, True),))


@pytest.mark.parametrize(
    ("found", "backend"),
    [
        (with_line("QnnDsp <E> Failed to map weights buffer"), HTP),
        (with_line("graph requires estimated allocation of 5 KB"), HTP),
        (with_line("something", cause="mem_graph_limit"), HTP),
        (with_line("needs VTCM of 8 MB"), HTP),
        (with_line("libQnnLpai.so: TCM allocation failed"), LPAI),
        (with_line("TCM is full", entry="lpai-tcm-full"), LPAI),
        (with_line("QnnContext_createFromBinary failed with error 1002"), ""),
    ],
)
def test_lines_and_entry_tell_the_backend(found: Incident, backend: str) -> None:
    """The backend is recognised from the lines and the entry, or stays unknown."""
    assert backend_of(found) == backend


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a small model for either backend."""
    path = tmp_path / "m.onnx"
    path.write_bytes(small_convolution())
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without the compiler."""

    def missing() -> None:
        raise NoCompiler("no compiler here")

    monkeypatch.setattr("qnnmem.htp.worker.find_library", missing)


def names(facts: FactsOfBackends, found: Incident) -> list[str]:
    """Return the names of an incident's model numbers."""
    numbers = facts.add_to(found).model_numbers
    return [] if numbers is None else [part.name for part in numbers.parts]


HTP_LINE, LPAI_LINE = with_line("QnnDsp <E> failed"), with_line("QnnLpai <E> failed")


def test_each_incident_has_the_numbers_of_its_backend(model: Path) -> None:
    """An LPAI incident gets the TCM pool, an HTP incident the sizes and limits without TCM."""
    facts, failures = gather_possible(None, model, None)
    assert failures == ()
    assert "TCM pool" in names(facts, LPAI_LINE)
    assert names(facts, with_line("failed")) == names(facts, LPAI_LINE)
    assert names(facts, HTP_LINE) == [
        *("weights in the file", "inputs", "outputs", "process domain budget")
    ]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_sizes_and_limits_are_known(model: Path) -> None:
    """Without a compiler, sizes and limits are still given, and the failure is returned."""
    facts, failures = gather_possible(None, model, find_soc("SM8650"))
    assert [type(one) for one in failures] == [NoCompiler]
    assert names(facts, HTP_LINE) == names(facts, with_line("failed"))
    assert {"weights in the file", "compile limit of SM8650", "largest VTCM of SM8650"} <= {
        *names(facts, HTP_LINE)
    }
    assert "TCM pool" in names(facts, LPAI_LINE)


@pytest.mark.usefixtures("no_compiler")
def test_nothing_is_compiled_for_a_failure_of_lpai(model: Path) -> None:
    """For an LPAI failure nothing is compiled, so a missing compiler is no failure."""
    facts, failures = gather_possible(None, model, find_soc("SM8650"), backends={LPAI})
    assert failures == ()
    assert "TCM pool" in names(facts, LPAI_LINE)


def test_limits_of_htp_are_not_shown_for_lpai() -> None:
    """A SoC without a model gives HTP limits, but no numbers for an LPAI incident."""
    facts, _failures = gather_possible(None, None, find_soc("SM8650"))
    assert names(facts, LPAI_LINE) == []
    assert len(names(facts, HTP_LINE)) == 3


@pytest.mark.parametrize("backends", [ALL, {HTP}, {LPAI}, {""}])
def test_a_model_that_cannot_be_read_is_said_once(tmp_path: Path, backends: set[str]) -> None:
    """An unreadable model is reported once for all backends."""
    facts, failures = gather_possible(None, tmp_path / "none.onnx", None, backends=backends)
    assert len(failures) == 1
    assert names(facts, HTP_LINE) == names(facts, LPAI_LINE) == []


def test_sizes_that_look_the_same_are_told_apart_in_bytes() -> None:
    """Sizes that look equal when rounded are shown in bytes, too."""
    limit = 3584 << 20
    need = limit + 86_016
    facts = ModelFacts((), (Comparison("compile", (("estimate", need),), need, need, limit),))
    assert sentences(add_facts(incident("mem_graph_limit"), facts)) == [
        "compile: estimate 3.50 GiB (3,758,182,400 bytes) > 3.50 GiB (3,758,096,384 bytes) "
        "at most; 86,016 bytes over the limit"
    ]
