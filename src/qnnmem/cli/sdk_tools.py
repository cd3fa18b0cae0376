"""`qnnmem net-run` and `context-binary-generator`: replacements for the SDK's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qnnmem.cli.options import answered, takes
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import verb_call
from qnnmem.options.sdk_tools import (
    GENERATOR_IGNORED,
    GENERATOR_REFUSED,
    NET_RUN_IGNORED,
    NET_RUN_REFUSED,
    GeneratorOptions,
    NetRunOptions,
)
from qnnmem.text import shorten

if TYPE_CHECKING:
    from qnnmem.lpai.net_run.log import Console

_LONGEST = 4000  # characters of a line


@click.command("net-run")
@click.argument("binary", required=False, metavar="[BINARY]")
@takes(NetRunOptions)
@answered(NET_RUN_REFUSED, NET_RUN_IGNORED)
def net_run(binary: str | None, options: NetRunOptions, **foreign: str | None) -> int:
    """Run a context binary like qnn-net-run: same flags, input lists, file names, log lines.

    This is qnnmem's own program, which is also installed as `qnn-net-run`. If the SDK's program is
    on PATH, this name starts the SDK's program. To type `./qnn-net-run`, make a link to qnnmem's
    program in the current folder. BINARY comes from `qnnmem prepare`, for LPAI or for HTP. With
    --backend libQnnHtp.so the real HTP library runs it, emulated on x86. Inputs come from
    --input_list, from arrays, or are generated; the input list and generated inputs are written to
    the output folder.

    Flags of the SDK's tool that have no meaning without a device are ignored with a warning. Flags
    that would change results are refused.

    The program in the binary executes in its own process with limits.

    Exit codes: 0 done, 1 the run failed or a rule was broken, 2 bad arguments, unreadable input, or
    a binary that is damaged, has an unknown version or cannot be executed, 134 the limit of TCM
    allocations was exceeded.
    """
    from qnnmem.verbs.sdk_tools import build_version, run_binary

    if options.version:
        click.echo(build_version("qnn-net-run"))
        return 0
    console = _console(options.log_level)
    with ProgressBar("running") as bar:
        return run_binary(binary, options, foreign, console, bar)


@click.command("context-binary-generator")
@takes(GeneratorOptions)
@answered(GENERATOR_REFUSED, GENERATOR_IGNORED)
def context_binary_generator(options: GeneratorOptions, **foreign: str | None) -> int:
    """Make a context binary like qnn-context-binary-generator: same flags, file names, log lines.

    This is qnnmem's own program, which is also installed as `qnn-context-binary-generator`. If the
    SDK's program is on PATH, this name starts the SDK's program. To type
    `./qnn-context-binary-generator`, make a link to qnnmem's program in the current folder.

    A model is an ONNX file, a DLC or a model library. A library is native code: it runs in a child
    process with limits, and a note says so. For HTP the real library compiles the model, which
    needs the extra `htp`. For LPAI the model is planned the way `qnnmem prepare` does.

    Flags that have no meaning here are ignored with a warning. Flags that would change the result
    are refused. A binary of the same name is replaced, as by the SDK's tool.

    Exit codes: 0 the binary was written, 1 the library refuses the model, 2 bad usage, an
    unreadable model or config file, or a float model for LPAI, 3 no library is available, or the
    SoC has no HTP, 4 not finished within the time limit.
    """
    from qnnmem.verbs.sdk_tools import build_version, generate_binary

    if options.version:
        click.echo(build_version("qnn-context-binary-generator"))
        return 0
    console = _console(options.log_level or "error")
    with ProgressBar("compiling") as bar:
        return generate_binary(options, foreign, console, verb_call(bar))


def _console(level: str) -> Console:
    """Return a console that writes lines in the format of the real tools."""
    from qnnmem.lpai.net_run.log import LEVELS, Console

    def line(text: str) -> None:
        click.echo(shorten(text, _LONGEST))

    def error(text: str) -> None:
        click.echo(shorten(text, _LONGEST), err=True)

    return Console(LEVELS[level], line, error)
