"""What a client of shared IO memory must not do, with the way out."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from qnnmem.finding import Finding


class QmemRule(NamedTuple):
    """One rule of memory registration."""

    sentence: str
    codes: tuple[int, ...]  # empty: reported, not refused
    cure: str


RULES = MappingProxyType(
    {
        "Q1": QmemRule(
            "The same fd and offset is registered once.", (8002,), "keep the first handle"
        ),
        "Q2": QmemRule(
            "The fd is open and its bytes fit into the process domain.",
            (8003,),
            "give an open fd of shared memory, or free other contexts first",
        ),
        "Q3": QmemRule(
            "Shape, offset and size describe bytes inside the buffer.",
            (8004,),
            "give one dimension of 1 for a scalar, an aligned offset and a large enough buffer",
        ),
        "Q4": QmemRule(
            "Inputs and outputs are ION memory or HTP shared buffers.",
            (8005,),
            "use ION for one tensor, CUSTOM with SHARED_BUFFER for many in one buffer",
        ),
        "Q5": QmemRule(
            "Context and handle are alive.", (8001,), "register again with a live context"
        ),
        "Q6": QmemRule("A descriptor names a data type with a size.", (8000,), "fill in all of it"),
        "Q7": QmemRule(
            "An execution gets memory for every tensor, large enough and still registered.",
            (6004,),
            "deregister after the last execution, never before",
        ),
        "Q8": QmemRule(
            "A buffer is freed after it was deregistered.",
            (6004,),
            "call QnnMem_deRegister, then rpcmem_free",
        ),
        "Q9": QmemRule(
            "Every handle is deregistered before its context is freed.",
            (),
            "call QnnMem_deRegister for each handle, then QnnContext_free",
        ),
    }
)
_SOURCE = "QNN headers and shared buffer tutorial; emulated"


def broken(
    rule: str, sentence: str, call: str, *, need: int | None = None, given: int | None = None
) -> Finding:
    """A finding of a rule, with its cure."""
    return Finding(
        rule, sentence, call, need=need, given=given, cure=RULES[rule].cure, source=_SOURCE
    )
