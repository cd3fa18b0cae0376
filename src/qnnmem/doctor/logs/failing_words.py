"""Words by which a line says that something failed, that nothing did, or that all went well.

All match a line in small letters.
"""

from __future__ import annotations

import re

_APOSTROPHE = rb"(?:'|\xe2\x80\x99)?"
_NOT = rb"(?: not|n" + _APOSTROPHE + rb"t)"
# Failure, error and the like in German, French, Russian, Chinese, Japanese and Korean.
_FOREIGN = (
    rb"\xe5\x86\x85\xe5\xad\x98\xe4\xb8\x8d\xe8\xb6\xb3|\bfehler|fehlgeschlagen|konnte nicht"
    rb"|\xc3[\xa9\x89]chec|\berreur"
    rb"|\xd1\x88\xd0\xb8\xd0\xb1\xd0\xba|\xd1\x83\xd0\xb4\xd0\xb0\xd0\xbb\xd0\xbe\xd1\x81\xd1\x8c"
    rb"|\xe5\xa4\xb1[\xe8\xe6][\xb4\x95][\xa5\x97]|\xe9\x94\x99\xe8\xaf\xaf"
    rb"|\xe6\x97\xa0\xe6\xb3\x95"
    rb"|\xe3\x82\xa8\xe3\x83\xa9\xe3\x83\xbc|\xec\x8b\xa4\xed\x8c\xa8|\xec\x98\xa4\xeb\xa5\x98"
)
# What most failing lines say, soon found.
PLAIN = re.compile(rb"fail|error|unable|cannot|invalid|not found")
BAD = re.compile(
    rb"\b(?:fail(?:s|ed|ure|ures|ing|d|es)?|\w*errors?|err|errno|unable|can ?not|can"
    + _APOSTROPHE
    + rb"t"
    rb"|could ?" + _NOT + rb"|abort(?:s|ed|ing)?|fatal|crash(?:ed|es)?|(?:\w+)?exception"
    rb"|refus(?:ed|es|ing)|gave up|giving up|no (?:\w+ ){1,2}could|denied|tim(?:ed|e) ?-?out"
    rb"|timeout|etimedout|invalid|not found|no such|missing|unsupported|not (?:be )?support\w*"
    rb"|out of (?:\w+ ){0,2}(?:mem(?:ory)?|ram|v?tcm|space|range|bounds|resources|heap)"
    rb"|(?:not|never)(?: \w+){0,2} aligned|(?:un|mis)-?aligned|must be (?:\w+[ -]){0,3}aligned"
    rb"|no (?:more )?memory(?! (?:pressure|leak|issue))"
    rb"|enomem|eacces|eperm|enoent|insufficient|not? enou\w+|lack of|exceed(?:s|ed|ing)?|exhausted"
    rb"|too (?:large|big|small|many|much|little|new|old|low|short|long)"
    rb"|(?:great|larg|bigg|small)er than (?:the )?(?:max\w*|limit|v?tcm|size|available|allowed"
    rb"|required?|needed|minimum|expected|requested)"
    rb"|bad[_ ]?alloc\w*|(?:does|do|did|will|can)" + _NOT + rb" fit|no (?:free )?(?:space|room)"
    rb"|return(?:s|ed|ing)? (?:a )?null(?:ptr)?|(?:not|un)[ -]?(?:available|accessible|granted"
    rb"|permitted)"
    rb"|(?:newer|older) than|built with .{1,40} but|[0-9] ?[kmg]i?b? ?> ?[0-9]"
    rb"|but (?:only|got|found|expected|was|max\w*|limit|(?:the )?(?:device|soc|target|runtime"
    rb"|model|binary))"
    rb"|already registered|not (?:registered|installed|connected|implemented|started|compatible"
    rb"|running|reachable|possible|valid|finali[sz]ed)"
    rb"|unknown (?:key|option|argument|backend|model|op|type"
    rb"|format|symbol)"
    rb"|device offline|must (?:be|have|match|not)\b.{1,60}\b(?:got|but|found)"
    rb"|expected\b.{1,60}\b(?:got|but|found|built|actual|given)"
    rb"|no (?:\w+ ){0,2}(?:devices?|backends?|providers?|translation|output|response)"
    rb"|(?:over|beyond|above) (?:\w+ ){0,3}(?:limit|budget|quota)|limit (?:is |was )?reached"
    rb"|\w*outofmemory\w*|low_memory|bug ?check"
    rb"|wo" + _NOT + rb" (?:load|work|run|start)|truncated|malformed"
    rb"|corrupt\w*|mismatch\w*|kill(?:ed|ing|s)?|terminat(?:ed|ing)|fault\w*|panic|illegal"
    rb"|reject(?:s|ed)|hangs?|stuck|freezes|frozen|traceback|sig(?:segv|abrt|bus|kill|ill|fpe)"
    rb"|segfault"
    rb"|(?:\bnot |!)ok|null pointer|must be (?:a )?multiples?|assert(?:ion)?|watchdog|oom|anr"
    rb"|(?:do(?:es)?|did)" + _NOT + rb" (?:load|work|run|start|succeed|support)"
    rb"|undefined symbol"
    rb"|non-?zero(?! is)|not responding"
    rb"|(?:is|went) down"
    rb"|(?:exit(?:ed)?(?: with)?(?: code| status)?|signal):? -?[1-9][0-9]*|non-zero exit"
    rb"|unexpectedly"
    rb"|not success\w*|unsuccess\w*|success[\"']? ?[:=] ?[\"']?(?:false|0|no)"
    rb"|overflow|incompatible|unexpected"
    rb"|wrong|died|dead|lost|not able|no[-_]support|inval[-_]param\w*"
    rb"|bad (?:response|request|param\w*|state|handle|address|argument|descriptor|fd)"
    rb"|expects?\b.{1,60}\b(?:actual|given)|(?:passed|received|returned) (?:a )?null(?:ptr)?"
    rb"|nullptr (?:passed|received|provided)|bad things)\b|(?:_|\b)err(?:or)?(?:_|\b)"
    rb"|(?:!=|!|expected) ?qnn_success"
    rb"|aee_?result ?[:=](?! ?(?:0|success))|aee_e\w+|_mem_alloc\b|(?<=[a-z])fail(?:ed|ure)\b"
    rb"|_fail(?:ed|ure)?\b|" + _FOREIGN
)
# What speaks of failure in a message that somebody copied, and of nothing much within a log.
HINTS = re.compile(
    rb"\b(?:(?:is|are|was) (?:not set|unset)(?!.{0,80}\b(?:default|us(?:e|ing))\b)|is offline"
    rb"|in use by another|blocked(?= by)|no (?:access|kernel|free|more|match\w*)|differs"
    rb"|broken pipe"
    rb"|expects \w+|outdated|abnormal\w*|unrecogni[sz]ed|(?:handle|key|op|type) (?:is )?unknown"
    rb"|instead of|(?:is|are) full|leak(?:s|ed|ing)?|nok|ng|nothing happen\w*|garbage|gibberish"
    rb"|all zeros?|nans?|not working|reboot(?:s|ed)|black screen|empty (?:output|response)s?"
    rb"|exits (?:immediately|silently)|no (?:\w+ ){1,3}match(?:es|ed)?|reset during"
    rb"|by a (?:newer|older) (?:sdk|release|version)|do(?:es)?" + _NOT + rb" (?:exist|match)"
    rb"|(?:ret|rc) ?[:=]? ?-?[1-9][0-9]{0,2}|is blocking|expected,|cant|dont|doesnt|wont|didnt"
    rb"|requires?\b.{1,60}\b(?:found|got|but|has|have|is)"
    rb"|(?:is|are|was) not an? \w+|not (?:work|load|run|start|support)"
    rb"|still (?:open|in use|mapped|running)|already (?:attached|open(?:ed)?|present|in use|mapped)"
    rb"|(?:driver|service|device|dsp|daemon) is disabled|outstanding|untrusted|never \w+ed"
    rb"|(?:providers|devices|backends|interfaces|cores)(?: found)?(?: is| are|[:=]) ?0"
    rb"|should (?:be|have)\b.{1,80}\b(?:actual|given|but|is|has|found)"
    rb"|only \w+ (?:is |are )?allowed|not in list|not allowed|exiting(?=[.]{2})"
    rb"|attempt(?:s|ed|ing)? to|unkn?own|already initiali[sz]ed"
    rb"|you (?:should|need|must|have to)|needs? to be"
    rb"|pl(?:ea)?se? (?:check|copy|ensure|provide|set)"
    rb"|(?:is|are) not (?:the same|equal|[a-z]+able)|not match(?:ing)?|type is not"
    rb"|is required (?:when|for)"
    rb"|supports? only|only (?:supports?|\S+ (?:is|are) supported)|no inputs?|no (?:\w+ ){1,2}found"
    rb"|no (?:\w+ ){1,2}(?:registered|allocated)|not (?:present|bound)|undefined|incorrect"
    rb"|should be between|(?:called|invoked|set) (?:twice|multiple times)"
    rb"|already in (?:creat|progress)\w*"
    rb"|must (?:be one of|match|contain)|only \([^)]{1,60}\) (?:ops )?supported"
    rb"|expecting\b.{1,60}\bgot|must be run on|should point to|trying to \w+ without"
    rb"|(?:run|call\w*|initiali[sz]e)\b.{1,40} before (?:loading|calling|using|making|set\w*)"
    rb"|not (?!used|needed|required|enabled|changed|limited|included|affected)[a-z]+ed)\b"
    rb"|(?:=|\bis|\bwas) ?null(?:ptr)?\b(?!.{0,80}\b(?:default|us(?:e|ing))\b)|handle ?[:=] ?0x0+\b"
)
# A failure that did not happen, or a word of failure that names something else.
NONE = re.compile(
    rb"\b(?:no|without|none|(?<!non-)zero) (?:\w+ )?"
    rb"(?:errors?|fail(?:ed|s|ures?)|exceptions?|faults?|problems?|unsupported|mismatch(?:es)?"
    rb"|crash(?:es|ed)?|issues?|leak(?:s|ed)?|missing|nans?|timeouts?|anomal\w+|denials?)\b"
    rb"|(?:^|[,;:(\[]|[.] |\b(?:with|had|got|found|and|were)) ?0 (?:(?:op|node|test|layer"
    rb"|file)\w*s )?"
    rb"(?:errors?|fail(?:ed|s|ures?)|faults?|unsupported|missing|mismatch\w*|crash\w*)\b"
    rb"|\bif (?:the |an? )?(?:\w+ ){1,3}(?:fails|failed|crashes|is missing)\b"
    rb"|\b(?:crash(?:es)?|leaks?|error events?|timeouts?|drop(?:s|ped)?|aborts?)[ ]?[:=]?[ ]?0\b"
    rb"|\b0 (?:\w+ )?(?:leaks?|crash\w*|timeouts?|dropped)\b|\bleak (?:check|test|detect\w+)\b"
    rb"|\berrors? (?:will|can|may|would|might) be\b"
    rb"|\berror[ _-](?:logs?|messages? table|table|injection|events?|file|page|string|budget"
    rb"|bars?)\b"
    rb"(?! ?[:=])"
    rb"|\bchecking for \w+|\bfail-?(?:safe|over|fast)\b|(?:\b|_)(?:error|fault)[ _-]codes\b"
    rb"|\b(?:squared|absolute|abs|relative|rel|mean|max(?:imum)?|avg|average|rms\w*|quanti[sz]ation"
    rb"|reprojection|rounding|top-?[0-9]+|bit|word|numeric\w*|percent\w*|accuracy)"
    rb" (?:errors?|err|mismatch)\b"
    rb"|\berr\w* ?[:=]?[ ]*[0-9][0-9.]*(?:e-?[0-9]+)?[ ]*(?:<|ok\b|%)"
    rb"|\w+[_.]py::\S+|\btest_\w+"
    rb"|\b(?:errors?|fail\w*|mismatch\w*|crash\w*|faults?|exceptions?|denied|unsupported)"
    rb"[ _](?:count|rate|tolerance|threshold|level|handler|callback|handling|correction)s?\b"
    rb"(?! ?[:=]? ?0x0*[1-9a-f])"
    rb"|\berr(?:or|no)?(?:[ _-]?code|[ _]?num)?s?[ ]*[:=]?[ ]*(?:0x0+|0|none|null|success)\b"
    rb"(?![.x])"
    rb"|\b(?:fail(?:ed|ures?)?(?:_\w+)?|errors?|unsupported(?: \w+)?|mismatch\w*|nans?|missing"
    rb"|leaks?)"
    rb"[\"']?[ ]?[:=]?[ ]?(?:0(?:[.]0+)?|none|false|\[\]|\{\})(?:\b(?![.x])|(?<=[\]}]))"
    rb"|\berrors?[ ]*(?:of|is|[:=])?[ ]*(?:[0-9]*[.][0-9]+|[0-9]+e-[0-9]+)"
    rb"|\bkill time\b|log[ _-]?level\S*[ =:]*\S*error|level_error"
    rb"|severity[ ]?[:=][ ]?error"
    rb"|\b(?:on|if|in case of|upon|ignore|ignoring|handle|handling) (?:errors?|failures?)\b"
    rb"|\berror[ _]?(?:reporting (?:is )?(?:on|enabled))\b"
    rb"|\bpropert(?:y|ies) (?:is |are )?not supported\b"
    rb"|\btime-?outs?[ ]*(?:of|is|for|set to|with|[:=])?[ ]*[0-9]+"
    rb"|\b(?:wait|send|cancel)\w* (?:wait )?signal [0-9]+|\bsignal [0-9]+ (?:creat|destroy)ed"
    rb"|(?<!not )(?<!!= )(?<!!)(?<!expected )(?:qnn_success|\bsuccess(?:ful|fully)?\b)"
    rb"(?![\"']? ?[:=] ?[\"']?(?:false|0|no))"
)
# What went wrong and was put right, or is tried again elsewhere.
MENDED = re.compile(
    rb"retr(?:y|ied|ying)\b.{0,40}\b(?:succe\w+|ok\b)|(?<!not )(?<!be )\brecovered\b"
    rb"|(?<!never )fall(?:ing|s)? ?back to (?:the )?(?!the|[cg]pu)\w"
    rb"|trying (?:the )?next\b(?!.*\b(?:none|abort|fail|gave up))"
    rb"|\bpossibly slower\b|\bas expected\b"
    rb"|\bcapp(?:ed|ing) (?:it )?(?:at|to)\b|\btruncat(?:e|ing) it to\b"
    rb"|\bnot (?:available|found|supported), (?:using|trying|will use)\b|, creating (?:a )?new\b"
    # Another way was taken, and why.
    rb"|\b(?:init\w*|load\w*|build\w*|creat\w+|us(?:e|ing)|skip\w*) .{1,60} since .{1,60}"
    rb"\b(?:not (?:given|exist|set|provide)|n.t provide)"
)

