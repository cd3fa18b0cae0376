"""Fit: sizes against limits, nearby settings, and models on both sides of each real limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from context_writer import example_context, example_graph, old_context
from msgspec import structs, to_builtins
from onnx import TensorProto, helper, numpy_helper

from qnnmem.errors import Setting, UsageError
from qnnmem.flags import flag
from qnnmem.htp.bill import bill_of
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.compile import CompileFailure, CompileOptions
from qnnmem.htp.fit import (
    Fit,
    check_pools,
    fit_all,
    fit_bill,
    fit_failure,
    fit_result,
    judge_model,
    nearby,
    with_suggestions,
)
from qnnmem.htp.installed import INSTALL
from qnnmem.htp.library import has_library
from qnnmem.htp.log import parse_log
from qnnmem.htp.requests import RequestOutcome
from qnnmem.htp.worker import Worker
from qnnmem.options.htp import FitOptions
from qnnmem.options.option import flags_of
from qnnmem.provenance import Origin, Sourced
from qnnmem.report.bill import render_text as render_bill
from qnnmem.report.fit import render_text
from qnnmem.results.fit import FitCheck
from qnnmem.results.footprint import SizeRange
from qnnmem.targets.socs import Soc, find_soc, pd_budget
from qnnmem.verbs.refusal import explained

SM8650, SM8350, SM8750 = find_soc("SM8650"), find_soc("SM8350"), find_soc("SM8750")
MIB = 1 << 20
GRAPH_LIMIT = "requires estimated allocation of 3072000 KB, limit is 2097152 KB"
OVER_VTCM = (
    "Operator named q::*InputSlice (0x1) not sufficiently tiled to fit in TCM. Requires 67108864"
)


def context(**graph: Any) -> HtpContext:
    """Return a context of one graph for SM8650."""
    example: HtpContext = example_context()
    return structs.replace(example, graphs=(example_graph(**graph),))


def failure(line: str, soc: Soc = SM8350, kind: Any = "refused", **options: Any) -> CompileFailure:
    """Return a failed compile whose log has this line."""
    log = parse_log([line])
    return CompileFailure(
        model=Path("model.onnx"),
        soc=soc,
        options=CompileOptions(**options),
        library="library",
        stage="compile",
        why="it did not work",
        outcome=RequestOutcome(kind, seconds=1.0),
        log=log,
        code=1002,
        refusal=log.cause,
    )


def sized(low: int, high: int, limit: int) -> FitCheck:
    """Return a check of a need between two bounds."""
    bounds = (Sourced(value, Origin.COMPUTED, "test") for value in (low, high))
    return FitCheck.of("pd", SizeRange(*bounds), Sourced(limit, Origin.MEASURED, "test"))


@pytest.mark.parametrize(
    ("low", "high", "fits", "spare"),
    [(5, 10, True, 0), (5, 11, None, -1), (10, 11, None, -1), (11, 12, False, -1)],
)
def test_bounds_decide_only_on_one_side(low: int, high: int, fits: object, spare: int) -> None:
    """A need whose range crosses the limit has no verdict; the excess counts the certain bytes."""
    check = sized(low, high, 10)
    assert (check.fits, check.spare) == (fits, spare)


def test_a_small_binary_fits() -> None:
    """Every limit is checked; the tightest is VTCM, which a graph takes whole, then `pd`."""
    fit = fit_bill(bill_of(context(), SM8650), SM8650)
    assert (fit.fits, fit.worst and fit.worst.pool) == (True, "vtcm")
    assert (fit.worst and fit.worst.spare, fit.beside_vtcm and fit.beside_vtcm.pool) == (0, "pd")
    assert [check.pool for check in fit.checks] == ["compile", "pd", "vtcm"]


def test_a_full_process_domain_is_seen() -> None:
    """Weights over the process domain limit do not fit, and the excess is exact."""
    bill = bill_of(context(const=3600 * MIB), SM8650)
    fit = fit_bill(bill, SM8650)
    assert bill.process_domain is not None
    assert fit.worst is not None
    assert (fit.fits, fit.worst.pool) == (False, "pd")
    assert fit.worst.spare == pd_budget().value - bill.process_domain.low.value


def test_another_soc_with_a_smaller_limit_refuses() -> None:
    """A graph compiled for SM8650 exceeds the 2 GiB graph limit of SM8350."""
    fit = fit_bill(bill_of(context(const=2100 * MIB), SM8650), SM8350)
    compile_check = fit.checks[0]
    assert compile_check.limit is not None
    assert (compile_check.fits, compile_check.limit.value) == (False, 2048 * MIB)


def test_vtcm_of_another_soc_may_be_too_small() -> None:
    """A graph with 8 MiB of VTCM does not fit an SoC with 4 MiB."""
    fit = fit_bill(bill_of(context(), SM8650), SM8350)
    vtcm = next(check for check in fit.checks if check.pool == "vtcm")
    assert (vtcm.fits, vtcm.spare) == (False, -4 * MIB)


@pytest.mark.parametrize(
    ("vtcm", "fits", "word"), [(8, None, "cannot tell for"), (16, False, "does not fit")]
)
def test_the_architecture_decides_first(vtcm: int, fits: bool | None, word: str) -> None:
    """A binary for a later Hexagon must be compiled again; the verdict says so before any size."""
    made = structs.replace(context(vtcm=vtcm * MIB), dsp_arch=79)
    fit = fit_bill(bill_of(made, SM8650), SM8650)
    assert fit.fits is fits
    text = render_text(fit_result([fit], "a.bin"))
    assert text.startswith(
        f"{word} SM8650: the binary was made for Hexagon v79 but SM8650 is v75; compile"
    )
    assert "missing" not in text
    rows = [line.split() for line in text.splitlines() if line.endswith("measured")]
    assert [row[-2] for row in rows] == ["-", "-", "-"]


@pytest.mark.parametrize("budgets", [{}, {"ram": 1}, {"ram": 1 << 40}])
def test_parts_add_up_to_the_total(budgets: dict[str, int]) -> None:
    """The listed parts, including VTCM, add up to the total in text and in JSON."""
    given = {pool: Sourced(size, Origin.GIVEN, "test") for pool, size in budgets.items()}
    fit = fit_bill(bill_of(context(), SM8650), SM8650, given)
    assert fit.total is not None
    assert sum(part.value for part in fit.parts.values()) == fit.total.value
    lines = render_text(fit_result([fit], "a.bin"), verbose=True).splitlines()
    rows = lines[lines.index("memory:") + 1 :]
    sizes = [int(row.split()[0].replace(",", "")) for row in rows[: rows.index("")]]
    assert sum(sizes[:-1]) == sizes[-1] == fit.total.value
    assert any(row.split()[1:] == ["VTCM"] for row in rows)
    (values,) = to_builtins(fit_result([fit], "a.bin"))["socs"]
    assert sum(part["bytes"] for part in values["parts"].values()) == values["total"]["bytes"]


def test_a_limit_has_one_origin_wherever_it_is_shown() -> None:
    """`footprint` and `fit` show the same table of limits for a binary."""
    bill = bill_of(context(), SM8650)
    fit = fit_bill(bill, SM8650)
    shown = [render_text(fit_result([fit], "a.bin")), render_bill(bill)]
    tables = [text[text.index("limit  ") :].split("\n\n")[0].rstrip() for text in shown]
    assert tables[0] == tables[1]
    assert "limit origin" in tables[0]


def test_the_users_own_limit_is_said_to_be_given() -> None:
    """A limit from the user has the origin "given"."""
    budgets = {"ram": Sourced(1, Origin.GIVEN, "--budget")}
    text = render_text(fit_result([fit_bill(bill_of(context(), SM8650), SM8650, budgets)], "a.bin"))
    (row,) = (line for line in text.splitlines() if line.startswith("RAM budget"))
    assert row.split()[-1] == "given"


def test_the_compiler_is_believed_over_our_sum() -> None:
    """A binary made for the SoC passes the compile limit, even if the estimate is slightly over."""
    fit = fit_bill(bill_of(context(const=3584 * MIB), SM8650), SM8650)
    assert fit.checks[0].fits is True


def test_a_budget_replaces_or_adds_a_limit() -> None:
    """A budget from the user replaces a limit or adds a new one."""
    bill = bill_of(context(), SM8650)
    sizes = {"ram": 1000, "compile": 4000 * MIB}
    budgets = {pool: Sourced(size, Origin.GIVEN, "test") for pool, size in sizes.items()}
    fit = fit_bill(bill, SM8650, budgets)
    ram = next(check for check in fit.checks if check.pool == "ram")
    assert bill.total is not None
    assert (fit.fits, ram.spare) == (False, 1000 - bill.total.value)


def test_an_unknown_pool_is_bad_usage() -> None:
    """An unknown pool name is a usage error that lists the known names."""
    with pytest.raises(UsageError, match="spill-fill"):
        check_pools(["tcm"])


def test_a_file_without_sizes_cannot_be_told() -> None:
    """A file without sizes has no verdict, and the exit code is 3."""
    old: HtpContext = old_context()
    fit = fit_bill(bill_of(old, SM8650), SM8650)
    assert (fit.fits, fit_result((fit,), "").exit_code) == (None, 3)


def test_a_refusal_carries_its_own_numbers() -> None:
    """A refused compile takes need and limit from the library's log."""
    fit = fit_failure(failure(GRAPH_LIMIT))
    assert fit.worst is not None
    assert (fit.fits, fit.code, fit.worst.pool) == (False, 1002, "compile")
    assert fit.worst.spare == (2_097_152 - 3_072_000) * 1024


