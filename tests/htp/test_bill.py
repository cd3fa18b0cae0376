"""The memory bill: every sum, the true VTCM, and the facts that a log adds."""

from __future__ import annotations

import pytest
from context_writer import example_context as context
from context_writer import example_graph as graph
from context_writer import example_tensor as tensor
from context_writer import old_context, old_graph
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from qnnmem.htp.bill import bill_of
from qnnmem.htp.fit import fit_bill
from qnnmem.htp.log import CompileLog, DdrTraffic, PdEstimate, PdGraph
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.enums import DataType
from qnnmem.report import bill as report
from qnnmem.results.footprint import Bill
from qnnmem.results.schema import encode, load_schema
from qnnmem.targets.socs import find_soc
from qnnmem.units import round_up

MIB = 1 << 20


def value(part: Sourced | None) -> int:
    """Return the number of a known part."""
    assert part is not None
    return part.value


def traps(bill: Bill) -> set[str]:
    """Return the ids of a bill's traps."""
    return {trap.id for trap in bill.traps}


def test_the_total_is_the_vendors_formula() -> None:
    """The total adds op data, weights, DDR tensors, spill/fill, IO and VTCM once each."""
    bill = bill_of(context())
    assert value(bill.total) == 4_608 + 3_000_000 + 8_192 + 65_536 + 16_384 + 8 * MIB
    assert bill.dominant == "VTCM"
    assert sum(value(part) for _, part in bill.named_parts) == value(bill.total)


def test_the_compile_estimate_leaves_op_data_out() -> None:
    """The compile estimate of a graph adds weights, IO, DDR tensors and spill/fill, not op data."""
    bill = bill_of(context())
    assert value(bill.compile_estimate) == 3_000_000 + 16_384 + 8_192 + 65_536
    assert value(bill.compile_limit) == 3584 * MIB


def test_the_process_domain_is_a_range_without_a_log() -> None:
    """Without a log, the process domain is a range: the run list is estimated, not read."""
    pd = bill_of(context()).process_domain
    assert pd is not None
    base = 4 * MIB + 16_384 + 8_192 + 65_536 + 8 * MIB
    assert (pd.low.value, pd.high.value) == (base + 5_346, base + 8_295 + 32_768)
    assert not pd.is_exact


def test_shared_weights_count_once() -> None:
    """Each graph states the shared pool of the context; the bill counts the pool once."""
    graphs = [graph(name, shared_weights=100 * MIB, const=0) for name in "abc"]
    bill = bill_of(context(*graphs))
    assert value(bill.shared_weights) == 100 * MIB
    apart = sum(value(g.total) - value(g.vtcm) for g in bill.graphs)
    assert value(bill.total) == 100 * MIB + apart + value(bill.vtcm)
    assert "many-graphs" in traps(bill)


def test_vtcm_counts_once_for_all_graphs() -> None:
    """Ten graphs share 8 MiB of VTCM in turn, but the loader reserves VTCM for each graph."""
    graphs = [graph(str(number), vtcm=4 * MIB) for number in range(10)]
    bill = bill_of(context(*graphs))
    assert (value(bill.vtcm), value(bill.vtcm_stored)) == (8 * MIB, 4 * MIB)
    assert dict(bill.named_parts)["VTCM"] == bill.vtcm
    assert sum(value(part) for _, part in bill.named_parts) == value(bill.total)
    assert bill.process_domain is not None
    assert bill.process_domain.low.value > 10 * 8 * MIB


@pytest.mark.parametrize(
    ("shared", "own", "io", "op_data", "library"),
    [
        # Real pairs of graphs with shared weights, loaded by onnxruntime-qnn 2.7.0 for SM8650.
        (4_198_400, (768, 768), (16_384, 1_048_576), (17_408, 33_792), 28_432_128),
        (4_198_400, (131_840, 131_072), (16_384, 557_056), (17_920, 30_720), 27_938_048),
    ],
)
def test_the_process_domain_of_shared_weights_holds_the_librarys_value(
    shared: int, own: tuple[int, ...], io: tuple[int, ...], op_data: tuple[int, ...], library: int
) -> None:
    """The range of the process domain contains the value of the library, within 0.3 %."""
    graphs = [
        graph(str(n), const=own[n], io=io[n], op_data=op_data[n], ddr_tensors=0, spill_fill=0)
        for n in range(2)
    ]
    bill = bill_of(context(*(structs.replace(one, shared_weights=shared) for one in graphs)))
    assert bill.process_domain is not None
    assert (
        bill.process_domain.low.value
        <= library
        <= bill.process_domain.high.value
        <= library * 1.003
    )


