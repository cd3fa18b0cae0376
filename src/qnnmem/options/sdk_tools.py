"""Options of the verbs that take the SDK tools' flags: net-run, context-binary-generator.

The tables list the flags that are refused or ignored, each with the reason.
"""

from __future__ import annotations

from typing import Annotated

from qnnmem.options import parsers, shared
from qnnmem.options.option import Opt, Options
from qnnmem.options.plan import ShapeOptions
from qnnmem.units import Bytes

_VERSION = Opt("--version", "Show the version and exit.")
_LOG_LEVEL = Opt(
    "--log_level",
    "Show log lines up to this level.",
    choices=("error", "warn", "info", "verbose", "debug"),
)
_OUTPUT_DIR = Opt("--output_dir", "", metavar="DIR")


# Flags of the real tool that have no effect without a device: accepted, with a warning.
NET_RUN_IGNORED = {
    "op_packages": "the operators are in the binary",
    "perf_profile": "it is for HTP and DSP; LPAI takes fps and ftrt_ratio from the config file",
    "profiling_option": "LPAI does not offer this profiling",
    "platform_options": "there is no platform to set up",
    "device_options": "LPAI has no devices",
    "model_prefix": "a context binary has no symbols",
    "max_input_cache_tensor_sets": "each input file is read just before its inference",
    "max_input_cache_size_mb": "each input file is read just before its inference",
    "timeout": "LPAI supports no timeout",
    "retrieve_context_timeout": "LPAI supports no timeout",
}
_BINARY_FIRST = (
    "is not run directly; make a context binary of it: `qnn-context-binary-generator --{} FILE "
    "--backend libQnnHtp.so (or libQnnLpai.so) --binary_file model`, and pass "
    "--retrieve_context output/model.bin"
)
# Flags that would change results, or contradict a context binary: refused.
NET_RUN_REFUSED = {
    "model": _BINARY_FIRST.format("model"),
    "dlc_path": _BINARY_FIRST.format("dlc_path"),
    "binary_updates": "would change the weights; prepare the changed model again",
    "set_output_tensors": "cannot be combined with --retrieve_context, because the outputs of a "
    "binary are fixed",
}