def test_an_operator_over_vtcm_is_named() -> None:
    """A refusal for VTCM names the operator and its need."""
    fit = fit_failure(failure(OVER_VTCM))
    assert (fit.fits, fit.operator) == (False, "q::*InputSlice")
    assert fit.worst is not None
    assert fit.worst.spare == 4 * MIB - 67_108_864


@pytest.mark.parametrize(("kind", "code"), [("timeout", 4), ("crashed", 3), ("memory", 3)])
def test_an_accident_is_no_verdict(kind: str, code: int) -> None:
    """A compile that timed out, crashed or ran out of memory gives no verdict, whatever the log."""
    fit = fit_failure(failure(GRAPH_LIMIT, kind=kind))
    assert (fit.fits, fit_result((fit,), "").exit_code) == (None, code)


def test_no_beats_cannot_tell() -> None:
    """With several SoCs, one that does not fit makes the exit code 1, above an open verdict."""
    fits = [fit_bill(bill_of(context(const=size), SM8650), SM8650) for size in (0, 3600 * MIB)]
    unknown = structs.replace(fits[0], fits=None)
    assert [
        fit_result(fits, "").exit_code,
        fit_result((fits[0], unknown), "").exit_code,
        fit_result((fits[0],), "").exit_code,
    ] == [
        1,
        3,
        0,
    ]