def test_shared_weights_count_against_the_compile_limit_and_a_budget() -> None:
    """A graph with 1 KiB of its own and 100 MiB of shared weights needs both."""
    graphs = [graph(name, shared_weights=100 * MIB, const=1024) for name in "ab"]
    bill = bill_of(context(*graphs))
    assert value(bill.compile_estimate) > 100 * MIB
    budgets = {"weights": Sourced(MIB, Origin.GIVEN, "test")}
    assert fit_bill(bill, find_soc("SM8650"), budgets).fits is False


def test_the_compile_estimate_is_that_of_the_largest_graph() -> None:
    """The compile estimate of a context is the estimate of its largest graph."""
    bill = bill_of(context(graph("small", const=0), graph("large", const=50 * MIB)))
    assert bill.compile_estimate == bill.graphs[1].compile_estimate


def test_several_graphs_need_the_sum() -> None:
    """The process domain of a context is the sum over its graphs."""
    bill = bill_of(context(graph("a"), graph("b", const=50 * MIB)))
    first, second = (g.process_domain for g in bill.graphs)
    assert bill.process_domain is not None
    assert first is not None
    assert second is not None
    assert bill.process_domain.low.value == first.low.value + second.low.value
    assert bill.process_domain.high.value == first.high.value + second.high.value


# --- VTCM ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "soc", "true", "trap"),
    [
        (4, "SM8650", 8, {"vtcm-unset"}),
        (4, "SM7325", 8, {"vtcm-unset", "other-soc", "older-hexagon", "vtcm-over"}),
        (4, "SA8797", 8, {"vtcm-unset", "other-soc"}),
        (4, "SM8635", 8, {"vtcm-unset", "other-soc", "older-hexagon", "vtcm-over"}),
        (8, "SM8650", 8, set()),
        (2, "SM8650", 2, set()),
        (16, "SM8650", 16, {"vtcm-over"}),
    ],
)
def test_vtcm_is_what_the_graph_uses(stored: int, soc: str, true: int, trap: set[str]) -> None:
    """A stored 4 MiB may mean an unset option; the bill then counts all VTCM of the SoC."""
    bill = bill_of(context(graph(vtcm=stored * MIB)), find_soc(soc))
    assert (value(bill.vtcm_stored), value(bill.vtcm)) == (stored * MIB, true * MIB)
    assert traps(bill) == trap


def test_the_log_knows_the_true_vtcm() -> None:
    """The VTCM size in a compile log replaces the assumption about an unset option."""
    bill = bill_of(context(graph(vtcm=4 * MIB)), log=CompileLog("v2.51", vtcm_size=4 * MIB))
    assert (value(bill.vtcm), traps(bill)) == (4 * MIB, set())


def test_the_loader_knows_the_true_vtcm_too() -> None:
    """A load log states the VTCM reserved for each graph, and the bill uses that number."""
    parts = PdGraph("graph", 4 * MIB, 16_384, 7_777, 65_536, 8 * MIB)
    log = CompileLog("v2.51", pd_estimates=(PdEstimate(1, None, (parts,)),))
    bill = bill_of(context(graph(vtcm=4 * MIB)), log=log)
    assert (value(bill.vtcm), traps(bill)) == (8 * MIB, set())
    assert bill.process_domain is not None
    assert bill.process_domain.is_exact


# --- Missing from the file ----------------------------------------------------------------------


def test_files_of_old_sdks_have_no_total() -> None:
    """A file of an old SDK has no weights and no total; IO is computed from the shapes."""
    bill = bill_of(old_context())
    assert (bill.total, bill.weights, bill.process_domain, bill.compile_estimate) == (None,) * 4
    assert bill.io == Sourced(2 * 8192, Origin.COMPUTED, bill.io.source if bill.io else "")
    assert {"no-sizes", "no-soc"} <= traps(bill)


def test_an_unknown_data_type_leaves_exact_io_open() -> None:
    """A tensor of unknown element size leaves the exact IO unknown instead of counting as zero."""
    odd = graph(inputs=(tensor("x", 1, data_type=DataType.UNDEFINED),))
    bill = bill_of(context(odd))
    assert (bill.io_exact, "unknown-type" in traps(bill)) == (None, True)


