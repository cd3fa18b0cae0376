"""Short logs of programs that have nothing to do with QNN."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.last_words import chosen
from qnnmem.doctor.logs.reading import Chosen, read

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import foreign_logs
import generalise
from doctor_cases import incidents


@cache
def grades() -> Counter[tuple[bool, str]]:
    """How many of each part went how."""
    return Counter((one.held_out, how) for one, how in foreign_logs.graded(built_in()))


def test_what_was_looked_at_is_nothing_of_qnn() -> None:
    """Whatever fails in it."""
    assert {how for held_out, how in grades() if not held_out} == {"nothing of QNN"}


def test_few_others_are_given_a_side() -> None:
    """One in ten of those that nobody looked at."""
    held = {how: count for (held_out, how), count in grades().items() if held_out}
    assert held.get("a side", 0) <= 0.1 * sum(held.values())


def test_each_stands_there_once() -> None:
    """A log that is learned from would not be held out."""
    texts = [one.text for one in foreign_logs.read_foreign()]
    assert len(set(texts)) == len(texts)


def test_the_page_shows_these_numbers() -> None:
    """Of both parts."""
    page = generalise.PAGE.read_text("utf-8")
    for line in foreign_logs.tables(built_in()):
        assert line in page, "run python tools/generalise.py"


@pytest.mark.parametrize(
    ("log", "how"),
    [
        ("debconf: delaying package configuration, since apt-utils is not installed", "FOREIGN"),
        ("#8 155.1 invoke-rc.d: could not determine current runlevel", "FOREIGN"),
        ("Aug 27 12:26:08 host cron[12]: cannot open the table", "BESIDE"),
        ("[   12.057744] iwlwifi 0000:00:14.3: firmware load failed with error -2", "BESIDE"),
        ("E/libEGL  (26701): call with no current context", "BESIDE"),
        ("main.c:9:1: error: expected ';' before '}' token", "FOREIGN"),
        ("2021-06-08 21:40:22 ERROR (MainThread) [frontend.js] Uncaught", "UNKNOWN"),
        ("failed: no session", "EACH"),
        ("unsupported: fp16", "EACH"),
        ("E: Unable to load the graph", "EACH"),
        ("sd: failed to load unet", "EACH"),
        ("It just says FAIL", "EACH"),
    ],
)
def test_who_speaks(log: str, how: str) -> None:
    """A program is known by its name, its shape or its head; ordinary words are nobody's name."""
    assert chosen([log.encode()]) is Chosen[how]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("make: *** [libQnnModel.so] Error 1", None),
        ("npm ERR! qnn-addon: cannot find libQnnHtp.so", "skel_missing"),
        ("ERROR: No matching distribution found for onnxruntime-qnn", None),
        ("08-08 13:42:45.191   544   544 E MyNpuApp: could not create context", None),
        ("08-08 13:42:45.191   544   544 F libc: Fatal signal 11 (SIGSEGV) in tid 7", None),
        ("[  100.123456] Out of memory: Killed process 4242 (python3)", "mem_system_ram"),
        ("[  100.123456] qcom_q6v5_pas a300000.remoteproc: fatal error received", "dsp_crash"),
        ("make: *** [all] Error 2\nllama.gguf: failed to load the model", None),
        ("Collecting numpy==1.2\nerror 5005 from createFromBinary of the model", None),
    ],
)
def test_what_is_about_us_counts_whoever_says_it(log: str, cause: str | None) -> None:
    """A name of ours, networks, a program that died, and memory on the same device."""
    found = incidents(f"{log}\n".encode(), built_in())
    assert found
    assert cause is None or cause in {one.cause for one in found}


@pytest.mark.parametrize(
    "text",
    [
        b"QNN: config file missing, ignored",
        b"SNPE: UDO package not provided, built-in ops are used",
        b"hexagon image: optional component 'camera' not found",
        b"QNN: no memory pressure was seen",
        b"HTP: deadlock detector armed",
        b"QNN log level changed from error to warn",
        b"HTP: expected 2.40, found 2.40",
        b"QNN: rejected 0 of 24 graphs",
        b"cdsp loaded after 2 failed attempts",
        b"fastrpc lock: failed to acquire it is not fatal",
        b"QNN: terminating threads, graceful shutdown",
        b"ggml-hex: cannot find v81, trying v79 ... ok",
    ],
)
def test_what_is_done_without_or_watched_for_is_no_failure(text: bytes) -> None:
    """A word of failure in a sentence that says why nothing is lost."""
    assert read(text, Chosen.EACH) is None


@pytest.mark.parametrize(
    "text",
    [
        b"QNN: libQnnHtpV79Skel.so missing, ignored",
        b"QNN: cannot allocate 512 MB, skipping it",
        b"QNN: unsupported backend, error 5005, continuing",
        b"HTP not available, disabling the delegate",
        b"QNN graph finalize failed, will be ignored",
        b"node inserted in the format that QNN asks for, but was not selected by it",
        b"HTP: expected 2.40, found 2.4",
        b"HTP not running after 2 failed attempts",
        b"cdsp crash dump collected",
    ],
)
def test_what_is_needed_is_not_done_without(text: bytes) -> None:
    """A library, memory, a code, the way to run on HTP; nor is another number the same."""
    assert read(text, Chosen.EACH) is not None


def test_a_death_counts_whoever_died() -> None:
    """Stamped lines without a word of ours, but a program that ran died."""
    log = b"[2025-01-02T03:04:05.007Z] Fatal signal 11 (SIGSEGV), code 2 (SEGV_ACCERR)\n"
    assert incidents(log, built_in())
