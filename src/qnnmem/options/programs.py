"""Options of the verbs that run a program: check-client and watch."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt, Options
from qnnmem.units import Bytes


class CheckClientOptions(Options, frozen=True, kw_only=True):
    """Platform that a client runs on, and the known findings to leave out of the result."""

    mode: Annotated[
        str | None,
        Opt(
            "--mode",
            "Processor that runs the program.",
            choices=("adsp", "arm", "x86"),
            default="taken from the config file, else x86",
        ),
    ] = None
    config: Annotated[
        str | None,
        Opt(
            "--config",
            "Config file that names the backend's config file, as for net-run.",
            metavar="FILE",
            is_file=True,
        ),
    ] = None
    hw_ver: Annotated[
        str | None, Opt("--hw-ver", "LPAI hardware version, e.g. v6.", metavar="VERSION")
    ] = None
    profile: Annotated[
        str, Opt("--profile", "Alignment profile.", choices=("default", "conservative", "v4-era"))
    ] = "default"
    lenient_scratch: Annotated[
        bool, Opt("--lenient-scratch", "Report misaligned scratch as a finding, not an error.")
    ] = False
    own_scratch: Annotated[
        bool,
        Opt(
            "--own-scratch",
            "Report graphs that share scratch as a finding, even if they run one after another.",
        ),
    ] = False
    continue_on_error: Annotated[
        bool,
        Opt(
            "--continue-on-error",
            "Return 0 for mistakes that a device would not notice, so that the program continues.",
        ),
    ] = False
    binary_info: Annotated[
        str,
        Opt(
            "--binary-info",
            "BinaryInfo version that the system library returns; auto: 1, or 3 for getMetaData.",
            choices=("auto", "1", "2", "3"),
        ),
    ] = "auto"
    trace_state: Annotated[
        bool,
        Opt(
            "--trace-state",
            "Also find the lines that use an output too early or write to persistent memory "
            "(slower).",
        ),
    ] = False
    suppress: Annotated[
        tuple[str, ...],
        Opt(
            "--suppress",
            "File with known findings, one per line: RULE [CALL [FILE:LINE]].",
            metavar="FILE",
            is_file=True,
        ),
    ] = ()
    time_limit: Annotated[
        float | None,
        shared.TIME_LIMIT.but(
            "Kill the program after this time.", metavar="SECONDS", default="never"
        ),
    ] = None
    memory_limit: Annotated[
        Bytes | None,
        shared.MEMORY_LIMIT.but(
            "Address space limit of the process that executes graphs.", is_advanced=False
        ),
    ] = None


class WatchProgramOptions(Options, frozen=True, kw_only=True):
    """Which of the program's calls fail on purpose, and the program's time limit."""

    fail: Annotated[
        tuple[str, ...],
        Opt(
            "--fail",
            "Make calls of FUNCTION fail: all, the Nth, or those with more than SIZE bytes.",
            metavar="FUNCTION[#N][>SIZE]=CODE",
        ),
    ] = ()
    fail_each: Annotated[
        str | None,
        Opt(
            "--fail-each",
            "Run the program once for each call of FUNCTION, and make that call fail.",
            metavar="FUNCTION[=CODE]",
        ),
    ] = None
    serialise: Annotated[
        bool,
        Opt(
            "--serialise",
            "Run the program normally, then with one QNN call at a time, and compare the runs.",
        ),
    ] = False
    most_runs: Annotated[
        int,
        Opt(
            "--most-runs",
            "With --fail-each: make at most N calls fail.",
            metavar="N",
            ge=1,
            le=10_000,
        ),
    ] = 50
    time_limit: Annotated[
        float | None,
        shared.TIME_LIMIT.but(
            "Kill the program after this time.",
            metavar="SECONDS",
            default="never; with --fail-each, 5 times the duration of the normal run",
        ),
    ] = None
    read: Annotated[
        str | None, Opt("--read", "Show a saved trace; run nothing.", metavar="TRACE", is_file=True)
    ] = None
