"""Options of `doctor`: how to read logs, and facts about the failed model."""

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt
from qnnmem.options.plan import ShapeOptions

GROUPS = ("cause", "stage", "entry", "device", "build", "file")


class DoctorOptions(ShapeOptions, frozen=True, kw_only=True):
    """Options for reading logs, and facts about the failed model."""

    host: Annotated[
        str | None,
        Opt(
            "--host",
            "Check memory, DSP, libraries and firmware of a machine, with or without a log: local "
            "(the default), adb, adb:SERIAL, or image:FOLDER for an unpacked image.",
            metavar="[MACHINE]",
            bare="local",
            offered=("local", "adb"),
            is_local=True,
            leads=True,
        ),
    ] = None
    kb: Annotated[tuple[str, ...], shared.KB.but(leads=True)] = ()
    follow: Annotated[
        bool,
        Opt("--follow", "Watch one log that is still being written.", is_local=True, leads=True),
    ] = False
    jobs: Annotated[
        int, shared.JOBS.but("Number of processes or threads that read logs.", le=256, leads=True)
    ] = 1
    cluster: Annotated[
        str | None,
        shared.CLUSTER.but("Read logs on a Dask cluster, e.g. tcp://host:8786.", leads=True),
    ] = None
    group_by: Annotated[
        str | None,
        Opt(
            "--group-by",
            "Count the incidents of all logs instead of showing each incident.",
            choices=GROUPS,
            is_local=True,
            leads=True,
        ),
    ] = None
    binary: Annotated[
        str | None,
        Opt("--binary", "Context binary that failed.", metavar="FILE", is_file=True, leads=True),
    ] = None
    model: Annotated[
        str | None,
        Opt(
            "--model",
            "Model that failed. The doctor compiles it for --soc if HTP failed, and plans it if "
            "LPAI failed.",
            metavar="FILE",
            is_file=True,
            leads=True,
        ),
    ] = None
    soc: Annotated[str | None, shared.SOC.but(is_local=True, leads=True)] = None
