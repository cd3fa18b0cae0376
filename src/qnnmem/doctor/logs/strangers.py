"""Who speaks in a short log, where it is nobody of ours.

Somebody chose the lines of a short log for the doctor, so they are read without a word of QNN in
them. But a package manager, a compiler, a web server or the kernel's USB driver says who it is:

    by its name     `dpkg: `, `sshd[77]: `, as programs begin their lines
    by its shape    `main.c:9:1: warning:`, `npm ERR!`, `3118#0: *7 `, `Setting up x (1.2) ...`
    by its head     logcat, kernel and journal name a speaker in each line

What they say fails is theirs. A line counts where it speaks of running networks all the same, and
in the log of a device also where it says that memory is short: then everybody is short of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from qnnmem.doctor.logs import header
from qnnmem.doctor.logs.tool_lines import ANY_TOOL, NAMED, OTHER_WAYS

# One of these anywhere, and the log is about our matters whoever speaks.
_OURS = (
    rb"qnn|htp\b|\bhtp|hexagon|npu(?!t)|snpe|snapdragon|qualcomm|qcom|qairt|\bqti\.|qai_"
    rb"|ai.?hub|genie|fastrpc|rpcmem|dsprpc|[ac]dsp|dsptransport|\bdsp|vtcm|lpai|enpu|\beai|\bdlc\b"
    rb"|remote_(?:handle|session|mmap)|executorch|litert|ggml|\baimet|\bsm[678][0-9]{3}|qcs[0-9]{4}"
    rb"|remoteproc|q6v5|glink|\bssr\b|\bsubsys"
)
# What a line speaks of that is about running networks.
_NETWORKS = _OURS + (
    rb"|onnx|\bort|tflite|tensor|nnapi|nnhal|llama|llm|gguf|neural|infer(?:ence|ring|red)\b"
    rb"|(?<![a-z])models?(?![a-z])|delegate|quanti[sz]|kv.?cache|\bweights?\b"
    rb"|dma.?heap|dma.?buf|smmu|skel\b|\bion\b"
    rb"|graph_?(?:prepare|execute|finali)|context ?binary|halide|mllm|\bmnn|ncnn|accelerator"
)
# Words of which most failing messages of ours hold one, though others have them, too.
_WORDS = (
    _NETWORKS + rb"|context|graph|session|backend|buffer|\bops?\b|operator|\bop_|interface"
    rb"|dlopen|dlerror|provider|\b(?:mem_?)?handles?\b|encod|calibrat|input.?list|/data/local"
    rb"|\badb\b|\bndk|\bsoc|domain|\bpd\b|sign(?:ed|ature)|spill|shard|scratch|persistent"
    rb"|layer|\bnodes?\b|execut"
    rb"|finali[sz]|prepar|convert|dispatch|dialog|token|prompt|\bforward\b|driver|firmware|\bphone"
    rb"|\bboard\b|\bdevice|kernel|mem|alloc|heap|m?map\b|[0-9] ?[kmg]i?b\b|bytes|attention|conv\dd"
    rb"|\bhmx\b|\bnn\b|<e>"
)
# Who writes so is a person who came to the doctor.
_PERSON = (
    rb"\b(?:i|i'm|i've|my|me|we|our|you|your|customer\S*|it just|please|help|why|how|when|then"
    rb"|now)\b"
)
# As programs that run our networks begin their lines.
_OUR_HEADS = rb"[0-9]ms \[|^\w+: \[\w+\.(?:cc|h|cpp):[0-9]+\]|^\[[vdiwef]:|\[qnn"
# By these a system speaks for whatever program it runs.
_FATE = (
    rb"\bfatal (?:signal|exception)|\bsig(?:segv|abrt|bus|ill)\b|\bdlopen\b|unsatisfiedlink"
    rb"|\banr in\b|\bhas died\b|\bbeginning of crash|lowmemorykiller|\blmkd?\b|\boom\b"
    rb"|out of memory|\bkill(?:ed|ing)? process\b"
)

_HEADED = ("threadtime", "studio", "brief", "kernel", "journal")
_LOGGED = (*_HEADED, "dated", "go", "tag")
# How a line of a log begins, whoever wrote it: a time, behind the name of a service.
_STAMPED = (
    rb"(?:[\w.-]{1,40} +\| )?\[?(?:[0-9]{4}[-/.][0-9]{2}[-/.][0-9]{2}|[0-9]{2}:[0-9]{2}:[0-9]{2}"
    rb"|[0-9]{10}\.[0-9]{3})|\[[\w.]{1,40}\]\[\w+\] [0-9]{4}-"
)
_FEW = 3  # lines of which nobody needs to know who wrote them
_ANY_PROGRAM = "journal"  # of these heads: one that names whatever program
_LONGEST = 400  # bytes of a line that tell who speaks


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compiled when first needed: most logs name us, or are long."""
    return re.compile(pattern)


def _holds(low: bytes, pattern: bytes) -> bool:
    return _compiled(pattern).search(low) is not None


def speaks_of_networks(low: bytes) -> bool:
    """Whether a line in small letters is about running networks, whoever says it."""
    return _holds(low, _OURS if _holds(low[:_LONGEST], OTHER_WAYS) else _NETWORKS)


def speaks_for_another(low: bytes) -> bool:
    """Whether a line in small letters tells how a program fared that is not the one that speaks."""
    return _holds(low, _FATE)


def name_us(lines: Sequence[bytes]) -> bool:
    """Whether a line names QNN, what it runs on or what it is part of."""
    return any(_holds(line.lower(), _OURS) for line in lines)


def hold_our_words(lines: Sequence[bytes]) -> bool:
    """Whether a line holds a word that messages of ours hold, or is not in English."""
    low = b"\n".join(lines).lower()
    return not low.isascii() or _holds(low, _WORDS)


def are_unknown(lines: Sequence[bytes]) -> bool:
    """Whether programs write the lines, and no word in them is one of ours, not even by chance."""
    logged = sum(map(_is_logged, lines))
    if 2 * logged <= len(lines) <= _FEW:
        return False
    ours = (_WORDS, _PERSON, _OUR_HEADS)
    low = [line.lower() for line in lines]
    return not any(not one.isascii() or any(_holds(one, words) for words in ours) for one in low)


def are_foreign(lines: Sequence[bytes]) -> bool:
    """Whether a tool or a server says in a short log who it is."""
    return any(map(_is_tool, lines))


def are_headed(lines: Sequence[bytes]) -> bool:
    """Whether most lines say who writes them, and these are no programs that run networks."""
    return 2 * sum(map(_is_headed, lines)) > len(lines)


def _is_tool(line: bytes) -> bool:
    head, low = header.parse(line), line[:_LONGEST].rstrip().lower()
    named = _compiled(NAMED).match
    return bool(named(low) or named(low[head.body :])) or _holds(low, ANY_TOOL)


def _is_logged(line: bytes) -> bool:
    return header.parse(line).style in _LOGGED or bool(_compiled(_STAMPED).match(line))


def _is_headed(line: bytes) -> bool:
    head = header.parse(line)
    if head.style not in _HEADED or header.producer(line) not in ("other", "kernel"):
        return False
    said = f"{head.tag.lower()}[1]: ".encode()
    return head.style != _ANY_PROGRAM or bool(_compiled(NAMED).match(said))