# What says that all went well.
WELL = re.compile(
    rb"(?<!no )(?<!not )\b(?:success\w*|succeed\w*|done|finish\w*|complet\w+|pass(?:ed|es)?|ok"
    rb"|loaded|loading"
    rb"|created|ready|start(?:ed|ing)?|initiali[sz]\w+|opened|took|inference time|tokens/s|elapsed"
    rb"|using|enabled|selected|found|well|healthy|wrote|written|saved|available|registered|granted"
    rb"|finali[sz]ed|released|freed|closed|probed|supported|running|infs/sec|inferences/s\w*"
    rb"|(?:is now|is|powering) up|exit(?:ed)?(?: with)?(?: code| status)?:? 0"
    rb"|booting|turned o(?:n|ff)|allocat(?:ed|ing)|releasing|forcing|new session|set (?:\w+ )?mode"
    rb"|adding|is a privileged|signall?ed)\b|\xe6\x88\x90\xe5\x8a\x9f|\xe5\xb0\xb1\xe7\xbb\xaa"
    rb"|\b[1-9][0-9.,]* ?(?:ms|us|fps|mib|kib|bytes|nodes|tensors)\b"
)


# What takes that back: nothing was found, the answer is no, or it is said in another language.
UNWELL = re.compile(
    rb"\b(?:0|no|zero) (?:\w+ ){0,3}(?:found|available|loaded|created)|\bkill|\bover\b|\bbudget\b"
    rb"|\brequires?\b|\bneeds?\b|\bexpected\b|\bno more\b|\btoo\b|\blow on\b|\bclosed by\b"
    rb"|\b(?:did|does|do) not\b|\breboots?|"
    rb"\bfound (?:0|no)\b"
    rb"|[\"']? ?[:=] ?[\"']?(?:false|null|nullptr|no|0x0+|0)\b|\? ?no\b|\bnull\b|\bnicht\b"
    rb"|\xc3\xa9chec|\xc3\x89chec|\bfehler|\bthen\b|\bbut\b|\bnothing\b|\bgone\b|\breboots?"
    rb"|\xe5\xa4\xb1|\xe9\x94\x99|\xe3\x82\xa8\xe3\x83\xa9|\xd0\xbe\xd1\x88\xd0\xb8\xd0\xb1"
)
