"""`qnnmem check-client`: a program that calls QNN, run under the contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import result_options
from qnnmem.cli.tool_flags import flag, one_of
from qnnmem.options.parsers import seconds
from qnnmem.units import parse_size

if TYPE_CHECKING:
    from qnnmem.lpai.profiles import Profile
    from qnnmem.results.programs import ClientFinding, ClientResult

_FORMS = ("text", "json", "sarif", "junit")


@click.command("check-client", context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@one_of("--mode", "adsp arm x86", "Who calls QNN.  [default: as the config says, else x86]")
@click.option("--config", type=click.Path(), metavar="FILE", help="Tool file, as net-run takes it.")
@click.option("--hw-ver", metavar="VERSION", help="LPAI hardware, e.g. v6.")
@one_of("--profile", "default conservative v4-era", "Alignment profile.", "default")
@flag("--lenient-scratch", "Misaligned scratch is a finding, not an error.")
@flag(
    "--continue-on-error",
    "Answer 0 where a device would not notice, so that the program goes on.",
)
@click.option(
    "--suppress",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Known findings: RULE [CALL [FILE:LINE]] on each line.",
)
@click.option(
    "--time-limit",
    type=seconds,
    metavar="SECONDS",
    help="End the program after so long.  [default: never]",
)
@click.option(
    "--memory-limit",
    type=parse_size,
    metavar="SIZE",
    help="Address space for what is executed.  [default: 3/4 of the machine]",
)
@result_options("qnnmem.check-client/1", _FORMS)
def check_client(
    command: tuple[str, ...],
    mode: str | None,
    config: str | None,
    hw_ver: str | None,
    profile: str,
    lenient_scratch: bool,
    continue_on_error: bool,
    suppress: tuple[str, ...],
    time_limit: float | None,
    memory_limit: int | None,
    form: str,
    output: str | None,
    force: bool,
) -> int:
    """Run a program with our libQnnLpai.so and libQnnSystem.so, and say which rules it breaks.

    COMMAND is the program with its words, behind `--`. It is neither changed nor compiled again;
    compiled with -g it makes findings name files and lines. Its context binary is one of `qnnmem
    prepare`, and what it executes is computed as `qnnmem net-run` does.

    Every broken rule is said at once on standard error, and with call stacks in the result. What
    the program prints goes through; where the result goes to the terminal as JSON, SARIF or JUnit,
    it goes to standard error.

    Needs Linux and a C compiler.

    Exit codes: 0 clean, 1 findings, 2 cannot be run or never called QNN, 3 calls that were not
    checked; a clean program's own where that is not 0, be it 1 or another: the last line says so,
    and `passes` of the JSON.
    """
    from qnnmem.cli.output import check_free, write
    from qnnmem.programs.check.client_run import ClientOptions, check_client
    from qnnmem.programs.check.client_session import ExecutionLimits
    from qnnmem.programs.check.findings import read_suppressions

    target = None if output is None else Path(output)
    if target is not None:
        check_free(target, force)
    known = tuple(one for path in suppress for one in read_suppressions(Path(path)))
    options = ClientOptions(
        command,
        _platform(mode, config, hw_ver, profile, lenient_scratch or continue_on_error),
        continue_on_error,
        known,
        time_limit,
        ExecutionLimits(memory=memory_limit),
        to_stderr=target is None and form != "text",
    )
    report = check_client(options, _say)
    write(_render(report, form), target, force, report.verdict)
    return report.verb_code


def _platform(
    mode: str | None, config: str | None, version: str | None, alignment: str, lenient: bool
) -> Profile:
    from qnnmem.lpai.config.settings import read_run_config
    from qnnmem.lpai.profiles import profile

    if config is not None:
        lpai = read_run_config(Path(config)).lpai
        if lpai.file is not None:
            mode, version = mode or lpai.target_env, version or lpai.hw_version
    return profile(mode or "x86", version or "v6", alignment, lenient)


def _say(one: ClientFinding) -> None:
    from qnnmem.cli.stderr import note
    from qnnmem.report.check_client import headline

    note(f"qnnmem: {headline(one)}")


def _render(report: ClientResult, form: str) -> str:
    from qnnmem.report import check_client
    from qnnmem.results.schema import encode

    if form == "json":
        return encode(report)
    if form == "sarif":
        return check_client.render_sarif(report)
    if form == "junit":
        return check_client.render_junit(report)
    return check_client.render_text(report)
