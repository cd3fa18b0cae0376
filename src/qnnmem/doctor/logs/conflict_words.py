"""Two values of one kind that differ: versions, processors, sizes of VTCM, a size and its limit.

Who states both need not say that something failed. Rows are as those of `topics`; a name in a
pattern stands for the first value, which the second one must not be. Digits of lines of a log are
made alike before they are read, so these speak where a message is read as it is.
"""

from __future__ import annotations

from qnnmem.doctor.logs.topic_words import AMOUNT, CHIP, DIFFERS

_VERSION = r"[0-9]+\.[0-9]+(?:\.[0-9]+)*"
_UNIT = r"(?! ?(?:[kmg]i?b|ms|us|s\b|sec|fps|%|x\b|mhz|ghz|w\b|tok))"
_OF_RELEASES = (
    r"\b(?:versions?|releases?|sdk|qairt|qnn|snpe|genie|runtime|stub|skel|librar(?:y|ies)|delegate"
    r"|driver|firmware|binary|cache|blob|bundle|api|onnxruntime|ort)\b"
)
_SAYS = (
    r"\b(?:needs?|needed|requires?|required|provides?|expects?|expected|exported|built|made|prepared"
    r"|compiled|generated|created|is|are|has|have|reports?|loaded|runs?|running|wants?|got|while"
    r"|but|and|on|with|vs|against|from|same)\b"
)
_ALIKE = (
    r"\bmatch(?:es|ing)?\b|\bcompatible\b|\bsupport(?:s|ed)\b|\bok\b|\bsucce|\bworks?\b(?! with)"
)

CONFLICTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "soc_mismatch",
        (
            r"(?<![\w.])v[0-9]{1,2}(?![\w.])",
            r"(?<![\w.])v(?P<arch>[0-9]{1,2})(?![\w.]).{1,60}(?<![\w.])v(?!(?P=arch)\b)[0-9]{1,2}(?![\w.])",
            r"\b(?:binary|model|skel|context|hexagon|dsp|htp|e?npu|lpai|library|blob|device|soc"
            r"|silicon|phone|board|target)\b",
            r"\b(?:built|compiled|prepared|made|generated|for|in the model)\b",
            r"\b(?:device|silicon|soc|phone|board|target|this|here|chip|part|machine)\b",
        ),
        rf"{_ALIKE}|\bv[0-9]{{2}},? (?:and|or) v[0-9]{{2}}\b|(?:\bv[0-9]{{2}}\b.*){{3}}",
    ),
    (
        "soc_mismatch",
        (
            rf"\b{CHIP}\b",
            rf"\b(?P<chip>{CHIP})\b.{{1,60}}\b(?!(?P=chip)\b){CHIP}\b",
            r"\b(?:built|compiled|prepared|made|generated|meant|for|binary|model|context)\b",
            r"\b(?:device|silicon|soc|phone|board|target|this|here|chip|part|run(?:s|ning)?)\b",
        ),
        rf"{_ALIKE}|\b(?:and|or|,) ?{CHIP}",
    ),
    (
        "version_mismatch",
        (
            r"[0-9]\.[0-9]",
            rf"(?<![\w.])v?(?P<one>{_VERSION})\b{_UNIT}.{{1,60}}(?<![\w.])v?(?!(?P=one)\b){_VERSION}\b"
            rf"{_UNIT}",
            rf"{_OF_RELEASES}.{{0,80}}{_OF_RELEASES}|\bsame (?:version|release)\b",
            _SAYS,
        ),
        rf"{_ALIKE}|\barch|{AMOUNT}|\bpython\b|\b(?:and|or|to|,|-) ?v?{_VERSION}|\bupgrad|\bupdat",
    ),
    (
        "vtcm_config",
        (
            r"\bvtcm",
            r"\bvtcm\w*.{0,24}(?P<size>[0-9]+).{1,60}\b(?!(?P=size)\b)[0-9]+\b",
            r"\b(?:prepared|built|compiled|made|generated|binary|configured)\b",
            r"\b(?:grants?|has|have|gives?|provides?|offers?|device|part|soc|target)\b",
        ),
        rf"{_ALIKE}|\bops?\b|operator",
    ),
    (
        "vtcm_config",
        (
            r"\bvtcm\b",
            r"\b(?P<size>[0-9]+) ?mi?b (?:of )?vtcm\b.{1,80}"
            r"\b(?!(?P=size)\b)[0-9]+ ?mi?b (?:of )?vtcm\b",
            r"\b(?:device|part|soc|target|board|phone|chip|real|here)\b",
        ),
        rf"{_ALIKE}|\bops?\b|operator",
    ),
    (
        "mem_graph_limit",
        (
            r"\b(?:cap|limit|maximum|budget|allowed)\b",
            r"\b(?:graph|arena|compiler|estimat\w+|finali[sz]\w*)\b",
            r"\b(?:over|above|beyond|exceed\w*)\b.{0,12}\b(?:cap|limit|maximum|budget)\b"
            r"|\bonly allowed\b"
            r"|\ballowed\b.{0,24}\bper graph|\blimit\b.{0,16}\bper graph",
            rf"(?:{AMOUNT}).*(?:{AMOUNT})",
        ),
        r"\bvtcm\b|\btcm\b|\bspill|\bbuffers?\b",
    ),
)

# Releases that do not go together, where a line says so.
VERSIONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "version_mismatch",
        (
            r"cannot locate symbol|undefined (?:\w+ )?symbol|symbol not found"
            r"|fail\w*(?: to)? dlsym|dlsym fail|\brelocation (?:fail|error)",
        ),
        "",
    ),
    (
        "version_mismatch",
        (
            r"(?:newer|older|future|outdated) (?:\w+ ){0,2}(?:binary|blob|cache|sdk|librar|driver)"
            r"|(?:binary|blob|cache|sdk|library|driver|firmware)(?: is)?(?: too)?"
            r" (?:newer|older|old|new|outdated)\b"
            r"|\b(?:driver|sdk|firmware|runtime)\b.{0,40}\btoo (?:old|new)\b",
        ),
        r"\bsoc\b|\barch",
    ),
    (
        "version_mismatch",
        (r"\b(?:stub|skel|runtime|librar\w+|sdk)\b.*[0-9]\.[0-9].*[0-9]\.[0-9]", DIFFERS),
        r"\bsoc\b|\barch",
    ),
    (
        "version_mismatch",
        (
            r"(?:made|created|built|generated|compiled|exported|converted) (?:by|with|using|in)\b"
            r".*[0-9]\.[0-9].*\b(?:can.?t|cannot|not|but|on|runs?|running|runtime|loaded)\b.*[0-9]\.[0-9]",
        ),
        r"\bsoc\b|\barch",
    ),
    (
        "version_mismatch",
        (
            r"\b(?:only (?:supported|available|works?)|requires?|needs?|minimum)\b.{0,60}"
            r"(?:>=|\bat least|\bfrom) ?v?[0-9]+\.[0-9]",
        ),
        r"\bsoc\b|\barch|\b[kmg]i?b\b|bytes",
    ),
    (
        "version_mismatch",
        (
            r"\b(?:binary|blob|cache|library|model)\b.{0,24}(?:(?:not|n.t) compatible|incompatible)"
            r" with .{0,24}\b(?:sdk|runtime|release|driver|version)\b",
        ),
        r"\bsoc\b|\barch",
    ),
)
