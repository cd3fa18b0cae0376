"""Words of a failing line that speak of anything but memory, where they name no cause.

A file that cannot be opened, an option that nobody knows, a library that does not load, a handle
that is not valid, a tensor of a wrong type: what is behind them stays open, but no byte was
missing. A line that speaks of memory as well is left open.
"""

from __future__ import annotations

import re
from functools import cache

from qnnmem.doctor.logs.topic_words import HEAP_SPOILT

OPEN = "unknown"  # of the causes: none is named
OTHER = "other"  # beside the causes: which one is open, memory it is not
UNNAMED = ("", OPEN, OTHER)  # where a line names no cause

_CANNOT = (
    r"(?:fail\w*|unable|can ?not|can.?t|could not|couldn.t|not able)(?: to)?(?: be)?"
    r"(?: \w+){0,2}? (?:re)?"
)
_FAULTS: tuple[tuple[str, ...], ...] = (
    # What somebody wrote: options, configuration, files of a tokenizer.
    (
        r"\bjson\b|config\w*|\boptions?\b|argument|paramet|\bflags?\b|schema|syntax|tokenizer|vocab"
        r"|environment variable|\benv\b|_root\b|_path\b",
        r"invalid|missing|unknown|unrecogni|not set|unset|pars(?:e|ing)|wrong|\bbad\b|\bexpected"
        r"|not found|malformed|syntax error|_error_"
        r"|fail\w*(?: with|:| to (?:open|read|load|find|construct|bind|apply|parse))",
    ),
    # Files: not there, not to be opened, damaged.
    (
        r"no such file|file not found|does(?: not|n.t) exist"
        r"|not an? (?:valid )?(?:\w+ )?(?:file|model|binary|dlc|archive|elf|zip|executable|tensor"
        r"|map|string|number)\b",
    ),
    (_CANNOT + r"(?:open|read|find|found|locate|parse|write|stat)\b",),
    (
        r"corrupt\w*|truncat\w*|malformed|bad magic|magic (?:number|mismatch)|checksum"
        r"|unexpected end|\bis (?:bad|broken|damaged|incomplete)\b|\bincomplete\b",
    ),
    # Libraries and what is in them.
    (
        r"\.(?:so|dll|sys|dylib)\b|librar(?:y|ies)|\bplugin|\bmodule|symbol|dlopen|loadlibrary"
        r"|entry ?point|\binterface",
        _CANNOT
        + r"(?:load|open|find|get|resolve|locate)|(?:load|open|import)\w* (?:\w+ )?fail|fail\w* for"
        r"|not (?:be )?(?:found|loaded)|no (?:compatible|suitable|valid)|\bdlerror",
    ),
    # What is not there at all.
    (
        r"\b(?:is|are|was|were)?(?: not|n.t) (?:registered|in (?:the )?list|running|connected"
        r"|enabled"
        r"|installed|built|reachable|implemented|listed|initiali[sz]ed|recogni[sz]ed|configured"
        r"|valid|static|defined)\b"
        r"|(?:device|domain|backend|provider|delegate|runtime|driver|processor|service)s?"
        r"(?: \S+){0,2} (?:(?:is |are |was )?not (?:be )?(?:available|present|found|accessible)"
        r"|(?:is |are |was )(?:unavailable|disabled))"
        r"|(?:does|do)(?: not|n.t) support|\bno[-_ ]support\b|\b(?:has|have) no\b"
        r"|no (?:\w+ ){0,2}(?:devices?|backends?|providers?|delegates?|accelerators?|drivers?)\b"
        r"|could not be (?:registered|started|applied|selected)|not ?_?supported|unsupported"
        r"|no compatible|license|unknown (?:model|option|backend|argument|device|type|op)",
    ),
    # Arguments of calls.
    (
        r"(?:invalid|wrong|bad|null|incorrect) (?:\w+ ){0,2}(?:handles?|arguments?|param\w*"
        r"|tensors?"
        r"|inputs?|outputs?|values?|state|index|pointer|operation|types?|formats?|dtypes?|names?"
        r"|domains?|channels?|sessions?|requests?|modes?|attributes?|responses?|signals?)\b"
        r"|inval[-_]param|\bmust (?:be one of|match|contain)\b|\bundefined\b|\bincorrect\b"
        r"|\bis (?:empty|zero)\b|cannot be empty"
        r"|\bexpects?\b.*\b(?:actual|given)\b"
        r"|\bshould (?:be|have)\b.*\b(?:actual|given|but it is)\b"
        r"|\bkeys? (?:\S+ )?not found|map::at|out[- _]of[- _](?:range|bounds?\b)|check failed"
        r"|null ?pointer"
        r"|\bnullptr\b|(?:is|was|=) ?null\b|already (?:registered|exists|open|been set|set"
        r"|defined|in use)",
    ),
    (
        r"\b(?:levels?|options?|domain|template|names?|id|values?|param\w*|arguments?|config\w*"
        r"|keys?|session|channel|mode|priority|request|descriptor"
        r"|formats?|types?|handles?|index|path)\b(?: \S+)? (?:is |are |was )?"
        r"(?:invalid|unknown|not (?:recogni[sz]ed|valid|known))",
    ),
    (
        r"\b(?:input|output|tensor|graph|node|layer|field|section|record|field)s?\b",
        r"not found|can.?t find|could not find|\bmissing\b|no such|does(?: not|n.t) exist"
        r"|\bexpected (?:all|an?|the|to)\b",
    ),
    (
        r"\b(?:inputs?|outputs?|tensors?|arguments?)\b",
        r"\b(?:gave|given|passed|supplied|received)\b",
    ),
    (
        r"\b(?:inputs?|outputs?|tensors?|files?|binary|model|graph|shapes?|counts?)\b",
        r"\bdiffers?\b|\b(?:is|was) empty\b|\bempty file|does(?: not|n.t) accept",
    ),
    (
        r"\b\w*(?:inputs?|outputs?|buffers?|tensors?|names?|list|vector|prompt) (?:is|are) empty"
        r"|\bempty (?:\w+ )?(?:weights?|tensors?|inputs?|outputs?|names?)\b",
    ),
    # Settings that are wrong or do not go together.
    (
        r"(?:not compatible|incompatible|conflicts?) with|mutually exclusive"
        r"|can ?not (?:set|use|specify|enable) both|please check (?:the |your )?\w*(?:config|path"
        r"|file|setting|argument|option)",
    ),
    (r"\battributes?\b", r"\bmust\b|\bshould\b|\bonly\b|\bexpect|invalid|unsupported|missing"),
    (
        r"\b(?:unknown|unexpected|unsupported) (?:\w+ ){0,2}\w*(?:index|handle|type|mode|format"
        r"|encoding)\b|\binvalid (?!arg|param|file desc|mem)[a-z]\w+",
    ),
    (
        r"\b(?:must|should) be (?:-?[0-9]|[<>]|greater|less|at least|positive|one\b|two\b|three\b"
        r"|in\b|between|static|provided|divisible|odd\b|even\b|called)|\bcalled before\b",
    ),
    (_CANNOT + r"(?:create|make|get|change) (?:[\w-]+ ){0,3}(?:director(?:y|ies)|folder|cwd)\b",),
    (
        r"dynamic (?:\w+ )?(?:dim|shape|batch|ax[ei]s)",
        r"\bwants?\b|\bfixed\b|\bstatic\b|\bonly\b|\bnot\b",
    ),
    (r"accuracy|results?\b|outputs?\b", r"garbage|gibberish|\bnans?\b|\bwrong\b|all zeros?"),
    (r"\bexpired\b|log ?in again|credential",),
    (r"\b(?:in use|used|owned|locked|held|occupied|taken) by (?:another|other|a different)",),
    (
        r"\brequires? (?:\w+ ){1,4}(?:[0-9.]+|or)|\brequires? (?:hexagon )?v[0-9]{2}\b"
        r"|not executable|exec format",
    ),
    # What builds a model library.
    (r"\bmake(?:\[\d+\])?: \*|\bclang|\bgcc\b|undefined reference|ld: error|fatal error: '",),
    (
        r"\b(?:type|value|key|attribute|index|import|name|syntax|assertion|notimplemented|json\w*"
        r"|modulenotfound|filenotfound|unicode\w*|zerodivision|recursion|validation|decode|lookup"
        r"|unsatisfiedlink|nosuchmethod|noclassdeffound|unpickling|connection|lexer|parser?)error\b"
        r"|\b(?:illegal(?:argument|state)|nullpointer|classnotfound|\w*outofbounds|security|io"
        r"|filenotfound|\w*propertyaccess|activitynotfound|unsupportedoperation|numberformat"
        r"|concurrentmodification|classcast|parse)exception\b",
    ),
    # Tensors and operators.
    (
        r"quanti[sz]\w*|\bdtype|data ?type|\bshapes?\b|\brank\b|\baxis\b|\baxes\b|dimension|opset"
        r"|zero.?point|\bscale\b|\blayout\b|\bcast",
        r"fail|error|invalid|mismatch|missing|expected|must|unsupported|exceed|not (?:be )?\w+",
    ),
    (
        r"\b(?:nodes?|ops?|operators?|partition\w*|lower\w*|conversion|convert\w*|delegat\w+"
        r"|export\w*"
        r"|translat\w+)\b",
        _CANNOT + r"(?:lower|partition|convert|translate|delegate|trace|export|prepare|parse|apply)"
        r"|not (?:be )?"
        r"(?:lowered|partitioned|converted|translated|delegated|supported)"
        r"|(?:partition\w*|lowering|conversion|delegat\w+|export\w*|translation|application) fail",
    ),
    # Whoever is at the other end.
    (
        r"connection (?:refused|reset|lost|closed)|\b(?:is|went) (?:down|offline)\b|device offline"
        r"|disconnected|(?:remote|listener|daemon|service|server|dsp\d?)(?: process)?(?: has)?"
        r"(?: unexpectedly)? (?:died|exited)|(?:object|service|process) is dead|dead_object"
        r"|link (?:is )?(?:down|lost)|selinux|permission|not permitted|unauthori[sz]ed|forbidden"
        r"|securityexception|no access|blocked by|broken pipe|not (?:reachable|started|running)"
        r"|\b(?:binary|runtime|driver|service)\b.*\b(?:reject|refus)\w*"
        r"|\b(?:reject|refus)\w* by (?:the )?(?:runtime|driver|device|backend|service)",
    ),
    (r"too (?:old|new)\b|outdated|no longer supported|(?:newer|older) (?:sdk|release|runtime)",),
    (r"\bdoes(?: not|n.t) match\b|\bdo(?: not|n.t) match\b",),
    (
        r"\bf(?:read|write|open|seek|close)\b|\bpipe\b|\bdirectory\b|\bfolder\b|\binotify"
        r"|createprocess|\bmetadata\b|\btimestamps?\b|\bsampler\b|\blabels?\b|\bimages?\b|\bpipeline\b"
        r"|\btensor names\b|(?:pre|post)-?_?process",
        r"fail|error|unable|could not|cannot",
    ),
    # What is set up beside a model: power, clocks, priorities, timers, traces.
    (
        r"power|\bclocks?\b|\bdcvs|\bqos\b|perf(?:ormance)?(?: \w+)? (?:mode|profile|level|boost)"
        r"|performance (?:boost|reset)|\btimers?\b|\btracing\b|\bpriority\b|\blogg(?:er|ing)\b"
        r"|\bprofil(?:e|er|ing)\b",
        r"fail|error|unable|could not|cannot|invalid",
    ),
)
# What is wrong with a state or an argument, also where it is said of memory, without an amount.
_STATES = re.compile(
    r"\bnot (?:been |yet )?initiali[sz]ed\b|\balready (?:present|registered|mapped|open|attached)"
    r"|\b(?:does|do)(?: not|n.t) support\b|\battempt\w* to (?:unmap|free|close|deregister)"
    r"|\bnot mapped to\b|\bnot allocated\b|\boverflow\w* (?:\w+ )?(?:while|occur)"
    r"|\bwithout (?:being )?initiali[sz]\w+|\b(?:size|length|number) of .{1,60}n[o']t match"
    r"|\bis invalid\b.{0,8}\bshould be\b|\bcan.?t find this\b"
)
_SIZES = re.compile(r"[0-9][0-9.,]* ?(?:[kmg]i?b|bytes)\b|\b[0-9]{7,}\b|0x[0-9a-f]{6,}")
# The name of the function that prints; what it does is not what went wrong in it.
_FUNCTION = re.compile(r"(?:^|(?<=: )|(?<=\] ))(?:[a-z0-9]+_){2,}[a-z0-9]+(?:\(\))?: (?=\S+ \S)")
_NOTHING = re.compile(r"\bnull|\bnil\b|\b0x0+\b")
# What is said of memory, buffers and sizes that no shortage causes: how they are kept account of,
# what they are asked for, where they end.
_KEPT = (
    r"no space left on device|\benospc\b|\b(?:disk|storage)\b.{0,24}\bfull\b"
    r"|\bprotobuf\b.{0,40}\b(?:too large|size)|undefined reference"
    r"|\bsegment from shared object(?!.*cannot alloc)|"
    r"\buninitiali[sz]ed\b|not (?:been )?initiali[sz]ed\b|\bno (?:\w+ )?handle found\b"
    r"|\b(?:un)?tracked\b|already (?:been )?(?:tracked|locked|unlocked|exists)\b"
    r"|\balloc\w* (?:info|record)\b"
    r"|\binvalid (?:\w+ ){0,3}(?:fd|address|allocation|range|base|layout)\b"
    r"|\bnull (?:\w+ ){1,4}pointer|(?:pointer|handle|base) (?:is|was) (?:null|invalid)"
    r"|(?:can ?not|(?:must|should|may) not) be (?:null|nullptr|empty|zero|negative|blank|none)\b"
    r"|\b\w+_(?:alloc|free|fd)\w*(?:\(\))? not found|symbol \w*(?:alloc|free|mem)"
    r"|not implemented for this|not supported on this|support is missing|valid fd\b"
    r"|not (?:yet|currently) supported|(?:only supports?|supports? only|only available with)\b"
    r"|out of bounds|outside (?:of )?(?:the )?(?:mapped|shared|model)\b|fail\w* to get file size"
    r"|fail\w* to open (?:the )?(?:[\w-]+ ){0,2}(?:device|heap)\b"
    r"|fail\w* to (?:calculate|compute|infer|convert|unpack|legali[sz]e|cast|parse|unlock)\b"
    r"|fail\w* to (?:get|retrieve|query|find)\b[^;:.]{0,40}\b(?:offset|type|shape|rank|pattern"
    r"|layout|strides?|symbol|requirements|options?)\b"
    r"|\b(?:size|length|number|count)\b.{0,60}(?:does(?: not|n.t)|do(?: not|n.t)|is not|not)"
    r" match|not the correct size|not (?:large|big) enough to hold|bytes != \w"
    r"|\bwritten buffer size\b|\b(?:size|shape|rank|dimensions?) mis-?match"
    r"|\bmis-?match\w* with (?:\w+ )?size"
    r"|\bsize of 0 bytes|\bsize is (?:0|negative)\b|\bzero (?:\w+ )?(?:size|length)\b"
    r"|\bsize overflow|overflows? size_t|overflow computing"
    r"|\b(?:filter|stride|padding|dilation)s?\b.{0,60}\b(?:size|must|invalid|unsupported)\b"
    r"|\b(?:batch|input|window|vocab|pad|strides?|perm|group|block|chunk|kernel|profiler)[ _]size\b"
    r".{0,40}\b(?:must|should)\b|\bexpecting \w+ size\b"
)
# In a log such words follow from what failed before, or tell of what a good run does without.
_ENDS: tuple[tuple[str, ...], ...] = (
    (r"\bthermal (?:shut ?down|trip|emergency)",),
    (r"\binvalid [a-z]\w+",),
    (
        r"set_?power_?config|power config|perf(?:ormance)?[ _]?(?:mode|profile|config\w*|control"
        r"|boost|infra\w*)\b",
        r"fail|err|unable|could ?n|can ?not|can.t|invalid|\bnot\b|denied|\bret|\brc\b|status|0x"
        r"|unsupport|refus|reject|timed? ?out",
    ),
    (
        r"\bhas no (?!room|more|free)\w+|\bno \w+ (?:provided|specified|given|configured)\b"
        r"|\b(?:a |passed )?null (?:options?|accelerator|handle|register\w*)\b"
        r"|does(?: not|n.t) refer to|\berror (?:parsing|reading|opening|writing)\b",
    ),
    (
        r"fail\w* to (?:get|fetch|extract|apply|verify|pack|check|dup|copy|set)\b"
        r"(?!.*(?:buffer|context|binary|graph|handle|device|response|output|input|provider))",
    ),
    (r"\b(?:is|are|was|were) not set\b",),
    # Crashes of a program, and programs that stand still.
    (
        r"\bsig(?:segv|ill|bus|fpe|trap)\b|segmentation fault|segfault|access violation"
        r"|\b0xc000000[0-9]\b|exit code -1[0-9]{9}\b|stack overflow|\bassert(?:ion)?\b|_assert\b",
    ),
    (r"\banr\b|not responding|\bhangs?\b|\bhung\b|\bstuck\b|\bfrozen\b|deadlock|watchdog",),
)
# Giving back needs nothing; in a log it fails with what failed before.
_GIVEN_BACK = (
    r"(?:fail\w*|unable|could not|couldn.t) to (?:free|release|close|de-?register|unregister"
    r"|m?unmap|unload|destroy|terminate|detach)\b|\w*(?:deregister|free|release|unmap|destroy)\w*"
    r"(?:\(\))? fail"
)
_MEMORY = re.compile(
    r"memory|\bmem\b|alloc|mmap|\bmap(?:ping|ped)?\b(?!::)|\bheap|\bram\b|\boom\b|v?tcm\b|spill"
    r"|bytes"
    r"|\b[0-9.]+ ?[kmg]i?b\b|enomem|resources?\b|\bspace\b|too (?:large|big|many|much)|\bkilled\b"
    r"|\blmkd?|finali[sz]|\bsize\b|estimat|\bfind (?:an? |any )?(?:available|free)"
    r"|(?<!de)seriali[sz]"
)

