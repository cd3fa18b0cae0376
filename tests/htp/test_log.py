from __future__ import annotations

from pathlib import Path

import pytest

from qnnmem.htp.log import Cause, CompileLog, DdrTraffic, LogLine, host_memory, parse_log, read_line

LOGS = Path(__file__).parent / "logs"
MIB = 1 << 20


def read(name: str) -> CompileLog:
    """Parse a stored excerpt of a real log."""
    return parse_log((LOGS / name).read_text("utf-8").splitlines())


def test_a_compile_log_gives_version_and_limits() -> None:
    """A compile log states the library build, the VTCM in use and the SoC's limit for one graph."""
    log = read("compile-silero-sm8650.log")
    assert log.library_version == "v2.51.0.260929181845"
    assert (log.vtcm_size, log.memory_alloc_limit) == (8 * MIB, 3584 * MIB)
    assert dict(log.options)["soc_type"] == "SM8650"


def test_a_compile_log_gives_the_traffic_of_each_graph() -> None:
    """A compile log states the bytes spilled, filled, read and written per inference."""
    log = read("compile-nudenet-vtcm1-sm8650.log")
    assert log.total_traffic == DdrTraffic(8_892_416, 10_049_536, 9_865_216, 19_335_168)


def test_a_compile_log_gives_the_ram_summary() -> None:
    """A compile log states the sizes that the binary stores."""
    (ram,) = read("compile-silero-sm8650.log").ram_summary
    assert (ram.spill_fill, ram.io, ram.op_data, ram.const) == (0, 32_768, 26_880, 716_800)
    assert (ram.ddr_tensors, ram.shared_weights, ram.safe_share_io) == (0, 0, False)


@pytest.mark.parametrize("name", ["compile-silero-sm8650.log", "compile-nudenet-vtcm1-sm8650.log"])
def test_a_healthy_log_has_no_refusal(name: str) -> None:
    """Error lines that every successful run prints are not a cause."""
    log = read(name)
    assert log.refusals == ()
    assert log.codes == ()


def test_a_graph_over_the_limit_says_by_how_much() -> None:
    """The line about the graph limit states need and limit; the code 1002 states neither."""
    log = read("graph-limit-sm8350.log")
    assert log.cause is not None
    assert log.cause.cause is Cause.GRAPH_LIMIT
    assert (log.cause.need, log.cause.limit) == (2_097_160 << 10, 2_097_152 << 10)
    assert set(log.codes) == {1002}


def test_a_pool_that_cannot_be_addressed_is_a_graph_limit_too() -> None:
    """A DDR pool above 4 GiB is reported as a graph limit, with its need but no limit."""
    cause = read("ddr-pool-sm8350.log").cause
    assert cause is not None
    assert (cause.cause, cause.need, cause.limit) == (Cause.GRAPH_LIMIT, 4_378_853_888, None)


def test_an_operator_over_vtcm_is_named() -> None:
    """The line about tiling names the operator and its bytes."""
    cause = read("op-over-vtcm-sm8350.log").cause
    assert cause is not None
    assert (cause.cause, cause.need) == (Cause.OP_OVER_VTCM, 1_179_648_000)
    assert cause.operator == "q::*InputSlice"


@pytest.mark.parametrize("name", ["host-memory-threads.log", "host-memory-alloc.log"])
def test_host_memory_is_recognised(name: str) -> None:
    """A thread or block that the host cannot provide is a host memory failure, not an SoC limit."""
    lines = [read_line(line) for line in (LOGS / name).read_text("utf-8").splitlines()]
    assert host_memory(lines)
    cause = parse_log(lines).cause
    assert cause is not None
    assert cause.cause is Cause.HOST_MEMORY


def test_an_unknown_soc_is_recognised() -> None:
    """A complaint about the device has the cause BAD_DEVICE."""
    cause = read("bad-device.log").cause
    assert cause is not None
    assert cause.cause is Cause.BAD_DEVICE


def test_a_load_log_gives_the_estimate_of_each_context() -> None:
    """Estimates keep their load order, also if a refused context passes its number to the next."""
    estimates = read("load-pd-full-sm8350.log").pd_estimates
    assert [item.context for item in estimates] == [1, 2, 3, 3]
    assert [item.admitted for item in estimates] == [True, True, False, False]
    assert [item.total for item in estimates] == [
        *(2_146_144_000, 10_576_384),
        *(2_146_144_000, 2_146_144_000),
    ]


def test_the_parts_of_an_estimate_add_up() -> None:
    """The weights, IO, run list, spill/fill and VTCM of an estimate add up to its total."""
    for estimate in read("load-pd-full-sm8350.log").pd_estimates:
        (graph,) = estimate.graphs
        assert graph.vtcm is not None
        parts = graph.weights + graph.io + graph.runlist + graph.spill_fill + graph.vtcm
        assert parts == estimate.total


def test_a_refused_load_shows_the_budget() -> None:
    """The bytes left and the bytes admitted add up to the budget of a process domain."""
    estimates = read("load-pd-full-sm8350.log").pd_estimates
    admitted = sum(item.total or 0 for item in estimates if item.admitted)
    assert {(item.available or 0) + admitted for item in estimates if not item.admitted} == {
        3_650_722_201
    }


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b" <E> Unknown config socModel 0", LogLine("Unknown config socModel 0", "E")),
        (b" <V> <V> twice", LogLine("twice", "V")),
        (b"x.cc:1::ERROR:no", LogLine("x.cc:1::ERROR:no", "E")),
        (
            b"2026-11-15 17:36:04.370769520 [V:onnxruntime:Default, a.cc:519 Log]  <I> done",
            LogLine("done", "I"),
        ),
        (
            b"\x1b[1;31m2026-11-15 17:36:04.3 [E:onnxruntime:, a.cc:1 F] bad\x1b[m",
            LogLine("bad", "E"),
        ),
        (b"\xff\xfe", LogLine("\N{REPLACEMENT CHARACTER}" * 2)),
    ],
)
def test_a_line_is_freed_of_what_loggers_put_around_it(raw: bytes, line: LogLine) -> None:
    """Time, source file, colours and repeated levels are removed; text and level remain."""
    assert read_line(raw) == line


def test_an_incomplete_summary_is_left_out() -> None:
    """A log that ends inside a traffic summary gives no traffic."""
    assert parse_log(["spill_bytes=1", "fill_bytes=2"]).traffic == ()


def test_an_empty_log_says_nothing() -> None:
    """An empty log gives None for every fact, not zero."""
    log = parse_log([])
    assert (log.vtcm_size, log.total_traffic, log.cause) == (None,) * 3