# --- Nearby settings -----------------------------------------------------------------------------


def test_nearby_settings_follow_the_cause() -> None:
    """Over the compile limit, `fit` suggests smaller sizes, a larger SoC and fewer bits."""
    options = CompileOptions(dims={"batch": 3000, "one": 1})
    found = [flag(near.setting) for near in nearby(fit_failure(failure(GRAPH_LIMIT)), options)]
    assert found == [
        *("--dim batch=2048", "--dim batch=1500", "--soc SM8550", "--precision int8"),
    ]


def test_more_vtcm_is_near_when_less_was_asked_for() -> None:
    """If the user asked for less VTCM than the SoC has, the first suggestion is all of it."""
    fit = fit_failure(failure(OVER_VTCM))
    found = [flag(near.setting) for near in nearby(fit, CompileOptions(vtcm_mb=2))]
    assert found[0] == "--vtcm-mb 4"


@pytest.mark.parametrize(
    ("pool", "need", "limit", "sizes"),
    [
        *(("vtcm", 8, 4, ["4", "2"]), ("ram", 11, 9, ["6", "3"]), ("ram", 20, 2, ["4", "2"])),
        *(("pd", 11, 6, ["3", "1"]), ("pd", 11, 1, [])),
    ],
)
def test_less_vtcm_is_near_when_a_budget_is_broken(
    pool: str, need: int, limit: int, sizes: list[str]
) -> None:
    """Over a budget, `fit` suggests the VTCM within the budget, then half, and no other SoC."""
    soc = find_soc("SM8650")
    given = Sourced(limit << 20, Origin.GIVEN, "--budget")
    size = Sourced(need << 20, Origin.COMPUTED, "test")
    fit = Fit(soc, False, checks=(FitCheck.of(pool, SizeRange(size, size), given),))
    found = [near.setting for near in nearby(fit, CompileOptions())]
    assert [one.value for one in found if one.name == "vtcm_mb"] == sizes
    assert "soc" not in [one.name for one in found]
    text = render_text(
        fit_result((fit,), "m.onnx"), options=("--soc=SM8650", f"--budget={pool}={limit}M")
    )
    command = f"qnnmem fix m.onnx --backend htp --soc SM8650 --budget {pool}={limit}M -o fixed"
    assert text.endswith(f"next: search for a change that fits: {command}\n")
    assert "qnnmem fix changes only ONNX models" in render_text(fit_result((fit,), "m.dlc"))


