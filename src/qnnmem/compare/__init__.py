"""Two results of the product against each other: what grew, what turned, whether it is worse.

value      what a comparison holds
subject    what of a result is compared: pools, tensors, verdicts
read       subjects out of the JSON of any verb
run        subjects of both sides paired and compared
"""

from qnnmem.compare.run import compare_results, compare_subjects
from qnnmem.compare.value import (
    NO_GROWTH,
    ComparedSubject,
    LimitChange,
    PoolChange,
    ResultComparison,
    SettingChange,
    TensorChange,
    Tolerance,
    VerdictChange,
    WhatCounts,
)

__all__ = [
    "NO_GROWTH",
    "ComparedSubject",
    "LimitChange",
    "PoolChange",
    "ResultComparison",
    "SettingChange",
    "TensorChange",
    "Tolerance",
    "VerdictChange",
    "WhatCounts",
    "compare_results",
    "compare_subjects",
]
