"""`qnnmem doctor --host`: what can be checked on the machine itself, alone or beside a log."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qnnmem.errors import QnnMemError, UsageError
from qnnmem.text import quote

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from qnnmem.doctor.diagnose import Diagnosis
    from qnnmem.results.host import HostResult

FORMS = ("text", "json")
_MOST_INCIDENTS = 1000  # whose causes are looked at


class Machine(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """`local`, `adb` or `adb:SERIAL`; any other word is a log that stands behind the option."""

    name = "machine"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """The words that mean a machine."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(w) for w in ("local", "adb") if w.startswith(incomplete)]


def sort_out(host: str | None, paths: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Machine and logs, also where a log was taken for the machine: `--host a.log`."""
    if host is None:
        return None, paths
    from qnnmem.doctor.host.devices import LOCAL, is_machine

    if is_machine(host):
        return host, paths
    if host != "-" and "://" not in host and not _is_there(host):
        what = f"--host cannot be {quote(host)}; it is local, adb or adb:SERIAL"
        raise UsageError(f"{what}, and there is no log of that name")
    return LOCAL, (host, *paths)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def show_alone(host: str, form: str, output: Path | None, force: bool, verbose: bool) -> int:
    """Looks at a machine and shows all checks; gives the exit code."""
    from qnnmem.cli.output import check_free, write
    from qnnmem.doctor.host import examine, find_machine
    from qnnmem.report import host as report
    from qnnmem.results.schema import encode

    check_form(form)
    if output is not None:
        check_free(output, force)
    found = examine(find_machine(host))
    as_json = form == "json"
    text = encode(found) if as_json else report.render_text(found, verbose=verbose)
    write(text, output, force, report.verdict(found))
    return found.exit_code


def check_form(form: str) -> None:
    """Refuses a form that has no place for a machine."""
    if form not in FORMS:
        raise UsageError(f"--host gives text or json, not {form}")


def look_beside(host: str, diagnosis: Diagnosis) -> HostResult | None:
    """The checks, those first that concern what was diagnosed; a note where none can be made."""
    from qnnmem.doctor.host import examine, find_machine
    from qnnmem.doctor.host.judge import with_causes
    from qnnmem.flags import flag

    try:
        found = examine(find_machine(host))
    except QnnMemError as exc:
        diagnosis.notes.append(f"nothing about the machine: {exc.sentence(flag)}")
        return None
    return with_causes(found, _causes(diagnosis))


def _causes(diagnosis: Diagnosis) -> list[str]:
    """What was diagnosed, or is possible where nothing is."""
    causes: list[str] = []
    for incident in islice(diagnosis.incidents(), _MOST_INCIDENTS):
        ranked = [one.cause for one in incident.candidates]
        causes += ranked if ranked and incident.verdict != "cause" else [incident.cause]
    return causes