_WORD = re.compile(r"[a-z]{3,}")
_TELLING = 4  # words beside those that any failure is told with
_COMMON = frozenset(
    (
        *("qnn", "htp", "npu", "dsp", "cdsp", "adsp", "nsp", "hexagon", "snapdragon", "qualcomm"),
        *("snpe", "genie", "error", "errors", "err", "failed", "fail", "fails", "failure", "code"),
        *("status", "returned", "return", "the", "with", "from", "for", "and", "not", "could"),
        *("cannot", "unable", "was", "were", "has", "had", "this", "that", "model", "graph"),
        *("context", "binary", "inference", "run", "running", "execute", "executing", "execution"),
        *("device", "backend", "session", "create", "created", "creating", "creation", "load"),
        *("loading", "init", "initialize", "initialization", "open", "start", "exit", "exited"),
        *("crash", "crashed", "when", "while", "after", "index", "app", "see", "log", "net"),
        *("are", "all", "any", "its", "but", "out", "nothing", "into", "been", "still", "again"),
        *("message", "compile", "compiled", "prepare", "job", "node", "name", "results"),
    )
)


@cache
def _compiled(alone: bool) -> tuple[tuple[re.Pattern[str], ...], ...]:
    faults = (*_FAULTS, *_ENDS) if alone else _FAULTS
    return tuple(tuple(map(re.compile, needs)) for needs in faults)


