"""Options of `config` and `lint`."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import shared
from qnnmem.options.option import Opt, Options

_UINT32 = (1 << 32) - 1


class LintOptions(Options, frozen=True, kw_only=True):
    """Strictness of config file checks."""

    strict: Annotated[
        bool,
        Opt("--strict", "Treat warnings as errors.", label="Treat warnings as errors"),
    ] = False


class ExecuteSettings(Options, frozen=True):
    """Settings for a run: `lpai_graph.execute` of a config file."""

    fps: Annotated[
        int, Opt("--fps", "Required number of inferences per second.", ge=0, le=_UINT32)
    ] = 1
    ftrt_ratio: Annotated[
        int,
        Opt(
            "--ftrt-ratio",
            "Speed relative to real time, in tenths: 10 is real time.",
            ge=0,
            le=_UINT32,
        ),
    ] = 10
    client_type: Annotated[
        str,
        Opt(
            "--client-type",
            "With real_time, finalize fails if the backend cannot keep the required rate.",
            choices=("real_time", "non_real_time"),
        ),
    ] = "real_time"
    affinity: Annotated[
        str,
        Opt(
            "--affinity",
            "soft prefers the selected core, hard requires it.",
            choices=("soft", "hard"),
        ),
    ] = "soft"
    core_selection: Annotated[
        int,
        Opt(
            "--core-selection",
            "0 for any core, else a mask with one bit set: 1 is core 0, 2 is core 1.",
            ge=0,
            le=_UINT32,
        ),
    ] = 0
    mem_type: Annotated[
        str,
        Opt(
            "--mem-type",
            "Memory that holds inputs, outputs and the model binary; tcm needs adsp and v6 or "
            "later.",
            choices=("ddr", "tcm"),
        ),
    ] = "ddr"


class ConfigOptions(ExecuteSettings, frozen=True, kw_only=True):
    """Contents and output folder of a pair of config files."""

    # There is only one choice so far. Scripts that name it stay unambiguous when there are more.
    backend: Annotated[str, Opt("--backend", "The backend to configure.", choices=("lpai",))] = (
        "lpai"
    )
    target_env: Annotated[
        str,
        Opt(
            "--target-env",
            "Where the model runs; adsp is direct mode.",
            choices=("adsp", "arm", "x86"),
        ),
    ] = "adsp"
    hw_ver: Annotated[
        str, Opt("--hw-ver", "LPAI hardware version.", choices=shared.HW_VERSIONS)
    ] = "v6"
    exclude_io: Annotated[bool, Opt("--exclude-io", "Keep inputs and outputs out of scratch.")] = (
        False
    )
    output: Annotated[
        str, shared.OUTPUT.but("Folder to write the two files to.", required=True, writes="file")
    ] = ""
    force: Annotated[bool, shared.FORCE.but("Replace the two files if they exist.")] = False


class ExportOptions(Options, frozen=True, kw_only=True):
    """Options for the inputs, outputs and declarations of a C client."""

    io: Annotated[
        str,
        Opt(
            "--io",
            "user: inputs and outputs in the client's buffers; scratch: at their planned offsets "
            "in scratch.",
            choices=("user", "scratch"),
        ),
    ] = "user"
    standalone: Annotated[
        bool,
        Opt("--standalone", "Include declarations of the QNN interface, so that no SDK is needed."),
    ] = False


class HeadersOptions(Options, frozen=True, kw_only=True):
    """Output folders for the headers and libraries that compiling without an SDK needs."""

    lib: Annotated[
        str | None,
        Opt(
            "--lib",
            "Also write libQnnLpai.so and libQnnSystem.so to link with, and qnnmem-qnn.pc.",
            metavar="DIR",
            is_file=True,
        ),
    ] = None
    output: Annotated[
        str, shared.OUTPUT.but("Folder to write the headers to.", required=True, writes="file")
    ] = ""
    force: Annotated[bool, shared.FORCE.but("Replace headers that qnnmem has written.")] = False
