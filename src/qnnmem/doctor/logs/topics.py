"""The cause that a failing line names in words of its own, where no template knows it.

A line names a cause when it says what is wrong, not only that something is: a file that is not
found, a number above a limit, two versions, an operator, a right that is missing. Codes and calls
name none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from qnnmem.doctor.logs.buffer_words import MISMATCH, MISUSE, TCM
from qnnmem.doctor.logs.conflict_words import CONFLICTS, VERSIONS
from qnnmem.doctor.logs.library_words import MISSING
from qnnmem.doctor.logs.topic_words import (
    AMOUNT,
    ASKED,
    CHIP,
    DIFFERS,
    HEAP_SPOILT,
    LACKS,
    LESS,
    MEMORY_OF,
    NUMBER,
    OPERATOR,
    OVER,
    OWN,
    REFUSED,
    REMOTE,
    SIGNED,
)

# Each: a cause, what a line must hold in any order, and what it must not hold. The first that fits
# is meant, so the more telling come first.
_TOPICS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "mem_system_ram",
        (
            r"oom[-_ ]?kill|oom_reaper|lowmemorykiller|lmkd?:|bad[_ ]?alloc(?:ation)?\b"
            r"|\bkill\w* by (?:the )?(?:lmkd?|oom|low memory)|\blow_memory\b|\blmkd? kill"
            r"|\blow[- ]memory killer\b"
            r"|page allocation failure|\bmemoryerror\b|\bjava\.lang\.outofmemoryerror\b",
        ),
        "",
    ),
    (
        "mem_system_ram",
        (r"\b(?:android|system|os|kernel)\b.{0,24}\bkill(?:s|ed)?\b", r"\bmem(?:ory)?\b|\bram\b"),
        r"\bpanic|\bv?tcm\b",
    ),
    ("mem_system_ram", (r"out of memory", r"\bkill\w*"), ""),
    (
        "mem_system_ram",
        (
            r"bfc_?arena|paging file|cpu ?_?allocator|posix_memalign|\bib for an array",
            r"fail|not enough|unable|too small",
        ),
        "",
    ),
    (
        "mem_system_ram",
        (
            r"\bram\b|\bcommitted\b|\bswap\b",
            r"[0-9] ?(?:gi?b|mi?b)\b.{0,24}\b(?:used|committed|in use|taken)\b",
            r"fail|cannot|could not|can.t|nothing left|refus|killed|unable",
        ),
        r"\bvtcm\b|\btcm\b",
    ),
    (
        "mem_leak",
        (
            r"\bleak(?:s|ed|ing)?\b",
            rf"(?:{MEMORY_OF}|rpcmem|dma-?buf|\bheap|\bmappings?)\b.{{0,24}}\bleak"
            rf"|\bleak\w*\b.{{0,24}}(?:{MEMORY_OF}|rpcmem|dma-?buf|\bheap|\bmappings?)",
        ),
        r"\b(?:no|without|0) (?:\w+ )?leak|\bleak (?:check|test|detector|detection|saniti)",
    ),
    (
        "mem_leak",
        (
            r"\b(?:never|not)(?: being)? (?:given back|freed|released|returned)\b"
            r"|\b(?:grow|increas|climb|ris)(?:s|es|ing)? (?:steadily|over time"
            r"|(?:on|with|after) (?:each|every))\b"
            r"|\bkeeps? (?:growing|increasing|climbing|rising)\b"
            rf"|\b(?:{AMOUNT})(?: \w+){{0,3}} (?:is|are|remains?|stays?) (?:still )?"
            r"(?:left|allocated|held|resident|in use)\b"
            r"(?= (?:after|behind|until|even|used)|[,.]|$)",
            r"\b(?:mem(?:ory)?|ram|rss)\b",
        ),
        r"\bneeds?\b|\bonly\b|\bexceed",
    ),
    (
        "mem_concurrency",
        (
            r"\b(?:another|other|a second|different) (?:process|app|client|program|session|user)\b",
            r"memory|\bv?tcm\b|\bheap\b",
            r"fail|held|\bhas\b|\buses?\b|in use|took|taken|occup|not available|unavailable",
        ),
        r"permission|denied|not allowed|address|handle",
    ),
    (
        "mem_activation",
        (
            r"\bactivations?\b|\bfeature maps?\b|\bintermediate tensors?\b",
            rf"{ASKED}|{OVER}|(?:not|n.t) fit|out of|refus|blows? up",
            AMOUNT,
        ),
        r"\bbit|quanti|encoding|dtype|\bv?tcm\b|spill",
    ),
    (
        "mem_spill_fill",
        (
            r"spill(?:[ _/-]?fill|[ _](?:space|buffer|area))",
            rf"{LESS}|{OVER}|overflow|\b(?:needs?|requires?)\b",
            NUMBER,
        ),
        "",
    ),
    (
        "mem_map_layer",
        (
            r"hypervisor|virtio|page[ -]?tables?\b|pgtable|\bh?v?fastrpc_mem_map|paravirt",
            r"fail|invalid|exhaust|can.t|cannot|no (?:more )?(?:memory|space)|full|refus|exceed"
            r"|drain",
            r"\bda\b|\w*map\b|mapp(?:ing|ed)|pool",
        ),
        "",
    ),
    *TCM,
    (
        "vtcm_config",
        (r"\bvtcm\b", r"request|ask|feature|config|size", REFUSED),
        r"\bops?\b|operator",
    ),
    (
        "mem_vtcm",
        (
            r"\bv?tcm\b",
            rf"{OVER}|{LESS}|(?:not|n.t) fit|no (?:more )?(?:room|space)|out of|but only",
            NUMBER,
        ),
        r"version|limit of [0-9]+ \w+s\b|\b[0-9]+ (?:graphs?|contexts?|threads?|cores?)\b",
    ),
    (
        "mem_vtcm",
        (
            r"\bvtcm (?:alloc\w*|reserv\w*|request) (?:fail|refus)"
            r"|\bvtcm (?:pool|heap|arena)\b.{0,24}\b(?:exhaust|returns? null)",
        ),
        "",
    ),
    ("mem_vtcm", (r"\bv?tcm\b", rf"{ASKED}.{{0,40}}(?:{AMOUNT}).{{0,40}}(?:{AMOUNT})"), r"version"),
    (
        "mem_multi_context",
        (
            r"too many (?:\w+ )?(?:contexts?|graphs?|models)"
            r"|max\w* (?:number of )?(?:contexts|graphs)"
            r"|\b(?:graphs?|contexts?|models?|loras?)\b.{0,40}\bthe [0-9]+(?:st|nd|rd|th)\b.{0,24}"
            r"\b(?:could not|cannot|can.t|fail\w*)\b.{0,16}\b(?:alloc\w*|load\w*|map\w*|fit)",
        ),
        "",
    ),
    (
        "mem_dsp_va",
        (
            r"\b(?:can|could|may) (?:only )?map (?:at most|up to|only|no more than)\b",
            rf"\b{REMOTE}\b|\bpd\b|\bhtp\b|\bnpu\b",
            AMOUNT,
        ),
        "",
    ),
    (
        "mem_dsp_va",
        (
            r"address (?:space|window)|\bva space|\biova\b|protection domain|process domain"
            r"|\b(?:user )?pd\b",
            r"exhaust|\bfull\b|no (?:more|free|room)|out of|not enough|insufficient|exceed|\bdry\b"
            rf"|limit (?:is |was )?reached|\bonly (?:{AMOUNT}) (?:left|free|available)|will not map"
            r"|(?:unable|fail\w*|cannot|could not|can.t)(?: to)? (?:reserve|map|find room)",
        ),
        r"\bsessions?\b",
    ),
    (
        "dsp_crash",
        (
            r"\bssr\b.*(?:detect|happen|occur|trigger)|subsystem.?restart|crash detected"
            rf"|fatal error received|\b{REMOTE}\b.*\bcrash\w*|\bcrash\w*\b.*\b{REMOTE}\b"
            r"|\bnpu (?:has |had )?crash(?:ed|es)?\b|\b(?:[acs]?dsp\w{0,8}) (?:has |just )?died\b"
            r"|\bq6 fatal|\b[acs]dsp\d? (?:fatal|exception)|\b[acs]dsp\d?:ex:"
            r"|unhandled context fault",
        ),
        # An app crashes for many reasons, also one that uses the DSP; a heap that is used up is
        # the reason of a crash.
        r"\b(?:apps?|application|activity|program)\b[^.;]{0,24}\bcrash"
        r"|\bcrash\w* (?:of )?(?:my |the )?(?:apps?|application)\b|\bnot crash"
        r"|\w(?:error|exception):|out of (?:memory|heap)\b"
        r"|\bheap (?:alloc\w* )?(?:fail|exhaust|is full)|restart level"
        r"|\bcrash (?:recovery|handler)\b"
        r"|\bcrash\w* (?:is |was |are |were )?(?:fixed|gone|solved)\b",
    ),
    # A query that a device does not answer is refused, too; it says so as a warning.
    (
        "access_denied",
        (
            r"permission denied|\bpermission errors?\b|\b(?:root|sudo) only\b"
            r"|\bonly (?:\w+ ){0,3}(?:with sudo|as root)\b|\bdenied \(eperm\)"
            r"|\bpermission (?:to|for|on)\b.{0,40}\b(?:refused|denied|missing)"
            r"|not allowed to (?:talk|speak) to"
            r"|\bwithout (?:sudo|root)\b.{0,60}\b(?:not|fail\w*|denied)"
            r"|\bselinux\b.{0,40}\b(?:blocks?|blocked|refus\w+|permission denied)"
            r"|not allowed to (?:open|access|use)|\beacces\b|avc: *denied"
            r"|\baccess\b[^.;]{0,40}\bnot allowed\b"
            r"|\bno (?:\S+ ){0,6}permission\b(?! (?:is |are )?(?:needed|required))"
            r"|\u6ca1\u6709.{0,40}\u6743\u9650"
            r"|operation not permitted",
        ),
        r"\bwarning\b.*(?:attribute|capabilit)",
    ),
    (
        "dsp_crash",
        (
            r"went away|vanished|disappeared|restarted|\breset\b|reboot|tlb ?miss|\bqurt\b|exited",
            rf"\b(?:{REMOTE}|npu|htp)\b.{{0,16}}\b(?:went away|vanished|disappeared|restarted|reset"
            r"|reboot(?:s|ed)|process (?:exited|died))\b|\bqurt (?:exception|error)\b"
            r"|\btlb ?miss\b.*\b(?:frpc|dsp|qnn)|\b(?:frpc|dsp|qnn).*\btlb ?miss\b",
        ),
        r"\bsuccess|\bwas reset to\b",
    ),
    (
        "driver_firmware",
        (
            r"\b(?:remoteproc|rproc|subsystem|q6v5)",
            r"\binvalid domain id\b|\bremoteproc (?:is )?(?:not (?:running|up|online)|offline)\b"
            r"|(?:can.t|cannot|could not|fail\w*|unable)(?: to)? (?:start|boot|load|power)"
            r"|(?:start|boot|load) (?:timed out|failed)",
        ),
        "",
    ),
    (
        "driver_firmware",
        (
            r"\bdriver\b",
            r"\bfail\w* to (?:get|open|load|start)\b.{0,16}\bdriver\b"
            r"|\bupdate (?:the |your )?(?:\w+ )?driver|\bdriver\b.{0,24}\bdoes not export\b"
            r"|\bdriver\b.{0,16}\b(?:not (?:installed|loaded|present|found|running)|missing"
            r"|too old)"
            r"|\bno (?:\w+ )?driver\b",
            r"\bnpu\b|\b[acn]?(?:dsp|sp)\b|\bhtp\b|\bqnn|hexagon|fastrpc|adsprpc|qualcomm",
        ),
        r"\.so\b|\.dll\b|version",
    ),
    (
        "driver_firmware",
        (r"\bno (?:\w+ ){0,3}(?:device nodes?\b|/dev/)", r"fastrpc|[acs]dsp|\bnpu\b|\bdsp\b"),
        "",
    ),
    (
        "driver_firmware",
        (r"\bkernel panic\b|\bunable to handle kernel\b|\binternal error: oops",),
        r"\boom\b|out of memory|no killable|no working init|root fs",
    ),
    (
        "driver_firmware",
        (
            r"\bfirmware\b",
            r"\b(?:[acs]?dsp\d?|npu|htp|hexagon|remoteproc)\b.{0,24}\bfirmware\b",
            rf"fail\w* to (?:load|boot|start)|not (?:be )?loaded|{LACKS}",
        ),
        r"version|too (?:old|new)|\bsign",
    ),
    ("access_denied", (r"not accessible for the namespace|selinux.*den(?:y|ied)",), ""),
    (
        "signing",
        (
            r"signature|signed|test-?sig",
            SIGNED,
            r"fail|invalid|denied|refus|verif|reject|\bonly\b|not (?:support\w*|allow\w*)",
        ),
        r"unsigned.*(?:enabled|true)|signed (?:char|int|short)|(?:un)?signed (?:8|16|32)|dtype"
        r"|\bmissing\b.{0,24}\bfastrpc_shell"
        # Where code runs that need not be signed.
        r"|\(unsigned pd\)|\bunsigned[ _-]?pd (?:tests?|runs?|sessions?|mode)\b"
        # Those of a function, of a model's entry, of a pattern of failures.
        r"|signature[ _-]?(?:index|key|runner|def\b|name|list|is null)|\b(?:method|function|crash"
        r"|error|failure|same|call|op|model)[ -]signatures?\b",
    ),
    *VERSIONS,
    *MISSING,
    *MISUSE,
    *CONFLICTS,
    (
        "mem_graph_limit",
        (r"estimat\w+|requires?|needs?", r"\bgraph\b", rf"{OVER}|limit|max", AMOUNT),
        r"op ?package|version",
    ),
    (
        "mem_buffer_cap",
        (
            r"buffer|allocat\w+|\bbufsize|tensor|\b\w*mmap\b",
            OVER,
            r"max\w*|limit\w*|\bcap\b",
            rf"{NUMBER}.*{NUMBER}",
        ),
        r"vtcm|\btcm\b|index|dim|rank|token|time|_path\b|\b(?:number|count) of\b|\bcount\b"
        r"|\bbatch|\bkernel size|\bchannels?\b",
    ),
    (
        "mem_buffer_cap",
        (
            r"\b(?:buffer|allocation)s?\b",
            r"\bmax\w*[ _](?:\w+[ _])?(?:buffer|alloc\w*)[ _]?(?:size)?\b|\bsingle[ -]buffer limit"
            r"|\blimit (?:per|of (?:a|one|each)) (?:single )?(?:buffer|allocation)",
            rf"(?:{AMOUNT}).*(?:{AMOUNT})",
        ),
        r"vtcm|\btcm\b",
    ),
    (
        "mem_buffer_cap",
        (r"too (?:large|big) for (?:the |an? )?(?:[\w-]+ ){0,3}buffers?\b",),
        r"\bindex\b|\bdim|\brank\b|token",
    ),
    (
        "version_mismatch",
        (
            r"(?<![a-z])version(?!_[0-9])|\bbuild[ _-]?ids?\b",
            rf"{DIFFERS}|{REFUSED}|expect\w+|(?:too|is) (?:old|new)\w*|older|newer|require\w*"
            r"|less than|at least|not accept|upgrade (?:is )?(?:needed|required)|handshake"
            r"|!=|format version (?:detected|found)",
        ),
        r"soc|\barch|opset|version in \S+ format|\b(?:hexagon|dsp|htp) version|find a version that",
    ),
    (
        "soc_mismatch",
        (
            r"\bsoc\b|\bsoc_?(?:model|id)|\barch\w*\b|chipset|\bdsp version|hexagon version|-bit\b",
            rf"instead of|{DIFFERS}|{REFUSED}|compiled for|built for|generated for|invalid",
        ),
        r"search|archive|\b(?:model|network|llm)'?s? arch"
        r"|arch\w* of (?:the|this|an?) (?:model|net)",
    ),
    (
        "soc_mismatch",
        (
            rf"(?:generated|compiled|built|prepared|made|meant|is) for (?:{CHIP}|v[0-9]{{2}}"
            rf"|x[0-9]+_[0-9]+|aarch[0-9]+|arm\w*"
            rf"|x[0-9]?)\b",
            r"\bbut\b|\bwe are\b|cannot run|can.t run|incompatib|\bthis is\b|not (?:run|work)"
            r"|running on"
            r"|\b(?:device|phone|soc|target|board|chip)\b(?: \w+)? (?:is|has)\b",
        ),
        r"(?<![a-z])version",
    ),
    (
        "soc_mismatch",
        (
            r"(?<![\w.])v[0-9]{2}(?![\w.]).*(?<![\w.])v[0-9]{2}(?![\w.])",
            rf"\bbut\b|cannot|can ?not|can.t|{DIFFERS}|instead|\bfound\b",
        ),
        LACKS,
    ),
    (
        "op_unsupported",
        (
            r"\bops?\b|operators?\b|\bop ?type|\bnode\b|\blayer\b|qnn_op|op_?config|dtype"
            r"|(?:data|point|tensor) ?type|dynamic (?:tensor|shape|dim)|isopsupported|op ?builder"
            rf"|{OPERATOR}",
            rf"{REFUSED}|\bkeyerror\b|missing op|validat\w+.*fail|fail\w*.*validat"
            rf"|could (?:not )?validate"
            r"|\bop class name not found\b"
            r"|could not create op|invalid_?(?:op|param)|_op_config|\bno such op\b"
            r"|\bbuiltin_?(?:op)?code out of range\b|find op for builtin opcode"
            r"|\btakes? (?:[\w/]+ ){1,4}only\b|\bonly (?:takes?|accepts?)\b"
            r"|not (?:selected|assigned|taken) by (?:that|the|any) "
            r"(?:ep\b|execution|backend|delegate)",
        ),
        # The refusal of any node ends in this, whatever the reason above it.
        r"feature|extension|property|config option|qnn_\w+_not_supported|failed to add node"
        r"|\bnode ?(?:js\b|v[0-9])",
    ),
    (
        "framework_bug",
        (
            r"\bbugs?\b|\bregression\b|\bfixed\b|\bknown issue\b",
            r"\b(?:known|confirmed|upstream|reported) (?:\w+ ){0,2}(?:bug|issue)\b"
            r"|\bregression in\b"
            r"|\bfixed (?:upstream )?(?:in|by|with) (?:pr |release |version |#|v)?#?[0-9]",
            r"fail|crash|error|exception|wrong|null|mismatch|reuses",
        ),
        r"\bdriver\b|\bfirmware\b|\bbug ?check|\bmemory\b|\bleak",
    ),
    (
        "session_limit",
        (
            r"session|domains|\bpds?\b|context bank|\banother \w+ already"
            r"|(?:owned|held|occupied|taken|locked) by\b",
            rf"\b(?:{REMOTE}|npu|htp|session)\b.{{0,16}}\b(?:owned|held|occupied|taken|locked) by\b"
            r"|\banother (?:app|process|program|client|owner) (?:already )?"
            r"(?:holds|has|owns|took|locked)\b.{0,8}\b(?:[ac]?dsp|npu|htp|qnn|sessions?)\b"
            r"|\btoo many (?:\w+ )?sessions"
            r"|\bmax\w* (?:number of )?(?:user |unsigned )?(?:pds|(?:process|protection) domains)"
            r"|\ball (?:\w+ ){0,2}sessions\b.{0,16}\b(?:taken|busy|in use|used|gone)"
            r"|\bno (?:free )?context banks?\b|\bno (?:free|available) (?:user )?pds?\b"
            r"|\bno\b.{0,16}\bsessions?\b.{0,16}\b(?:left|in use|mehr)"
            r"|no (?:free |more )?(?:fastrpc |dsp )?sessions? (?:is |are )?(?:available|free"
            r"|left)"
            r"|sessions? (?:limit|exhausted)|max\w* (?:number of )?(?:\w+ ){0,2}sessions\b"
            r"|all (?:\w+ ){0,2}sessions (?:are )?(?:in use|taken|busy)",
        ),
        "",
    ),
    (
        "timeout",
        (
            r"tim(?:ed|e)[ -]?out\b|\betimedout\b|took (?:longer than|too long)|(?:did"
            r"|does) not (?:respond|answer)|deadline exceeded|exceeded (?:\w+ )?deadline",
        ),
        # A wait that polls gives up soon and goes on with interrupts.
        r"time-?outs?\s*(?:of|is|for|[:=])?\s*\d|\bpoll mode\b",
    ),
    *MISMATCH,
    (
        "mem_unknown",
        (
            r"out of (?:\w+ ){0,2}(?:mem(?:ory)?|ram|resources|heap)\b"
            r"|\bno (?:more )?mem(?:ory)?\b(?! (?:pressure|leak|issue|handle|info|type))"
            r"|\benomem\b|nomemory|(?<!rpc)mem_alloc\b|\boom\b"
            r"|(?:insufficient|not? enou\w+|lack of|short of|low on) (?:\w+ )?(?:memory|ram)\b"
            r"|\b(?:memory|ram) (?:is |was )?not (?:enou\w+|sufficient)"
            r"|(?:memory|heap|pool|cma region|carve-?out) (?:is )?"
            r"(?:exhausted|insufficient|full|depleted)"
            r"|memory\w* (?:\w+ )?(?:limit|budget|quota)? ?(?:is |was )?(?:exceeded|reached|over)\b"
            r"|exceed\w*\b[^;.]{0,40}\b(?:memory|ram)\b|\bfit\b[^;.]{0,30}\bmemory\b"
            r"|too (?:large|big) for (?:\w+ ){0,2}(?:memory|ram)\b|insufficient system resources"
            r"|\bmemory\b[^;.]{0,40}\b(?:over|above) (?:the |its )?limit"
            r"|no (?:more )?(?:space|room)(?: left)? in (?:the )?v?tcm|outofmemory|heap (?:grew"
            r"|is) beyond",
        ),
        OWN,
    ),
    (
        "mem_unknown",
        (
            r"(?:alloc|mmap)\w*\b[^;]{0,80}(?:return(?:ed|s|ing)|=|\bis|\bwas) ?(?:null|nil|0x0\b)"
            r"|\b(?:m|c|re)alloc\b(?:\([\w ,*]{0,24}\))?(?: of [0-9]+\w*(?: bytes)?)? failed\b"
            r"|\bm?map(?:ping)? err(?:or)?\b.*\b(?:len|size|bytes)|\balloc\w* (?:failed|failure"
            r"|error)$",
        ),
        r"tensors\b",
    ),
    (
        "mem_unknown",
        (
            r"(?:fail\w*|unable|cannot|could not|couldn.t)(?: to)?(?: \w+){0,2} "
            r"(?:[mc]|re)?(?:alloc|mmap|map\b|reserve)"
            r"|(?:alloc\w*|mmap\w*|\bmapp?(?:ing|ed)?|\bmap)\b[^;.]{0,60}\b(?:fail|reject|refus)"
            r"|(?:fail\w* to|unable to|cannot|could not|couldn.t) (?:get|obtain|acquire|find)\b"
            r"[^;.]{0,30}\b(?:memory|bytes|[kmg]i?b)\b",
            r"buffer|memory|\bmem\b|bytes|heap|\bion\b|rpcmem|size|\bfd\b|weights|[kmg]i?b\b|cache",
        ),
        rf"map(?:ping)? (?:of )?(?:op|node|tensor name|type)|mapper|memory handle|{OWN}"
        rf"|{HEAP_SPOILT}|\bsegment from shared object(?!.*cannot alloc)",
    ),
)


@cache
def _compiled() -> tuple[tuple[str, tuple[re.Pattern[str], ...], re.Pattern[str] | None], ...]:
    return tuple(
        (cause, tuple(map(re.compile, needs)), re.compile(unless) if unless else None)
        for cause, needs, unless in _TOPICS
    )


CAUSES_NAMED = tuple(dict.fromkeys(cause for cause, _, _ in _TOPICS))


def named_cause(text: str) -> str:
    """The cause that a line of small letters names; "" when it names none."""
    return next(_named(text), "") if _any().search(text) else ""


@cache
def _any() -> re.Pattern[str]:
    """Whatever names a cause holds one of these; most lines hold none."""
    return re.compile("|".join(f"(?:{needs[0]})" for _, needs, _ in _TOPICS))


def _named(text: str) -> Iterator[str]:
    for cause, needs, unless in _compiled():
        # The needs first: few lines hold them.
        named = all(need.search(text) for need in needs)
        if named and (unless is None or not unless.search(text)):
            yield cause
