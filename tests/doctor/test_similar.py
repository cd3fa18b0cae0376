"""Entries ranked by their similarity to a line that no entry matches."""

from __future__ import annotations

from functools import cache

import pytest

from qnnmem.doctor.kb.entry import Entry
from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder
from qnnmem.doctor.kb.similar import THRESHOLD, rank, words

# The author of the alias table wrote these lines, so they flatter it.
VARIANTS = (
    ("device-create", "qnnHtpDeviceCreate: FAILED, status QNN_STATUS_MEMORY_ALLOCATION_FAILED"),
    ("device-create", "device creation on HTP failed: memory alloc error 1002"),
    ("device-create", "[E] QnnDevice_create failed with 0x3ea"),
    ("device-create", "could not create htp device (MEM_ALLOC)"),
    ("device-create", "HTP device create returned 1002, system heap low"),
    ("graph-create", "QnnGraph_create failed: 1002"),
    ("graph-create", "graph creation stage: htp graph prepare error, out of memory"),
    ("graph-create", "Graph preparation failed on HTP, tensor count too large"),
    ("graph-create", "failed in graph create phase, intermediate activations do not fit"),
    ("graph-create", "qnn_graphCreate() -> QNN_GRAPH_ERROR_MEM_ALLOC"),
    ("inference", "QnnGraph_execute failed during inference, err 1002"),
    ("inference", "inference execution failure: htp execute returned 0x3ea"),
    ("inference", "Failed to execute graph on HTP: runtime activation buffers"),
    ("inference", "htpExecute failed, concurrent sessions exceed HTP memory"),
    ("inference", "error while running inference: qnn execute graph"),
    ("device-init", "QnnBackend_create / backend init failed: HTP backend"),
    ("device-init", "Failed to initialise the HTP backend: memory allocation"),
    ("device-init", "backendInitialize failed, sessions of earlier runs not released"),
    ("device-init", "qnn backend initialization error, firmware memory fragmentation"),
    ("device-init", "HTP backend could not be initialized, insufficient system heap"),
)
UNRELATED = (
    "Camera HAL: failed to allocate preview buffer of size 12441600",
    "wifi: firmware crashed, restarting interface",
    "java.lang.NullPointerException: Attempt to invoke virtual method on a null object reference",
    "vkCreateDevice failed: VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "E AudioFlinger: could not open output device, error -19",
    "kernel: usb 1-1: device descriptor read/64, error -71",
    "SSL handshake failed: certificate verify failed",
    "eglCreateContext failed: EGL_BAD_ALLOC (0x3003)",
    "MediaCodec: failed to initialize video/avc, error 0xfffffff4",
    "avahi-daemon: failed to create client object",
)


@cache
def everything() -> tuple[Entry, ...]:
    """Return the built-in entries."""
    return read_folder(BUILT_IN)[1]


@cache
def founding() -> tuple[Entry, ...]:
    """Return the four founding entries."""
    found = tuple(one for one in everything() if one.id.startswith("founding-"))
    assert len(found) == 4
    return found


def right(threshold: float) -> int:
    """Return how many variants rank their own entry first."""
    answers = ((name, rank(line, founding(), 1, threshold)) for name, line in VARIANTS)
    return sum(bool(got) and got[0].entry.id == f"founding-{name}" for name, got in answers)


def test_variants_lead_to_their_entry() -> None:
    """Without a threshold, at least 18 of 20 variants find their entry."""
    assert right(0.0) >= 18


def test_most_variants_pass_the_threshold() -> None:
    """With the threshold, at least 13 of 20 variants find their entry."""
    assert right(THRESHOLD) >= 13


@pytest.mark.parametrize("line", UNRELATED)
@pytest.mark.parametrize("which", [founding, everything], ids=["founding", "everything"])
def test_strangers_are_like_nothing(line: str, which: object) -> None:
    """An unrelated error is similar to no entry."""
    assert callable(which)
    assert rank(line, which()) == ()


def test_shared_words_are_told() -> None:
    """At most three entries are returned, with the words they share."""
    found = rank("QnnGraph_execute failed during inference, err 1002", everything())
    assert 0 < len(found) <= 3
    assert set(found[0].shared) >= {"inference", "execute"}
    assert 0 < found[0].score <= 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("QnnGraph_executeAsync", ["graph", "execute", "async"]),
        ("HTPBackend", ["htp", "backend"]),
        ("err 1002 and 0x3ea of 123456789 in 7", ["0x3ea", "and", "0x3ea"]),
        ("rpcmem_alloc", ["memory", "allocate"]),
        ("0x80000406", ["0x80000406"]),
    ],
)
def test_words_are_put_right(text: str, wanted: list[str]) -> None:
    """Identifiers are split, synonyms unified, numbers dropped and codes kept."""
    assert words(text) == wanted


@pytest.mark.parametrize("line", ["", "1002", "!!!", "memory"])
def test_too_little_says_nothing(line: str) -> None:
    """A line of fewer than two words is similar to no entry."""
    assert rank(line, everything()) == ()


def test_no_entries_no_answer() -> None:
    """An empty knowledge base gives no similar entries."""
    assert rank(VARIANTS[0][1], ()) == ()