def speaks_of_other(text: str, alone: bool = False) -> bool:
    """Whether a failing line of small letters speaks of something that memory does not cause.

    A crash and a standstill do so only in a message that stands alone.
    """
    if _heap_spoilt().search(text) or _kept().search(text):
        return True
    if alone and _given_back().search(text):
        return True
    if _STATES.search(text) and not _SIZES.search(text.partition("should be")[0]):
        return True
    if mentions_memory(text):
        text = _FUNCTION.sub("", text)
        if mentions_memory(text) or _NOTHING.search(text):
            return False
    return any(all(need.search(text) for need in needs) for needs in _compiled(alone))


@cache
def _heap_spoilt() -> re.Pattern[str]:
    return re.compile(HEAP_SPOILT)


@cache
def _kept() -> re.Pattern[str]:
    return re.compile(_KEPT)


@cache
def _given_back() -> re.Pattern[str]:
    return re.compile(_GIVEN_BACK)


def mentions_memory(text: str) -> bool:
    """Whether a line of small letters speaks of memory, sizes or room."""
    return bool(_MEMORY.search(text))


def is_telling(text: str) -> bool:
    """Whether a failing line says so much, in whatever words, that it would say it of memory."""
    words = set(_WORD.findall(text)) - _COMMON
    return len(words) >= _TELLING and not mentions_memory(text)