def test_only_what_was_compiled_is_verified() -> None:
    """The first settings are compiled and marked verified or tried; others are only suggested."""
    asked = []

    def judge(soc: Soc, options: CompileOptions) -> Fit:
        asked.append((soc.name, dict(options.dims)))
        good = fit_bill(bill_of(context(), SM8650), SM8650)
        return (
            good if options.dims == {"batch": 1500} else structs.replace(good, fits=False, why="no")
        )

    options = CompileOptions(dims={"batch": 3000})
    fit = with_suggestions(fit_failure(failure(GRAPH_LIMIT)), options, judge, 2)
    assert asked == [("SM8350", {"batch": 2048}), ("SM8350", {"batch": 1500})]
    assert [flag(one.setting) for one in fit.suggestions if one.verified] == ["--dim batch=1500"]
    assert [flag(one.setting) for one in fit.tried] == ["--dim batch=2048"]
    assert len([one for one in fit.suggestions if not one.verified]) == 2


@pytest.mark.parametrize(("good", "compiled"), [("2", ["4", "2"]), ("4", ["4"])])
def test_less_of_what_fits_is_not_compiled(good: str, compiled: list[str]) -> None:
    """The largest VTCM within the budget is compiled first; a smaller one only if that fails."""
    asked = []

    def judge(soc: Soc, options: CompileOptions) -> Fit:
        asked.append(str(options.vtcm_mb) if options.vtcm_mb else options.precision.value)
        fits = asked[-1] == good
        return structs.replace(fit_bill(bill_of(context(), SM8650), SM8650), fits=fits)

    size = Sourced(8 << 20, Origin.COMPUTED, "test")
    check = FitCheck.of("vtcm", SizeRange(size, size), Sourced(4 << 20, Origin.GIVEN, "--budget"))
    fit = with_suggestions(
        Fit(find_soc("SM8650"), False, checks=(check,)), CompileOptions(), judge, 3
    )
    assert asked == [*compiled, "int8"]
    (found,) = (one for one in fit.suggestions if one.setting.name == "vtcm_mb")
    assert (found.verified, found.setting.value) == (True, good)


def test_what_was_tried_is_compiled_otherwise_by_a_whole_command() -> None:
    """A suggested command contains the tried setting, not the original one."""
    words = ("cannot; ", Setting("partition"), " leaves it to the CPU")
    options = CompileOptions(dims={"batch": 3000})

    def judge(soc: Soc, options: CompileOptions) -> Fit:
        return Fit(soc, None, why=words)

    fit = with_suggestions(fit_failure(failure(GRAPH_LIMIT)), options, judge, 3)
    flags = frozenset(flags_of(FitOptions))
    text = render_text(fit_result([explained(fit, Path("m.onnx"), options, flags)], "m.onnx"))
    line = "`qnnmem prepare m.onnx --backend htp --soc {} --dim batch={} --partition -o model.bin`"
    assert line.format("SM8350", 1500) in text
    assert line.format("SM8550", 3000) in text


@pytest.mark.parametrize("given", [600.0, 10.0])
def test_a_compile_that_is_broken_off_says_nothing_against_a_setting(given: float) -> None:
    """A trial that exceeds its own time limit is neither suggested nor counted as a failure."""
    patience = min(given, 22.0)  # the first compile took a second

    def judge(soc: Soc, options: CompileOptions) -> Fit:
        assert options.time_limit_s == pytest.approx(patience, abs=5)
        good = fit_bill(bill_of(context(), SM8650), SM8650)
        late = "batch" in options.dims and soc is SM8350
        return structs.replace(good, fits=None, why="allow more time", timed_out=late)

    options = CompileOptions(dims={"batch": 3000}, time_limit_s=given)
    fit = with_suggestions(fit_failure(failure(GRAPH_LIMIT)), options, judge, 3)
    assert [(flag(one.setting), one.verified) for one in fit.suggestions] == [
        ("--precision int8", False)
    ]
    assert [(flag(one.setting), one.state == "unfinished") for one in fit.tried] == [
        ("--dim batch=2048", True),
        ("--dim batch=1500", True),
        ("--soc SM8550", False),
    ]
    assert "too slow  --dim batch=2048: not finished within" in render_text(
        fit_result([fit], "a.onnx")
    )


def test_alike_socs_share_a_compile() -> None:
    """SoCs with the same architecture, VTCM, limit and FP16 support share one compile."""
    asked = []

    def judge(soc: Soc) -> Fit:
        asked.append(soc.name)
        return fit_bill(bill_of(context(), soc), soc)

    twin = structs.replace(SM8650, name="TWIN")
    fits = fit_all((SM8650, twin, SM8750), judge)
    assert asked == ["SM8650", "SM8750"]
    assert [(fit.soc.name, fit.same_as) for fit in fits][1] == ("TWIN", "SM8650")


# --- The real library ----------------------------------------------------------------------------

