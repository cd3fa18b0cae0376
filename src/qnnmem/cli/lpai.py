"""`qnnmem lpai`: the LPAI memory contract: rules, choices, self-test, and a C client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.atomic_file import shown
from qnnmem.cli.help import VerbGroup
from qnnmem.cli.options import printed, shows, takes
from qnnmem.errors import UsageError
from qnnmem.options.config import ExportOptions, HeadersOptions
from qnnmem.results.files import written_result
from qnnmem.results.schema import encode

if TYPE_CHECKING:
    from qnnmem.cli.output import Output
    from qnnmem.results.lpai import Rule


@click.group(cls=VerbGroup)
def lpai() -> None:
    """Explain the LPAI memory contract, test it, and write a C client."""


@lpai.command("choices")
@shows("qnnmem.lpai-choices/1")
def choices_command(output: Output) -> None:
    """List the choices that qnnmem makes where public documents are silent.

    Each choice is shown with its reason and the way to change it.

    Exit codes: 0 listed, 2 bad usage.
    """
    from qnnmem.lpai.profiles import choices
    from qnnmem.report.lpai import choices_text, with_options
    from qnnmem.results.lpai import ChoicesResult

    listed = tuple(map(with_options, choices().values()))
    output.show(ChoicesResult(choices=listed), lambda: choices_text(listed))


@lpai.command("rules")
@click.argument("rule_id", required=False, metavar="[ID]")
@shows("qnnmem.lpai-rules/1")
def rules_command(rule_id: str | None, output: Output) -> None:
    """List the rules of the contract, or explain one of them.

    ID is the id of a rule, such as R3.

    Exit codes: 0 shown, 2 no such rule.
    """
    from qnnmem.contract.rules import rules
    from qnnmem.report.lpai import rule_text, rules_text
    from qnnmem.results.lpai import RulesResult

    chosen = tuple(rules().values()) if rule_id is None else (_rule(rule_id),)
    text = rules_text(chosen) if rule_id is None else rule_text(chosen[0])
    output.show(RulesResult(rules=chosen), lambda: text)


@lpai.command("selftest")
@shows("qnnmem.lpai-selftest/1")
def selftest_command(output: Output) -> int:
    """Follow and then break every rule, and check that the runtime reports each mistake.

    Needs no files and no network. Exit codes: 0 the runtime behaves as expected, 1 it does not.
    """
    from qnnmem.lpai.selftest import cases, run_cases
    from qnnmem.report.lpai import selftest_text
    from qnnmem.results.lpai import SelftestResult

    results = run_cases(cases())
    output.show(SelftestResult(rules=results), lambda: selftest_text(results))
    return 0 if all(rule.as_expected for rule in results) else 1


def _rule(rule_id: str) -> Rule:
    from qnnmem.contract.rules import LPAI, PROGRAM, rules

    about_programs = rules(PROGRAM).get(rule_id.upper())
    if about_programs is not None:
        raise UsageError(
            f"{about_programs.id} is not a rule of the LPAI contract; `qnnmem check-client` checks "
            f"programs for it: {about_programs.title.rstrip('.')}",
            cure=about_programs.cure,
        )
    rule = rules(LPAI).get(rule_id.upper())
    if rule is None:
        raise UsageError(f"'{rule_id[:40]}' is not a rule; `qnnmem lpai rules` lists all of them")
    return rule


@lpai.command("export-c")
@click.argument("file", type=click.Path(), metavar="PLAN|BIN")
@takes(ExportOptions)
@shows("qnnmem.written/1", by_suffix=False)
def export_c(file: str, options: ExportOptions, output: Output) -> None:
    """Write a complete C client for the model in PLAN or BIN.

    BIN is a context binary that `qnnmem prepare` made for LPAI. PLAN is the JSON of `qnnmem plan`;
    if it was planned with `--together`, all graphs get one scratch. The client queries every size,
    allocates aligned memory, passes it to QNN, finalizes, executes and frees everything in the
    right order. It compiles as C11 and C++17 with the headers of the QNN SDK or of `qnnmem lpai
    headers`; with --standalone, it needs no headers. It compares the planned sizes with the sizes
    that the backend reports.

    Exit codes: 0 written, 2 bad usage or unreadable input.
    """
    from qnnmem.lpai.client_plan import read_client_plan
    from qnnmem.programs.c_headers import declarations
    from qnnmem.report.c_source import render_client
    from qnnmem.results.result import TOOL

    if output.is_json and output.path is None:
        raise UsageError("--json prints the name of the written file, so it needs -o FILE")
    plan, in_scratch = read_client_plan(Path(file)), options.io == "scratch"
    inside = declarations() if options.standalone else None
    output.write(render_client(plan, TOOL, io_in_scratch=in_scratch, declarations=inside))
    if output.is_json and output.path is not None:
        output.to_terminal().write(encode(written_result("lpai export-c", [output.path])))


@lpai.command("headers")
@takes(HeadersOptions)
@printed("qnnmem.written/1")
def headers_command(options: HeadersOptions, output: Output) -> None:
    """Write declarations of QNN's C interface, to compile an LPAI client without an SDK.

    The files have the SDK's names, so that includes work unchanged. A folder with headers of an SDK
    is refused. The declarations are qnnmem's own, under its licence. The libraries of --lib are for
    linking: the program then runs under `qnnmem check-client`, or on a device with the device's
    libraries.

    Exit codes: 0 written, 2 bad usage, or the folder contains other headers.
    """
    from qnnmem.programs.c_headers import write_headers, write_libraries

    folder = Path(options.output)
    written = write_headers(folder, force=options.force)
    if options.lib is not None:
        written += write_libraries(Path(options.lib), folder, force=options.force)
    if output.is_json:
        output.write(encode(written_result("lpai headers", written)))
        return
    flags = f"-I{options.output}"
    if options.lib is not None:
        flags += f" CLIENT.c -L{options.lib} -lQnnLpai -lQnnSystem"
    output.write(f"Wrote {len(written)} files to {shown(folder)}\ncompile with: cc -g {flags}\n")
