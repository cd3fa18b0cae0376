"""`qnnmem htp-worker`: the HTP library of this machine for a qnnmem somewhere else."""

from __future__ import annotations

import click

from qnnmem.units import parse_size


@click.command()
@click.option(
    "--cache",
    type=click.Path(),
    metavar="DIR",
    help="Folder of files that were sent.  [default: qnnmem in the user's cache folder]",
)
@click.option(
    "--cache-size",
    type=parse_size,
    default="8 GiB",
    show_default=True,
    metavar="SIZE",
    help="Files kept for later requests; the oldest go first.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(1, 86400 * 7),
    default=86400,
    show_default=True,
    metavar="SECONDS",
    help="Most that one request may take.",
)
@click.option(
    "--memory-limit",
    type=parse_size,
    metavar="SIZE",
    help="Most address space of one request.  [default: 3/4 of the machine]",
)
def htp_worker(
    cache: str | None, cache_size: int, time_limit: float, memory_limit: int | None
) -> int:
    """Compile, load and run with the real library for a qnnmem on another machine.

    It is started by the command in QNNMEM_HTP_WORKER there, over ssh, in a container or under
    qemu-user, and speaks to it through standard input and output. It ends when that pipe is closed.
    Models and binaries come through the pipe and are kept by content.

    Exit codes: 0 the client left, 2 bad usage or no room for files.
    """
    import sys
    from pathlib import Path

    from qnnmem.cache import NOWHERE, cache_folder
    from qnnmem.errors import UsageError
    from qnnmem.htp.remote.server import run_server, server_limits

    if sys.stdin.isatty():
        what = "htp-worker is started by the command in QNNMEM_HTP_WORKER, not by hand"
        raise UsageError(what, cure="docs/how-to/htp-anywhere.md has such commands")
    folder = cache_folder() if cache is None else Path(cache).absolute()
    if folder == NOWHERE:
        raise UsageError("there is no home folder to keep files in", cure="name one with --cache")
    return run_server(folder / "htp-worker", cache_size, server_limits(time_limit, memory_limit))
