"""Messages of drivers, FastRPC and backends, alone and inside a healthy run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qnnmem.doctor.kb.knowledge import built_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from doctor_cases import incidents

GOOD = "QNN context created successfully"
UP = "remoteproc remoteproc2: remote processor 32300000.remoteproc is now up"


@pytest.mark.parametrize(
    ("text", "cause", "entry"),
    [
        (
            "[  384.922696] adsprpc: fastrpc_buf_alloc: invalid allocation size 0x100000000",
            "mem_buffer_cap",
            "driver-size-cap",
        ),
        (
            "[  964.348937] adsprpc: qnn-net-run: fastrpc_mmap_create: "
            "dma_buf_get failed for fd 57 ret -9",
            "buffer_misuse",
            "fd-not-a-buffer",
        ),
        ("ggml-hex: HTP0 dspcall : dsp-rsp: NO-SUPPORT", "op_unsupported", "ggml-op-refused"),
    ],
)
def test_what_a_message_names(text: str, cause: str, entry: str) -> None:
    """A driver message gives its cause and entry."""
    (found,) = incidents(f"{text}\n".encode(), built_in())
    assert (found.cause, found.entry) == (cause, entry)


@pytest.mark.parametrize(
    "text",
    [
        "MNN QNN set burst mode",
        "[INFO] QNNBackend.cpp:316 Profiling turned on; level = 0",
        "[  545.266200] qcom,fastrpc-cb cdsp:fastrpc:compute-cb@5: Adding to iommu group 34",
        "[MNN::Hexagon] vectorSize=128, vtcmSize=8388608, maxThreads=6, hvxArch=75",
        "11-21 03:26:20.298 15378 15400 I Runtime: graphFinalize(model) \u6210\u529f",
        "Init from model lib since context binary 'model.bin' does not exist",
        "ADSPRPC: 23123 23125 I qnn-net-run: domain_deinit: closed device 5 (kill time 1203 us)",
        "[MNN::Hexagon] get_hex_arch_ver failed, fallback to 73, err=0x14 capability=0x0",
    ],
)
def test_what_a_good_run_says_alarms_nobody(text: str) -> None:
    """A message of a healthy run raises no incident, alone or between good news."""
    assert not incidents(f"{text}\n".encode(), built_in())
    assert not incidents(f"{GOOD}\n{text}\n{UP}\n".encode(), built_in())


@pytest.mark.parametrize(
    "text",
    [
        "ggml-hex: HTP0 dspcall : bad response : size 0 dspbufs 4",
        "ADSPRPC: 14188 14191 E qnn-net-run: dspqueue_cpu.c:486: No queues in process for domain 3",
        "[ERROR] QNNModel.cpp:44 QNNModel::initialize() not able to create graph in given context.",
        "11-21 18:09:04.428  5693  5722 V adsprpc : 5cdc:95: CDSP0:[DU]: Error callback: 0x2e",
        "QNN Gather only supports one axis",
    ],
)
def test_a_failure_in_calm_words_is_not_passed_over(text: str) -> None:
    """A failure in calm words is an incident if it is the whole log."""
    assert incidents(f"{text}\n".encode(), built_in())


def test_how_many_there_are_is_no_code() -> None:
    """A number before the things it counts is not a code."""
    text = "E/adsprpc: fastrpc_munmap: Attempt to unmap FD 57 with 2 outstanding references"
    (found,) = incidents(f"{text}\n".encode(), built_in())
    assert "code" not in dict(found.quantities)
