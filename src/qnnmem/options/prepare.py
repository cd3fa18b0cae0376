"""Options of `prepare`, for LPAI and for HTP."""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import parsers
from qnnmem.options.htp import MAX_VTCM_MB, PRECISIONS
from qnnmem.options.option import Opt
from qnnmem.options.plan import MAX_SECONDS, MAX_SEED, ModelOptions
from qnnmem.units import Bytes, parse_size

HW_VERSIONS = ("v4", "v5", "v5_1", "v6", "v7")
# Inherited options that mean nothing for HTP.
LPAI_ONLY = ("states",)


class PreparationOptions(ModelOptions, frozen=True, kw_only=True):
    """How models become a context binary."""

    backend: Annotated[
        str,
        Opt(
            "--backend",
            "lpai: qnnmem's own binary for the desk; htp: a real one by the real library.",
            leads=True,
            choices=("lpai", "htp"),
        ),
    ] = "lpai"
    calibration: Annotated[
        str | None,
        Opt(
            "--calibration",
            "Sample inputs (.npy, .npz, .raw) to learn ranges from.",
            metavar="DIR",
            default="random data",
            is_file=True,
        ),
    ] = None
    seed: Annotated[
        int,
        Opt("--seed", "Of the random calibration data.", ge=0, le=MAX_SEED, is_advanced=True),
    ] = 0
    time_limit: Annotated[
        float | None,
        Opt(
            "--time-limit",
            "Seconds for planning (lpai; all of it ends 10 s later at most) or compiling (htp).",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
            default="10, other steps as long as they need within limits of their own; 600",
        ),
    ] = None
    trust: Annotated[
        bool,
        Opt(
            "--trust",
            "FILE may be a model library (.so) of QNN's tools: its code is executed, in a child "
            "process with limits, which are no sandbox.",
            is_local=True,
            is_advanced=True,
        ),
    ] = False
    names: Annotated[
        tuple[str, ...],
        Opt(
            "--graph-name",
            "Name of a graph, once per FILE.",
            metavar="NAME",
            default="the file's name",
            backend="lpai",
            is_advanced=True,
        ),
    ] = ()
    rnn_state: Annotated[
        bool,
        Opt(
            "--rnn-state",
            "Keep the state of LSTM, GRU and RNN nodes, too.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    io: Annotated[
        str | None,
        Opt(
            "--io",
            "Inputs and outputs inside scratch or in the application's buffers (exclude_io).",
            choices=("inside", "outside"),
            default="as the config file says, else inside",
            backend="lpai",
        ),
    ] = None
    align: Annotated[
        int,
        Opt(
            "--align",
            "Alignment of start and size in bytes.",
            ge=1,
            le=1 << 20,
            backend="lpai",
            is_advanced=True,
        ),
    ] = 64
    inplace: Annotated[
        bool,
        Opt(
            "--inplace",
            "Let element-wise ops overwrite an input that dies there.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    reorder: Annotated[
        bool,
        Opt(
            "--reorder",
            "Search for an operator order that needs less memory.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    quantize: Annotated[
        str | None,
        Opt(
            "--quantize",
            "Quantize a float model on the way.",
            choices=("int8", "int16"),
            backend="lpai",
        ),
    ] = None
    weight_bits: Annotated[
        int,
        Opt(
            "--weight-bits",
            "Width of quantized weights.",
            choices=(8, 16),
            backend="lpai",
            is_advanced=True,
        ),
    ] = 8
    allow_float: Annotated[
        bool,
        Opt(
            "--float",
            "Allow floating point, which LPAI does not have, for experiments at the desk.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    hw_ver: Annotated[
        str | None,
        Opt(
            "--hw-ver",
            "Hardware version.",
            choices=HW_VERSIONS,
            default="as the config file says, else v6",
            backend="lpai",
            is_advanced=True,
        ),
    ] = None
    config: Annotated[
        str | None,
        Opt(
            "--config",
            "Config or tool file; its prepare section and hardware version are used.",
            metavar="FILE",
            backend="lpai",
            is_file=True,
        ),
    ] = None
    soc: Annotated[
        str | None,
        Opt(
            "--soc",
            "SoC by name or id, e.g. SM8650.",
            metavar="SOC",
            backend="htp",
            is_soc=True,
        ),
    ] = None
    precision: Annotated[
        str | None,
        Opt(
            "--precision",
            "What floats become; int8 and w8a16 quantize on the way.",
            choices=PRECISIONS,
            default="fp16",
            backend="htp",
        ),
    ] = None
    vtcm_mb: Annotated[
        int | None,
        Opt(
            "--vtcm-mb",
            "VTCM of the graph in MiB.",
            metavar="N",
            ge=1,
            le=MAX_VTCM_MB,
            default="all that the SoC has",
            backend="htp",
            is_advanced=True,
        ),
    ] = None
    opt_level: Annotated[
        int | None,
        Opt(
            "--opt-level",
            "Optimisation level 1 to 3.",
            metavar="N",
            ge=1,
            le=3,
            default="the library's own",
            backend="htp",
            is_advanced=True,
        ),
    ] = None
    io_mem_type: Annotated[
        str | None,
        Opt(
            "--io-mem-type",
            "The Qmem hint that inputs and outputs carry.",
            choices=("raw", "memhandle"),
            default="raw",
            backend="htp",
            is_advanced=True,
        ),
    ] = None
    epcontext: Annotated[
        bool,
        Opt(
            "--epcontext",
            "Write the EPContext model for ONNX Runtime beside the binary.",
            backend="htp",
        ),
    ] = False
    partition: Annotated[
        bool,
        Opt(
            "--partition",
            "Leave nodes that QNN cannot take to the CPU, compile the rest, run both once.",
            backend="htp",
        ),
    ] = False
    memory_limit: Annotated[
        Bytes | None,
        Opt(
            "--memory-limit",
            "Address space of the compiler.",
            metavar="SIZE",
            parse=parse_size,
            default="3/4 of the machine",
            backend="htp",
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    log_file: Annotated[
        str | None,
        Opt(
            "--log-file",
            "Keep the library's whole log, up to 256 MiB.",
            metavar="FILE",
            backend="htp",
            is_file=True,
            is_advanced=True,
        ),
    ] = None
