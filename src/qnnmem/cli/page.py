"""`qnnmem report` and `serve`: results as an HTML page, and the local workbench."""

from __future__ import annotations

import ipaddress
from contextlib import closing
from pathlib import Path

import click

from qnnmem.atomic_file import check_replaceable
from qnnmem.cli.options import takes
from qnnmem.cli.output import write
from qnnmem.cli.progress import ProgressBar
from qnnmem.cli.recorded_args import verb_call
from qnnmem.cli.streams import note
from qnnmem.errors import CannotTell, UsageError
from qnnmem.options.page import ReportOptions, ServeOptions

_NEEDED = ("starlette", "uvicorn")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@takes(ReportOptions)
def report(files: tuple[str, ...], options: ReportOptions) -> int:
    """Show FILE as one HTML page that opens from disk and needs no network.

    FILE is a JSON result (of plan, footprint, fit, sweep, place, llm, qmem, doctor, fix, inspect,
    lint, check, diff, check-client or watch), a model (which is planned), a context binary (its
    memory bill for HTP, its contents for LPAI), a trace of watch, or a log (which the doctor
    diagnoses). Several files become sections of one page.

    Exit codes: 0 written, 2 bad usage or a file that cannot be shown.
    """
    from qnnmem.verbs.page import render_files

    target = None if options.output is None else Path(options.output)
    if target is not None:
        check_replaceable(target, force=options.force)
    with ProgressBar("reading") as bar:
        page = render_files(files, options, verb_call(bar))
    write(page, target, options.force)
    return 0


@click.command()
@takes(ServeOptions)
def serve(options: ServeOptions) -> int:
    """Open a workbench on this machine for models, binaries, config files and logs.

    The page immediately shows the plan, memory bill, lint or diagnosis of a file, and a new plan
    for every changed setting. Compiles, sweeps and fixes run as jobs that can be cancelled. Results
    are stored and can be compared. Nothing leaves the machine. Ctrl-C ends the workbench.

    Exit codes: 0 ended by Ctrl-C, 2 bad usage or the port is in use, 3 a package is missing.
    """
    _check_installed()
    is_local, token = _is_loopback(options.host), options.token
    _check_token(token, is_local)
    from qnnmem.workbench.bench import Bench
    from qnnmem.workbench.guard import Access
    from qnnmem.workbench.server import bound_socket, run, server_for

    with closing(bound_socket(options.host, options.port)) as listening:
        port = listening.getsockname()[1]
        address = _address(options.host, port)

        def started() -> None:
            note(f"Workbench at {address}; Ctrl-C ends it")
            if not options.no_browser:
                _open(address)

        with closing(Bench(_folder(options.data))) as bench:
            if bench.history.repaired:
                note(bench.history.repaired)
            access = Access(port, is_local, token or "")
            run(server_for(bench, access), listening, started)
    note("Ended")
    return 0


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        from qnnmem.installation import command_for

        missing_words = f"the workbench needs {' and '.join(missing)}"
        raise CannotTell(missing_words, cure=f"install with: {command_for('serve')}")


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_token(token: str | None, is_local: bool) -> None:
    from qnnmem.workbench.limits import MIN_TOKEN

    if token is None:
        if not is_local:
            raise UsageError(
                "other machines can reach this --host, so add --token; without it, anybody "
                "who can reach this machine can read the page"
            )
    elif len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"the token is not valid; use at least {MIN_TOKEN} printable ASCII characters"
        )


def _folder(data: str | None) -> Path:
    from qnnmem.cache import NOWHERE, cache_folder

    if data is not None:
        return Path(data)
    folder = cache_folder()
    if folder == NOWHERE:
        raise UsageError("there is no home folder to store results in; choose a folder with --data")
    return folder / "workbench"


def _address(host: str, port: int) -> str:
    """Return the address to type into a browser on this machine."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  only compared
    shown = f"[{host}]" if ":" in host else host
    return f"http://{everywhere.get(host, shown)}:{port}/"


def _open(address: str) -> None:
    """Open the page in a browser if possible; in a thread, because some browsers block."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