def test_io_is_given_stored_and_exact() -> None:
    """The file rounds each tensor up to 8,192 bytes; the tensors themselves have 16,000."""
    bill = bill_of(context())
    assert (value(bill.io), value(bill.io_exact)) == (16_384, 16_000)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=5))
def test_computed_io_follows_the_measured_rule(sizes: list[int]) -> None:
    """If the file states no IO, the bill adds the tensors, each rounded up to 8,192 bytes."""
    tensors = tuple(tensor(f"t{n}", n, dimensions=(size,)) for n, size in enumerate(sizes))
    bill = bill_of(old_context(old_graph(inputs=tensors, outputs=())))
    assert value(bill.io) == sum(round_up(size, 8192) for size in sizes)


def test_the_largest_tensors_come_first() -> None:
    """The bill names at most ten tensors, the largest first."""
    tensors = tuple(tensor(f"t{n}", n, dimensions=(n + 1,)) for n in range(20))
    bill = bill_of(context(graph(inputs=tensors, outputs=())))
    assert [item.name for item in bill.largest_io] == [f"t{n}" for n in range(19, 9, -1)]


# --- What a log adds -----------------------------------------------------------------------------


def test_a_load_log_makes_the_process_domain_exact() -> None:
    """The estimate in a load log becomes the exact process domain, with the library as source."""
    parts = PdGraph("graph", 4 * MIB, 16_384, 7_777, 65_536, 8 * MIB)
    log = CompileLog("v2.51.0", pd_estimates=(PdEstimate(1, 12_345_678, (parts,)),))
    bill = bill_of(context(), log=log)
    assert bill.process_domain is not None
    assert (bill.process_domain.is_exact, bill.process_domain.low.value) == (True, 12_345_678)
    assert (bill.process_domain.low.origin, bill.process_domain.low.source) == (
        Origin.MEASURED,
        "log of QAIRT v2.51.0",
    )
    assert bill.graphs[0].process_domain is not None
    assert bill.graphs[0].process_domain.low.value == 4 * MIB + 16_384 + 7_777 + 65_536 + 8 * MIB


def test_a_compile_log_gives_traffic_and_limit() -> None:
    """Only a compile log gives DDR traffic and the memory limit; the caller gives the host RAM."""
    log = CompileLog("v2.51.0", memory_alloc_limit=2048 * MIB, traffic=(DdrTraffic(1, 2, 30, 40),))
    bill = bill_of(context(), log=log, host_ram=500)
    found = (
        bill.ddr_read_per_inference,
        bill.ddr_written_per_inference,
        bill.compile_limit,
        bill.host_ram,
    )
    assert [value(part) for part in found] == [40, 30, 2048 * MIB, 500]
    assert bill_of(context()).ddr_read_per_inference is None


# --- Rendering -----------------------------------------------------------------------------------


def bills() -> list[Bill]:
    """Return bills of every kind."""
    logged = CompileLog("v2.51.0", traffic=(DdrTraffic(1, 2, 30, 40),))
    return [
        bill_of(context()),
        bill_of(context(graph("a"), graph("b")), find_soc("SM8750")),
        bill_of(context(graph("\x1b[31m<script>", inputs=(tensor("\n\0", 1),)))),
        bill_of(old_context()),
        bill_of(context(), log=logged, host_ram=1 << 30),
        bill_of(structs.replace(context(), graphs=())),
    ]


@pytest.mark.parametrize("bill", bills())
def test_the_json_keeps_to_its_schema(bill: Bill) -> None:
    """Every bill satisfies the shipped JSON schema."""
    import json

    import jsonschema

    values = json.loads(encode(bill))
    jsonschema.Draft202012Validator(load_schema("qnnmem.footprint/1")).validate(values)


@pytest.mark.parametrize("bill", bills())
def test_the_text_is_safe_to_print(bill: Bill) -> None:
    """Names from files cannot move the cursor or end a line."""
    text = report.render_text(structs.replace(bill, file="a\x1b.bin"))
    assert text.replace("\n", "").isprintable()


def test_the_first_line_is_the_verdict() -> None:
    """The first line names the total, the SoC and the largest part, or why no total is known."""
    first = report.render_text(bill_of(context())).splitlines()[0]
    assert first == "11,483,328 bytes (10.95 MiB) of memory on SM8650; VTCM is 73% of it"
    old = report.render_text(bill_of(old_context())).splitlines()[0]
    assert old.startswith("total not known: the file does not state weights")
