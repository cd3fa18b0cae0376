"""Causes that failing lines name in words of their own."""

from __future__ import annotations

import pytest

from qnnmem.doctor.logs.reading import read
from qnnmem.doctor.logs.topics import CAUSES_NAMED, named_cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('dlopen failed: library "libQnnHtpV75Skel.so" not found', "skel_missing"),
        ("QnnHtp.dll could not be found, error 126", "skel_missing"),
        (
            "libcdsprpc.so: cannot open shared object file: No such file or directory",
            "skel_missing",
        ),
        ("QNN: opening /dev/fastrpc-cdsp failed: Permission denied", "access_denied"),
        ("avc:  denied  { read } for name=qnn scontext=u:r:untrusted_app", "access_denied"),
        ("verifying the signature of the skel failed", "signing"),
        ("Out of memory: Killed process 812 (qnn-net-run)", "mem_system_ram"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "mem_system_ram"),
        ("remoteproc2: crash detected in cdsp: type fatal error", "dsp_crash"),
        ("SSR Detected - You must free and recreate affected handles", "dsp_crash"),
        ("the graph requires 4100000000 bytes, above the limit of 3758096384", "mem_graph_limit"),
        ("buffer size 556236800 exceeds max_bufsize 268435456", "mem_buffer_cap"),
        ("context binary version 3.1 is not supported, expected 2.4", "version_mismatch"),
        ("SDK version mismatch between stub and backend", "version_mismatch"),
        ("the blob was compiled for soc 57, this is a different soc", "soc_mismatch"),
        ("dsp arch v68 does not match v75", "soc_mismatch"),
        ("No translation registered for op type onnx_dynamicquantizelinear", "op_unsupported"),
        ("operator GridSample is not supported", "op_unsupported"),
        ("No backend could validate Op=/model.22/Sigmoid Type=Neuron", "op_unsupported"),
        ("no session available on the cdsp", "session_limit"),
        ("waiting for the DSP timed out", "timeout"),
        ("memhandle of tensor a is already registered", "buffer_misuse"),
        ("size mismatch of input_0", "buffer_misuse"),
        ("input shape dimension 2 is not equal to 128 of the graph", "buffer_misuse"),
        ("binary of BUILD ID: v2.41.0.25 != current sdk BUILD ID: v2.39.0.25", "version_mismatch"),
        ("QNN EP version handshake fails, supported=0", "version_mismatch"),
        ("undefined error, model format version detected: 3.0.0", "version_mismatch"),
        ("weight sharing is only supported in onnxruntime >= 1.22.0", "version_mismatch"),
        ("adsp dlopen error: undefined PLT symbol memalign in a_skel.so", "version_mismatch"),
        ("plt object relocation failure of the skel", "version_mismatch"),
        ("QNN Providers library not found.", "skel_missing"),
        ("No dispatch library found in lib/arm64", "skel_missing"),
        ("probe: no QNN or QAIRT libraries resolved", "skel_missing"),
        ("libatomic.so.1: cannot open shared object file: No such file", "skel_missing"),
        ("cannot find libcdsprpc in the namespace of the app", "skel_missing"),
        ("unsigned PD rejected, because it is missing the fastrpc_shell_3", "skel_missing"),
        ("allocation from the system heap fails with a permission error", "access_denied"),
        ("the buffer comes only when executed with sudo, else it fails", "access_denied"),
        ("QNN error 1100, dspservice just died!", "dsp_crash"),
        ("QNN EP unavailable: no FastRPC device node", "driver_firmware"),
        ("remoteproc:glink-edge.fastrpc: Error: Invalid domain id:5", "driver_firmware"),
        ("invalid handle: another process already holds QNN graphs", "session_limit"),
        ("error: memory of the process keeps climbing", "mem_leak"),
        ("the model is freed, but of its memory 700MB is left used", "mem_leak"),
        ("Tensor data size does not match QNN tensor data size", "buffer_misuse"),
        ("Data length mismatch for static tensor", "buffer_misuse"),
        ("'keys' has shape {1,8,80} but the computed shape is {1,8,4096}", "buffer_misuse"),
        ("the set has input 'mask' but expected 'key'", "buffer_misuse"),
        ("No DSP skeleton dirs found under /usr/share (expected v75/ v68/)", "skel_missing"),
        ("Unable to load DLL 'qnn': The specified module could not be found.", "skel_missing"),
        ("error: input x starts 4 bytes past a multiple of 64", "buffer_misuse"),
        ("QNN: bytes 4032 to 4132 of fd 3 are 36 past its end, failed", "buffer_misuse"),
        ("error: the buffer needs 256 bytes, 192 were given", "buffer_misuse"),
        ("HTP fault: output buffer was freed before the execution", "buffer_misuse"),
        ("invalid: bytes 0 to 100 of fd 3 are registered already", "buffer_misuse"),
        ("error: input and output buffers overlap", "buffer_misuse"),
        ("per-layer embedding is too large for HTP client buffer.", "mem_buffer_cap"),
        ("Context binary isn't compatible with the current SDK.", "version_mismatch"),
        ("TensorBuffer buffer size is smaller than the given data size, 8 vs 9", "buffer_misuse"),
        ("address (0x7f9a3c0010) does not have required alignment (4096 bytes).", "buffer_misuse"),
        ("Output buffer too small: allocated 150528, required 602112", "buffer_misuse"),
        ("failed to allocate 4096 bytes for the weights", "mem_unknown"),
        ("unsigned PD not supported on this device", "signing"),
        ("apis supported only on signed cdsp, error", "signing"),
        ("libQnnHtpV75Skel.so was rejected: it is not signed", "signing"),
        ("the npu has crashed", "dsp_crash"),
        ("the CDSP process can map at most 3.5 GB, the model needs 4.2 GB", "mem_dsp_va"),
        ("PD 0 has no room for another 600 MB mapping", "mem_dsp_va"),
        ("op MatMul needs 9.2 MB of VTCM but the chip has 8 MB", "mem_vtcm"),
        ("cannot allocate a buffer of 2147483648, max buffer size 1073741824", "mem_buffer_cap"),
        ("allocation failed: another app occupies the DSP heap", "mem_concurrency"),
        ("rpcmem leak: 120 buffers are still mapped", "mem_leak"),
        ("activations of 3.2 GB do not fit", "mem_activation"),
        ("lmkd killed com.example.genie", "mem_system_ram"),
        ("maximum number of DSP sessions reached", "session_limit"),
        ("all FastRPC sessions are in use", "session_limit"),
        ("cdsp firmware failed to load: -2", "driver_firmware"),
        ("NotImplementedError: no visitor for aten.cumsum.default", "op_unsupported"),
        ("input tensor has 602112 bytes, the graph expects 150528", "buffer_misuse"),
        ("memhandle 0x7 was registered twice", "buffer_misuse"),
        ("output buffer is not 128-byte aligned", "buffer_misuse"),
        ("could not locate the Hexagon skel for v75", "skel_missing"),
        ("Unsupported Hexagon version v65, at least v68 is needed", "soc_mismatch"),
        ("FileNotFoundError: No such file or directory: 'libQnnHtp.so'", "skel_missing"),
        ("Kernel panic - not syncing: fastrpc_internal_control", "driver_firmware"),
        ("ADSP crash: heap alloc failed", "mem_unknown"),
        ("\u6ca1\u6709 /dev/adsprpc-smd \u6743\u9650, qnn_open failed", "access_denied"),
        ("hexagon: bin: size 2384199680 != expected 598230528", "buffer_misuse"),
        ("loading libQnnHtp.so: cannot open shared object file", "skel_missing"),
        ("DllNotFoundException: Unable to load libQnnHtp", "skel_missing"),
        ("mapping of the buffer failed", "mem_unknown"),
        ("libc: malloc(4294967296) failed: returning null pointer", "mem_unknown"),
        ("QNN failed: not enough memory", "mem_unknown"),
    ],
)
def test_a_line_names_its_cause(text: str, cause: str) -> None:
    """In any order of words."""
    assert named_cause(text.lower()) == cause
    assert cause in CAUSES_NAMED


