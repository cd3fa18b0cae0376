"""The command line as tests call it: in this process, errors kept as they were raised."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from qnnmem.cli import qnnmem
from qnnmem.errors import QnnMemError
from qnnmem.report.flags import flag


def run(*words: str | Path) -> Result:
    """Run `qnnmem` with these words; an error of ours comes back in `exception`."""
    return CliRunner().invoke(qnnmem, list(map(str, words)), standalone_mode=False)


def sentence(done: Result) -> str:
    """What the user reads when a command ends with an error of ours."""
    assert isinstance(done.exception, QnnMemError), done.exception
    return done.exception.sentence(flag)