real = [
    pytest.mark.htp,
    pytest.mark.skipif(not has_library(), reason=f"the HTP library is not here; {INSTALL}"),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Return one worker for all compiles."""
    with Worker(warm=True) as one:
        yield one


def sliced(path: Path, rows: int | str, columns: int = 2048) -> Path:
    """Write a model that slices 8 of rows * columns floats: large IO and no computation."""
    limits = (("s", [0, 0]), ("e", [1, 8]), ("a", [1, 2]))
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 8])],
        [numpy_helper.from_array(numpy.array(v, numpy.int64), name) for name, v in limits],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize(("rows", "fits", "spare"), [(262_142, True, 0), (262_143, False, -8192)])
class TestCompileLimit:
    """The limit lies between two models that differ by one row of 8,192 bytes."""

    pytestmark = real

    def test_the_limit_is_exact(
        self, tmp_path: Path, worker: Worker, rows: int, fits: bool, spare: int
    ) -> None:
        """The smaller model compiles in the real library; the larger one is refused with 1002."""
        path = sliced(tmp_path / "model.onnx", rows)
        fit = judge_model(path, SM8350, CompileOptions(), {}, worker=worker)
        assert (fit.fits, fit.code) == (fits, None if fits else 1002)
        assert fit.checks[0].spare == spare
        assert fit.largest[0].name == "x"


@pytest.mark.parametrize(("rows", "fits"), [(444_361, True), (444_362, False)])
class TestProcessDomain:
    """The limit lies between two models that differ by one row, well below the compile limit."""

    pytestmark = real

    def test_the_loader_agrees(self, tmp_path: Path, worker: Worker, rows: int, fits: bool) -> None:
        """Both models compile for SM8650; the loader admits only the smaller one."""
        path = sliced(tmp_path / "model.onnx", rows)
        fit = judge_model(path, SM8650, CompileOptions(), {}, worker=worker)
        assert [check.fits for check in fit.checks] == [True, fits, True]
        assert fit.fits is fits


@pytest.mark.parametrize(("megabytes", "fits"), [(2, True), (64, False)])
class TestVtcm:
    """A concatenation whose inputs cannot be tiled."""

    pytestmark = real

    def test_an_operator_is_refused(
        self, tmp_path: Path, worker: Worker, megabytes: int, fits: bool
    ) -> None:
        """A small concatenation compiles; a large one is refused with the VTCM it would need."""
        shape = [1, megabytes * 32, 8192]
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)],
            "graph",
            [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "z")],
            [helper.make_tensor_value_info("y", kind, [1, megabytes * 64, 8192])],
        )
        opset = [helper.make_opsetid("", 17)]
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
        fit = judge_model(path, SM8350, CompileOptions(), {}, worker=worker)
        assert fit.fits is fits
        if not fits:
            assert (fit.worst and fit.worst.pool, fit.code) == ("vtcm", 1002)


def test_a_table_of_socs_says_its_tightest_limit_and_each_reason_once() -> None:
    """The table shows the tightest limit other than VTCM, and SoCs with one reason share a line."""

    def check(pool: str, need: int, limit: int) -> FitCheck:
        size = Sourced(need, Origin.MEASURED, "here")
        return FitCheck.of(pool, SizeRange(size, size), Sourced(limit, Origin.MEASURED, "here"))

    good = (check("vtcm", 8, 8), check("pd", 25, 100))
    fits = [
        Fit(find_soc("SM8650"), True, checks=good),
        Fit(find_soc("SM7325"), None, why="SM7325 does not", needs_int8=True),
        Fit(find_soc("SM7350"), None, why="SM7325 does not", same_as="SM7325", needs_int8=True),
        Fit(find_soc("SM8350"), None, why="no operator for SM8350"),
        Fit(find_soc("SM8550"), None, why="no operator for SM8550"),
    ]
    first, _file, _blank, title, *rows, _blank, int8, other = render_text(
        fit_result(fits, "m.onnx")
    ).splitlines()
    assert first == "fits 1 of 5 SoCs, needs int8 on 2, cannot tell for 2"
    assert title.split() == ["SoC", "answer", "tightest", "limit", "to", "spare", "of", "limit"]
    assert rows[0].split() == ["SM8650", "fits", "process", "domain", "75", "75.0%"]
    assert rows[1].split()[:3] == ["SM7325", "needs", "int8"]
    assert int8.startswith("needs int8 on SM7325, SM7350: this SoC has no FP16; --precision int8")
    assert other == "cannot tell on SM8350, SM8550: no operator for SM8350"
    assert [one["needs_int8"] for one in to_builtins(fit_result(fits, "m"))["socs"]] == [
        *(False, True, True, False, False)
    ]
