"""Options of `prepare`, for LPAI and for HTP."""

from __future__ import annotations

from typing import Annotated, ClassVar

from qnnmem.options import shared
from qnnmem.options.option import Opt
from qnnmem.options.plan import BackendOptions
from qnnmem.units import Bytes


class PreparationOptions(BackendOptions, frozen=True, kw_only=True):
    """Options for making a context binary from models."""

    lpai_only: ClassVar = ("states",)

    backend: Annotated[
        str,
        Opt(
            "--backend",
            "lpai makes a binary that runs without a device, htp a binary for a device.",
            leads=True,
            choices=("lpai", "htp"),
        ),
    ] = "lpai"
    calibration: Annotated[
        str | None,
        Opt(
            "--calibration",
            "Sample inputs (.npy, .npz, .raw) for the quantization ranges.",
            metavar="DIR",
            default="random data",
            is_file=True,
        ),
    ] = None
    seed: Annotated[int, shared.SEED.but("Seed of the random calibration data.")] = 0
    time_limit: Annotated[
        float | None,
        shared.TIME_LIMIT.but(
            "Time limit in seconds for planning (lpai) or compiling (htp).",
            default="10 (lpai; other steps have their own limits) or 600 (htp)",
        ),
    ] = None
    trust: Annotated[bool, shared.TRUST] = False
    names: Annotated[
        tuple[str, ...],
        Opt(
            "--graph-name",
            "Name of a graph; give one for each FILE, in the order of FILES.",
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
            "Also keep the state of LSTM, GRU and RNN nodes between runs.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    io: Annotated[
        str | None,
        shared.IO.but(
            "Place inputs and outputs inside scratch or in the application's buffers (exclude_io).",
            default="taken from the config file, else inside",
            backend="lpai",
        ),
    ] = None
    align: Annotated[int, shared.ALIGN.but(default="", backend="lpai", is_advanced=True)] = 64
    inplace: Annotated[bool, shared.INPLACE.but(backend="lpai", is_advanced=True)] = False
    reorder: Annotated[bool, shared.REORDER.but(backend="lpai", is_advanced=True)] = False
    quantize: Annotated[str | None, shared.QUANTIZE.but(backend="lpai")] = None
    weight_bits: Annotated[
        int,
        Opt(
            "--weight-bits",
            "Bit width of quantized weights.",
            choices=(8, 16),
            backend="lpai",
            is_advanced=True,
        ),
    ] = 8
    allow_float: Annotated[
        bool,
        Opt(
            "--float",
            "Allow floating point, for experiments without a device; LPAI does not support it.",
            backend="lpai",
            is_advanced=True,
        ),
    ] = False
    hw_ver: Annotated[
        str | None,
        Opt(
            "--hw-ver",
            "Hardware version.",
            choices=shared.HW_VERSIONS,
            default="taken from the config file, else v6",
            backend="lpai",
            is_advanced=True,
        ),
    ] = None
    config: Annotated[
        str | None,
        Opt(
            "--config",
            "LPAI config file, or an SDK tool's config file that names the LPAI file.",
            metavar="FILE",
            backend="lpai",
            is_file=True,
        ),
    ] = None
    io_mem_type: Annotated[
        str | None,
        Opt(
            "--io-mem-type",
            "IO memory type to store in the binary.",
            choices=("raw", "memhandle"),
            default="raw",
            backend="htp",
            is_advanced=True,
        ),
    ] = None
    to: Annotated[
        str | None,
        Opt(
            "--to",
            "Also write a file to deploy: an EPContext model for ONNX Runtime, or an ExecuTorch "
            "program.",
            choices=("epcontext", "pte"),
            default="the binary alone",
            backend="htp",
        ),
    ] = None
    epcontext: Annotated[
        bool, Opt("--epcontext", "Short for --to epcontext.", backend="htp", is_advanced=True)
    ] = False
    partition: Annotated[
        bool,
        Opt(
            "--partition",
            "Compile the nodes that QNN supports, and run the others on the CPU.",
            backend="htp",
        ),
    ] = False
    memory_limit: Annotated[Bytes | None, shared.MEMORY_LIMIT.but(backend="htp")] = None
    log_file: Annotated[
        str | None,
        Opt(
            "--log-file",
            "Save the library's complete log to this file, up to 256 MiB.",
            metavar="FILE",
            backend="htp",
            is_file=True,
            is_advanced=True,
        ),
    ] = None
    output: Annotated[
        str, shared.OUTPUT.but("The context binary to write.", required=True, writes="file")
    ] = ""
    force: Annotated[bool, shared.FORCE] = False

    @property
    def for_onnx_runtime(self) -> bool:
        """Return True if the output is an EPContext model; other outputs cannot hold CPU nodes."""
        return self.epcontext or self.partition or self.to == "epcontext"
