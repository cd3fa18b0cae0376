"""Options of the verbs with the flags of the SDK's tools: net-run, context-binary-generator.

Flags that are only answered stand in tables beside the verbs, with the reason for each.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.options import parsers
from qnnmem.options.option import Opt
from qnnmem.options.plan import MAX_SECONDS, ShapeOptions
from qnnmem.units import Bytes, parse_size


class NetRunOptions(Struct, frozen=True, kw_only=True):
    """The flags of qnn-net-run, and ours."""

    retrieve_context: Annotated[
        str | None, Opt("--retrieve_context", "BINARY, as the real tool names it.", metavar="FILE")
    ] = None
    backend: Annotated[
        str,
        Opt(
            "--backend",
            "Backend library; the file need not be there.",
            metavar="FILE",
            is_advanced=True,
        ),
    ] = "libQnnLpai.so"
    input_list: Annotated[
        str | None,
        Opt(
            "--input_list",
            "Input lists, one for each graph; __ skips a graph.",
            metavar="FILE[,FILE...]",
        ),
    ] = None
    random_inputs: Annotated[
        int | None,
        Opt(
            "--random-inputs",
            "Ours: make up the inputs of N inferences, and write the input list.",
            ge=1,
            le=10000,
        ),
    ] = None
    inputs: Annotated[
        tuple[str, ...],
        Opt(
            "--inputs",
            "Ours: .npy or .npz file, or folder of such samples, once for each graph; __ "
            "skips one. "
            "The input list is written.",
            metavar="PATH",
            is_file=True,
        ),
    ] = ()
    seed: Annotated[
        int, Opt("--seed", "Ours: of --random-inputs.", ge=0, le=2147483648, is_advanced=True)
    ] = 0
    force: Annotated[bool, Opt("--force", "Ours: replace input files of an earlier run.")] = False
    output_dir: Annotated[str, Opt("--output_dir", "", metavar="DIR")] = "./output"
    config_file: Annotated[
        str | None, Opt("--config_file", "Tool file, e.g. eaiParams_direct.json.", metavar="FILE")
    ] = None
    direct_mode: Annotated[
        str | None,
        Opt("--direct_mode", "Run as native code of the aDSP does.", metavar="[adsp]", bare="adsp"),
    ] = None
    shared_buffer: Annotated[
        bool,
        Opt("--shared_buffer", "Register inputs and outputs as shared memory; nothing is copied."),
    ] = False
    io_tensor_mem_handle_type: Annotated[
        str | None,
        Opt(
            "--io_tensor_mem_handle_type",
            "Kind of shared memory.",
            choices=("custom", "ion", "dma_buf"),
            is_advanced=True,
        ),
    ] = None
    use_native_input_files: Annotated[
        bool,
        Opt(
            "--use_native_input_files",
            "Input files hold the tensors' own type, not float32.",
            is_advanced=True,
        ),
    ] = False
    use_native_output_files: Annotated[
        bool,
        Opt(
            "--use_native_output_files",
            "Write outputs in the tensors' own type, not float32.",
            is_advanced=True,
        ),
    ] = False
    native_input_tensor_names: Annotated[
        str | None,
        Opt(
            "--native_input_tensor_names",
            "Inputs whose files hold the tensor's own type.",
            metavar="GRAPH:TENSOR,...",
            is_advanced=True,
        ),
    ] = None
    input_data_type: Annotated[
        str | None,
        Opt(
            "--input_data_type",
            "Type of input files.",
            choices=("float", "native"),
            is_advanced=True,
        ),
    ] = None
    output_data_type: Annotated[
        str | None,
        Opt(
            "--output_data_type",
            "Type of output files.",
            choices=("float_only", "native_only", "float_and_native"),
            is_advanced=True,
        ),
    ] = None
    num_inferences: Annotated[
        int | None,
        Opt("--num_inferences", "Loop over the list until N inferences ran.", ge=1, le=1 << 40),
    ] = None
    duration: Annotated[
        float | None,
        Opt(
            "--duration",
            "Loop over the list for this long.",
            metavar="SECONDS",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
            is_advanced=True,
        ),
    ] = None
    keep_num_outputs: Annotated[
        int | None,
        Opt(
            "--keep_num_outputs",
            "Write only the first N results; 0 writes none.",
            ge=0,
            le=1 << 40,
            is_advanced=True,
        ),
    ] = None
    batch_multiplier: Annotated[
        int | None,
        Opt("--batch_multiplier", "Only 1 is possible here.", ge=1, le=1 << 40, is_advanced=True),
    ] = None
    synchronous: Annotated[
        bool,
        Opt(
            "--synchronous",
            "Execute one inference after the other; this is the default.",
            is_advanced=True,
        ),
    ] = False
    asynchronous: Annotated[
        bool,
        Opt(
            "--asynchronous",
            "Execute through the queue, as deep as the config says.",
            is_advanced=True,
        ),
    ] = False
    profiling_level: Annotated[
        str | None,
        Opt(
            "--profiling_level",
            "Write times of API calls.",
            choices=("basic", "detailed", "client", "backend"),
        ),
    ] = None
    log_level: Annotated[
        str,
        Opt(
            "--log_level",
            "Most detailed lines shown.",
            choices=("error", "warn", "info", "verbose", "debug"),
        ),
    ] = "info"
    debug: Annotated[
        bool, Opt("--debug", "Refused: the outputs of a binary are fixed.", is_advanced=True)
    ] = False
    use_mmap: Annotated[
        bool, Opt("--use_mmap", "Map the context binary instead of reading it.", is_advanced=True)
    ] = False
    validate_binary: Annotated[
        bool, Opt("--validate_binary", "Every binary is validated anyway.", is_advanced=True)
    ] = False
    version: Annotated[bool, Opt("--version", "Show the version and exit.")] = False
    no_sanitize: Annotated[
        bool,
        Opt(
            "--no-sanitize",
            "Ours: do not watch memory during the first execution.",
            is_advanced=True,
        ),
    ] = False
    hw_ver: Annotated[
        str | None, Opt("--hw_ver", "Ours: LPAI hardware, e.g. v6.", metavar="VERSION")
    ] = None
    alignment: Annotated[
        str,
        Opt(
            "--alignment", "Ours: alignment profile.", choices=("default", "conservative", "v4-era")
        ),
    ] = "default"
    lenient_scratch: Annotated[
        bool,
        Opt(
            "--lenient_scratch",
            "Ours: misaligned scratch is a finding, not an error.",
            is_advanced=True,
        ),
    ] = False
    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Ours: seconds that loading the binary, and each execution, may take.",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
        ),
    ] = 600.0
    memory_limit: Annotated[
        Bytes | None,
        Opt(
            "--memory-limit",
            "Ours: address space of the process that executes.",
            metavar="SIZE",
            parse=parse_size,
            default="3/4 of the machine",
            is_advanced=True,
        ),
    ] = None


class GeneratorOptions(ShapeOptions, frozen=True, kw_only=True):
    """The flags of qnn-context-binary-generator, and ours."""

    backend: Annotated[
        str | None,
        Opt("--backend", "libQnnHtp.so or libQnnLpai.so, in any folder.", metavar="FILE"),
    ] = None
    model: Annotated[
        str | None,
        Opt(
            "--model",
            "ONNX file; several give several graphs, which only LPAI takes here. "
            "With --dlc_path libQnnModelDlc.so, or nothing.",
            metavar="FILE[,FILE...]",
        ),
    ] = None
    dlc_path: Annotated[
        str | None, Opt("--dlc_path", "DLC file instead of --model.", metavar="FILE[,FILE...]")
    ] = None
    binary_file: Annotated[
        str | None,
        Opt(
            "--binary_file",
            "Name of the binary in the output folder, without .bin, which is added.",
            metavar="NAME",
        ),
    ] = None
    output_dir: Annotated[str, Opt("--output_dir", "", metavar="DIR")] = "./output"
    input_output_tensor_mem_type: Annotated[
        str,
        Opt(
            "--input_output_tensor_mem_type",
            "The Qmem hint that inputs and outputs carry; memhandle is for HTP.",
            choices=("raw", "memhandle"),
        ),
    ] = "raw"
    config_file: Annotated[
        str | None,
        Opt("--config_file", "Tool file, which points to that of the backend.", metavar="FILE"),
    ] = None
    optimization_level_override: Annotated[
        int | None,
        Opt("--optimization_level_override", "HTP: instead of O in the config file.", ge=1, le=3),
    ] = None
    vtcm_override: Annotated[
        int | None,
        Opt(
            "--vtcm_override",
            "HTP: instead of vtcm_mb in the config file; 0 is all that the SoC has.",
            metavar="MB",
            ge=0,
            le=64,
        ),
    ] = None
    log_level: Annotated[
        str | None,
        Opt(
            "--log_level",
            "Most detailed lines shown.",
            choices=("error", "warn", "info", "verbose", "debug"),
        ),
    ] = None
    enable_intermediate_outputs: Annotated[
        bool, Opt("--enable_intermediate_outputs", "Refused: outputs are fixed.", is_advanced=True)
    ] = False
    version: Annotated[bool, Opt("--version", "Show the version and exit.")] = False
    trust: Annotated[
        bool, Opt("--trust", "Ours: --model is a model library (.so), whose code is executed.")
    ] = False
    quantize: Annotated[
        str | None,
        Opt(
            "--quantize",
            "Ours: quantize a float model for LPAI on the way.",
            choices=("int8", "int16"),
        ),
    ] = None
    allow_float: Annotated[bool, Opt("--float", "Ours: allow a float model for LPAI.")] = False
    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Seconds that one answer may take: reading, compiling and loading a model, running it.",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
        ),
    ] = 600.0
    memory_limit: Annotated[
        Bytes | None,
        Opt(
            "--memory-limit",
            "Ours: address space of the compiler.",
            metavar="SIZE",
            parse=parse_size,
            default="3/4 of the machine",
            is_advanced=True,
        ),
    ] = None
