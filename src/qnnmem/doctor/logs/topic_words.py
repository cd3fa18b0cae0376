"""Words that several causes are told by: too much, too little, missing, refused, another one.

All match a line in small letters.
"""

from __future__ import annotations

NUMBER = r"(?:0x[0-9a-f]+|[0-9][0-9.,]*)"
# So many bytes, or a number so large that it counts them.
AMOUNT = r"[0-9][0-9.,]* ?(?:[kmgt]i?b?|bytes)\b|\b[0-9]{7,}\b|0x[0-9a-f]{6,}"
ASKED = r"\b(?:needs?|needed|requires?|required|wants?|asks?|requested|requests?|takes?)\b"
OVER = r"exceed\w*|(?:larger|bigger|greater|more) than|above|over|beyond|too (?:large|big|much)"
LESS = r"(?:smaller|less|lower) than|too (?:small|little)|insufficient|not enough"
LACKS = (
    r"not (?:be )?found|no such file|cannot (?:be found|find|locate)"
    r"|could not (?:be found|find|locate)|couldn.t find|unable to (?:find|locate)"
    r"|fail\w* to (?:find|locate)|does(?: not|n.t) exist"
    r"|\bmissing\b|not present|\benoent\b|\bno (?:[\w.-]+ ){1,4}found\b"
    r"|\bomits\b|\bnot (?:included|shipped|packaged|bundled)\b"
    r"|\b(?:is|are)(?: not|n.t) (?:there|on (?:the )?(?:device|phone|target|board))\b"
)
REFUSED = (
    r"not (?:be |yet |currently )?support\w*|unsupported|does(?: not|n.t) support"
    r"|not implemented|unimplemented"
    r"|no (?:\w+ )?(?:implementation|translation|kernel|converter|handler|visitor|lowering)"
    r"|cannot be (?:built|lowered)|\bunknown to\b"
)
DIFFERS = (
    r"mis-?match\w*|incompatib\w+|(?:not|n.t) compatible|(?:does|do)(?: not|n.t) match|not match\w*"
    r"|differs?|different|wrong"
)
LIBRARY = (
    r"(?<![\w+.-])(?=[\w+.-]{0,60}?(?:qnn|htp|skel|stub|dsp|rpc|snpe|genie|hexagon|c\+\+))"
    r"[\w+.-]{3,80}\.(?:so|dll|sys)\b|\blib(?:qnn|snpe|genie|[acs]dsprpc)\w*"
)

OPERATOR = (
    r"\baten[.:]|conv(?:olution)?_?[1-3]d|tensor_quant|\b(?:matmul|softmax|gelu|relu|einsum"
    r"|upscale)"
    r"|\b(?:grid_?sample\w*|(?:batch|layer|rms|instance)_?norm\w*|(?:avg|max)_?pool\w*|resize\w*)"
)
CHIP = r"(?:sm|qcs|qcm|sa|sc|sdm|sxr|ipq|x1e?-?)[0-9]{2,5}\w*"

# What the C library says of a heap that a program overwrote.
HEAP_SPOILT = (
    r"\b(?:realloc|malloc|free|munmap_chunk|malloc_consolidate)\(\): |double free"
    r"|corrupted size vs|\bsysmalloc: assert|\b(?:guard|redzone|canary)\b.{0,16}\bcorrupt"
)
# Of memory that a program has and keeps account of.
OWN = (
    r"exceed\w* (?:the )?(?:pre-?)?allocated|alloc\w* (?:info|record)\b|\btracked alloc"
    r"|\bbuffer type\b"
)
# Code that is signed, in whatever words; a line may speak of signatures of other kinds.
CODE_OF_DSP = (
    r"(?:skel\w*|librar(?:y|ies)|modules?|images?|elf|shell|offload|process(?:es)?|pd|domains?"
    r"|code|firmware|object|executable|[acs]?dsp\d?|\w+\.(?:so|dll|cat|mbn))"
)
SIGNED = (
    r"test-?sig|\bsignature\b.{0,12}\bverif|verif\w*\b.{0,24}\bsignature"
    rf"|\bsignature\b.{{0,60}}\b{CODE_OF_DSP}\b|\b{CODE_OF_DSP}\b.{{0,60}}\bsignature\b"
    rf"|\b(?:un)?signed[ _-]?(?:\w+ )?{CODE_OF_DSP}\b|unsignedpd|unsigned_(?:pd|module)"
    rf"|\b{CODE_OF_DSP}\b.{{0,40}}\b(?:un)?signed\b|\bdigitally signed\b"
)
# What runs beside the main processor and can crash on its own.
REMOTE = r"(?:[acs]?dsp\d?|remoteproc|subsystem|q6)"
MEMORY_OF = r"\b(?:mem(?:ory|handles?)?|handles?|buffers?|fds?|tensors?|address(?:es)?|bytes)\b"
# Files that are no library: one of them may be what is missing.
OTHER_FILES = r"\.(?:json|bin|dlc|onnx|txt|ya?ml|tflite|pte|gguf|raw)\b"
OPTIONAL = r"msgd|oemconfig|\.farf|testsig|fastrpc_shell|_version|apps_std|optional|skipp"