class NetRunOptions(Options, frozen=True, kw_only=True):
    """Flags of qnn-net-run, and qnnmem's own options."""

    retrieve_context: Annotated[
        str | None, Opt("--retrieve_context", "Same as the argument BINARY.", metavar="FILE")
    ] = None
    backend: Annotated[
        str,
        Opt(
            "--backend",
            "Name of the backend library; it need not exist.",
            metavar="FILE",
            is_advanced=True,
        ),
    ] = "libQnnLpai.so"
    input_list: Annotated[
        str | None,
        Opt(
            "--input_list",
            "Input lists, one for each graph; write __ to skip a graph.",
            metavar="FILE[,FILE...]",
        ),
    ] = None
    random_inputs: Annotated[
        int | None,
        Opt(
            "--random-inputs",
            "Extra: generate inputs for N inferences, and an input list that names them.",
            ge=1,
            le=10000,
        ),
    ] = None
    inputs: Annotated[
        tuple[str, ...],
        Opt(
            "--inputs",
            "Extra: file (.npy, .npz) or folder of samples for each graph; __ skips a graph.",
            metavar="PATH",
            is_file=True,
        ),
    ] = ()
    seed: Annotated[int, shared.SEED.but("Extra: seed for --random-inputs.")] = 0
    force: Annotated[bool, Opt("--force", "Extra: overwrite input files that exist.")] = False
    output_dir: Annotated[str, _OUTPUT_DIR] = "./output"
    config_file: Annotated[
        str | None,
        Opt(
            "--config_file",
            "Config file that names the backend's config file, e.g. eaiParams_direct.json.",
            metavar="FILE",
        ),
    ] = None
    direct_mode: Annotated[
        str | None,
        Opt(
            "--direct_mode",
            "Run the way native code runs on the aDSP.",
            metavar="[adsp]",
            bare="adsp",
        ),
    ] = None
    shared_buffer: Annotated[
        bool,
        Opt(
            "--shared_buffer",
            "Register inputs and outputs as shared memory, without copies.",
        ),
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
            "Read input files in the tensors' own data type, not float32.",
            is_advanced=True,
        ),
    ] = False
    use_native_output_files: Annotated[
        bool,
        Opt(
            "--use_native_output_files",
            "Write outputs in the tensors' own data type, not float32.",
            is_advanced=True,
        ),
    ] = False
    native_input_tensor_names: Annotated[
        str | None,
        Opt(
            "--native_input_tensor_names",
            "Inputs whose files use the tensor's own data type.",
            metavar="GRAPH:TENSOR,...",
            is_advanced=True,
        ),
    ] = None
    input_data_type: Annotated[
        str | None,
        Opt(
            "--input_data_type",
            "Data type of the input files.",
            choices=("float", "native"),
            is_advanced=True,
        ),
    ] = None
    output_data_type: Annotated[
        str | None,
        Opt(
            "--output_data_type",
            "Data type of the output files.",
            choices=("float_only", "native_only", "float_and_native"),
            is_advanced=True,
        ),
    ] = None
    num_inferences: Annotated[
        int | None,
        Opt(
            "--num_inferences",
            "Repeat the input list until N inferences have run.",
            ge=1,
            le=1 << 40,
        ),
    ] = None
    duration: Annotated[
        float | None,
        Opt(
            "--duration",
            "Repeat the input list for this long.",
            metavar="SECONDS",
            parse=parsers.seconds,
            ge=0.0,
            le=shared.MAX_SECONDS,
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
        Opt("--batch_multiplier", "Only 1 is supported.", ge=1, le=1 << 40, is_advanced=True),
    ] = None
    synchronous: Annotated[
        bool,
        Opt(
            "--synchronous",
            "Execute one inference after another (the default).",
            is_advanced=True,
        ),
    ] = False
    asynchronous: Annotated[
        bool,
        Opt(
            "--asynchronous",
            "Execute through a queue; the config file sets its depth.",
            is_advanced=True,
        ),
    ] = False
    profiling_level: Annotated[
        str | None,
        Opt(
            "--profiling_level",
            "Write the duration of API calls.",
            choices=("basic", "detailed", "client", "backend"),
        ),
    ] = None
    log_level: Annotated[str, _LOG_LEVEL] = "info"
    debug: Annotated[
        bool, Opt("--debug", "Refused: the outputs of a binary are fixed.", is_advanced=True)
    ] = False
    use_mmap: Annotated[
        bool, Opt("--use_mmap", "Map the context binary instead of reading it.", is_advanced=True)
    ] = False
    validate_binary: Annotated[
        bool, Opt("--validate_binary", "Every binary is validated anyway.", is_advanced=True)
    ] = False
    version: Annotated[bool, _VERSION] = False
    no_sanitize: Annotated[
        bool,
        Opt(
            "--no-sanitize",
            "Extra: do not check memory during the first execution.",
            is_advanced=True,
        ),
    ] = False
    hw_ver: Annotated[
        str | None,
        Opt("--hw_ver", "Extra: LPAI hardware version, e.g. v6.", metavar="VERSION"),
    ] = None
    alignment: Annotated[
        str,
        Opt(
            "--alignment",
            "Extra: alignment profile.",
            choices=("default", "conservative", "v4-era"),
        ),
    ] = "default"
    lenient_scratch: Annotated[
        bool,
        Opt(
            "--lenient_scratch",
            "Extra: report misaligned scratch as a finding, not an error.",
            is_advanced=True,
        ),
    ] = False
    one_scratch: Annotated[
        bool,
        Opt(
            "--one_scratch",
            "Extra: use one scratch for all graphs, which run one after another.",
            is_advanced=True,
        ),
    ] = False
    time_limit: Annotated[
        float,
        shared.TIME_LIMIT.but(
            "Extra: time limit in seconds, for loading the binary and for each execution."
        ),
    ] = 600.0
    memory_limit: Annotated[
        Bytes | None,
        shared.MEMORY_LIMIT.but("Extra: address space limit of the process that executes graphs."),
    ] = None


# Flags of the real tool that do not change the binary: accepted, with a warning.
GENERATOR_IGNORED = {
    "model_prefix": "an ONNX file has no symbols",
    "platform_options": "there is no platform to set up",
}
# Flags that would change the result, or request another file: refused.
GENERATOR_REFUSED = {
    "backend_binary": (
        "asks for a separate backend file, which qnnmem does not write; name the context binary "
        "with --binary_file"
    ),
    "op_packages": "needs compiled operators, which qnnmem does not load",
    "data_format_config": "would change the layout of tensors, which qnnmem does not support",
    "adapter_weight_config": "is for LoRA adapters, which qnnmem does not support",
    "set_output_tensors": "would change the outputs; change the outputs of the ONNX file instead",
    "profiling_level": "asks for profiling data, which qnnmem does not write",
    "profiling_option": "asks for profiling data, which qnnmem does not write",
    "dlbc_override": "has no counterpart in the interface of the compiler that qnnmem uses",
    "htp_socs": "changes the file name in an undocumented way; set soc_model in the config file",
}


class GeneratorOptions(ShapeOptions, frozen=True, kw_only=True):
    """Flags of qnn-context-binary-generator, and qnnmem's own options."""

    backend: Annotated[
        str | None,
        Opt(
            "--backend",
            "libQnnHtp.so or libQnnLpai.so, with any folder before the name.",
            metavar="FILE",
        ),
    ] = None
    model: Annotated[
        str | None,
        Opt(
            "--model",
            "Model library (.so, which runs in a child process with limits) or ONNX file. For "
            "LPAI, several files give a binary with several graphs.",
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
            "Name of the binary in the output folder; .bin is added.",
            metavar="NAME",
        ),
    ] = None
    output_dir: Annotated[str, _OUTPUT_DIR] = "./output"
    input_output_tensor_mem_type: Annotated[
        str,
        Opt(
            "--input_output_tensor_mem_type",
            "IO memory type to store in the binary; memhandle is for HTP.",
            choices=("raw", "memhandle"),
        ),
    ] = "raw"
    config_file: Annotated[
        str | None,
        Opt("--config_file", "Config file that names the backend's config file.", metavar="FILE"),
    ] = None
    optimization_level_override: Annotated[
        int | None,
        Opt("--optimization_level_override", "HTP: overrides O in the config file.", ge=1, le=3),
    ] = None
    vtcm_override: Annotated[
        int | None,
        Opt(
            "--vtcm_override",
            "HTP: overrides vtcm_mb in the config file; 0 means all of the SoC's VTCM.",
            metavar="MB",
            ge=0,
            le=shared.MAX_VTCM_MB,
        ),
    ] = None
    log_level: Annotated[str | None, _LOG_LEVEL] = None
    enable_intermediate_outputs: Annotated[
        bool,
        Opt("--enable_intermediate_outputs", "Refused: the outputs are fixed.", is_advanced=True),
    ] = False
    version: Annotated[bool, _VERSION] = False
    trust: Annotated[
        bool,
        Opt(
            "--trust",
            "Extra: treat --model as a model library, whatever its name.",
            is_advanced=True,
        ),
    ] = False
    quantize: Annotated[
        str | None, shared.QUANTIZE.but("Extra: quantize a float model for LPAI first.")
    ] = None
    allow_float: Annotated[
        bool, Opt("--float", "Extra: allow a float model for LPAI.", is_advanced=True)
    ] = False
    time_limit: Annotated[
        float,
        shared.TIME_LIMIT.but(
            "Extra: time limit in seconds, from reading the model to writing the binary."
        ),
    ] = 600.0
    memory_limit: Annotated[
        Bytes | None,
        shared.MEMORY_LIMIT.but("Extra: address space limit of the compiler.", is_advanced=True),
    ] = None
