"""What is known of a model where it cannot be compiled, and where it can be, as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qnnmem.provenance import Sourced
from qnnmem.report.shell import LONGEST, shell_line
from qnnmem.text import shorten
from qnnmem.units import format_size

_WORKER = "docker run -i --rm --platform linux/amd64 qnnmem htp-worker"
_RUN = 'docker run --rm --platform linux/amd64 -v "$PWD:/models" qnnmem'


def facts(known: Sequence[tuple[str, Sourced]], at: str = "") -> Iterator[str]:
    """A row for each number, with its origin; `at` names the settings they are for."""
    yield f"known without compiling{f' at {shorten(at)}' if at else ''}, in bytes:"
    for name, part in known:
        size = f"{part.value:>15,}{format_size(part.value):>13}"
        yield f"  {shorten(name, 30):<30}{size}  {part.origin.value}"


def ways(image: str, words: Sequence[str], *, elsewhere: bool) -> Iterator[str]:
    """Where it can be compiled, and what works here.

    `image` is the folder or address that the image is built from, empty where it is not known;
    `words` are what was typed, empty where a container would not find the files. `elsewhere` says
    that there is no compiler for this platform.
    """
    if elsewhere:
        source = shell_line([image or "FOLDER-OF-THE-SOURCES"])
        yield "with a worker elsewhere; the variable QNNMEM_HTP_WORKER holds one of its commands:"
        yield "  ssh BOX qnnmem htp-worker                           Linux on x86-64, over ssh"
        yield f"  {_WORKER}    a container"
        yield "  qemu-x86_64 PYTHON -m qnnmem htp-worker             ARM Linux, under qemu-user"
        yield "in a container, from a folder with the model:"
        yield f"  docker build --platform linux/amd64 -t qnnmem {source}"
        line = f"{_RUN} {shell_line(words)}"
        yield f"  {line if words and len(line) <= LONGEST else f'{_RUN} --help'}"
    yield (
        "without a compiler: a context binary of the model (.bin) is read anywhere, by footprint, "
        "fit, qmem, inspect and place"
    )