@pytest.mark.parametrize(
    "text",
    [
        "qnngraph_finalize failed with 1002",
        "failed to create device, error 14001",
        'openat(at_fdcwd, "/vendor/dsp/testsig.so", o_rdonly) = -1 enoent (no such file)',
        "error 0x80000406: remote_handle64_open failed",
        "context create from binary failed, err 5000",
        "poll mode updated, timeout 9999",
        "fopen failed for oemconfig.so (no such file or directory) apps_std",
        "addnode(qnn_opconfig_version_1, name) expected model_no_error, got model_tensor_error",
        "malloc(): invalid size (unsorted)",
        "invalid number of output shapes for unary op.",
        "conv2d bias size mismatch: 4 vs 7",
        "expected sdk version in vmajor.minor.patch.buildid format.",
        "no mem handle found for address.",
        "failed to get signature: serving_default is invalid",
        "fastrpc_wait_for_completion: poll mode timeout",
        "genie: unsupported model architecture gemma",
        "qnn graph needs max 4 inputs but got 5",
        "qnn graph finalize needs over 20 minutes and then fails",
        "vtcm sharing requires more than 1 graph, failed",
        "number of tensors 3000 exceeds the max of 2048",
        "could not find a version that satisfies the requirement onnxruntime-qnn",
        "node v18 is not supported by the binding",
        "subsystem restart level is set to related",
        "the dsp crash is fixed since 2.40",
        "no such file or directory: 'config.json' (libgenie.so loaded)",
        "model.bin not found, libqnnhtp.so loaded",
        "backend qnn not registered",
        "delegate qnndelegate was already registered",
        "the encoding is not registered for tensor x",
        "no memory leak was found in 100 sessions",
        "8 bit activations need a scale of 4.0 mb",
        "method signature differs, failed to load forward",
        "the same crash signature, qnn fails with 1003",
        "qnn tensor of an unsigned type is refused",
        "the app is signed but qnn fails with 4000",
        "the app crashes when i choose the dsp",
        "the npu app crashes when i rotate the screen",
        "sysmalloc: assertion `old_size == 0' failed, libhexagon",
        "libqnnhtp.so: failed to map segment from shared object",
        "",
    ],
)
def test_codes_and_calls_name_none(text: str) -> None:
    """Nor do lines that only speak of such things."""
    assert named_cause(text) == ""


def test_a_long_line_costs_no_more_than_its_start() -> None:
    """However many words of causes follow."""
    text = b"E QnnDsp : failed " + b"crash " * 2000 + b"dsp timed out"
    failure = read(text)
    assert failure is not None
    assert failure.cause == ""
