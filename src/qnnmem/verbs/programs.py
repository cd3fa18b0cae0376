"""Verbs `check-client` and `watch`: run programs under the contract, and read traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from qnnmem.htp.binary.read import context_from_bytes
from qnnmem.lpai.config.settings import read_run_config
from qnnmem.lpai.profiles import profile
from qnnmem.programs.check.client_run import ClientOptions, check_client
from qnnmem.programs.check.client_session import ExecutionLimits
from qnnmem.programs.check.findings import read_suppressions
from qnnmem.programs.watch.summary import summarize, with_diagnoses
from qnnmem.programs.watch.trace import read_trace
from qnnmem.verbs.refusal import reading_of

if TYPE_CHECKING:
    from qnnmem.lpai.profiles import Profile
    from qnnmem.options.programs import CheckClientOptions
    from qnnmem.qnn.tensor import TensorInfo
    from qnnmem.results.programs import ClientFinding, ClientResult, WatchResult

_MAX_DIAGNOSES = 20


def check_program(
    command: tuple[str, ...],
    options: CheckClientOptions,
    say: Callable[[ClientFinding], None],
    *,
    to_stderr: bool,
) -> ClientResult:
    """Run a program under the contract; pass each new finding to `say` immediately."""
    known = tuple(chain.from_iterable(map(read_suppressions, map(Path, options.suppress))))
    program = ClientOptions(
        command,
        _platform(options),
        options.continue_on_error,
        known,
        options.time_limit,
        ExecutionLimits(memory=options.memory_limit),
        to_stderr=to_stderr,
        binary_info=0 if options.binary_info == "auto" else int(options.binary_info),
        trace_state=options.trace_state,
    )
    return check_client(program, say)


def _platform(options: CheckClientOptions) -> Profile:
    """Return the platform of the options, else of the config file, else x86 with hardware v6."""
    mode, version = options.mode, options.hw_ver
    if options.config is not None:
        lpai = read_run_config(Path(options.config)).lpai
        if lpai.file is not None:
            mode, version = mode or lpai.target_env, version or lpai.hw_version
    lenient = options.lenient_scratch or options.continue_on_error
    shared = not options.own_scratch
    return profile(mode or "x86", version or "v6", options.profile, lenient, shared_scratch=shared)


def read_watched(trace: Path) -> WatchResult:
    """Return the report of a trace, with the doctor's diagnoses of failed calls."""
    report = summarize(read_trace(trace), trace)
    return with_diagnoses(report, _diagnoses(report))


def binary_tensors(data: bytes) -> Mapping[str, Iterable[TensorInfo]]:
    """Return the inputs and outputs of each graph in an HTP context binary."""
    return {graph.name: graph.tensors for graph in context_from_bytes(data, "binary").graphs}


def watch_exit_code(report: WatchResult, *, is_run: bool) -> int:
    """Return 2 if nothing called QNN, 1 for findings, 3 for unwatched calls.

    Otherwise, return the exit code of the program.
    """
    # The exit code in a trace belongs to an earlier run.
    return 0 if report.passes and not is_run else report.verb_code


def _diagnoses(report: WatchResult) -> Iterator[str]:
    """Yield the doctor's diagnosis of each failed call from its log; empty if there is none."""
    known: dict[tuple[str, ...], str] = {}
    for call in report.failed_calls:
        lines = tuple(line.text for line in call.log) if call.finding else ()
        if lines and lines not in known and len(known) < _MAX_DIAGNOSES:
            known[lines] = reading_of(lines)
        yield known.get(lines, "")
