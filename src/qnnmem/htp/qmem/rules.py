"""Rules of memory registration and execution: what must hold, the code where not, and the cure."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from qnnmem.caller import caller_line
from qnnmem.finding import Finding


class QmemRule(NamedTuple):
    """One rule of memory that an application shares with the HTP."""

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
            "Inputs and outputs are ION memory, without an offset, or HTP shared buffers.",
            (8005,),
            "use ION for one tensor, CUSTOM with SHARED_BUFFER for many in one buffer",
        ),
        "Q5": QmemRule(
            "Context and handle are alive.", (8001,), "register again with a live context"
        ),
        "Q6": QmemRule("A descriptor names a data type with a size.", (8000,), "fill in all of it"),
        "Q7": QmemRule(
            "An execution gets memory for every tensor, large enough and still registered.",
            (6004, 6000),
            "give each tensor as many bytes as the graph says, and deregister only after the last "
            "execution",
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
        "Q10": QmemRule(
            "A handle is executed with graphs of the context it was registered with.",
            (6004,),
            "register the buffer with each context that uses it",
        ),
        "Q11": QmemRule(
            "An output shares no byte with another tensor of the execution.",
            (),
            "give every tensor of a shared buffer an offset behind the end of the one before",
        ),
        "Q12": QmemRule(
            "The memory type of a tensor says what is handed over: RAW or MEMHANDLE.",
            (),
            "set memType to QNN_TENSORMEMTYPE_RAW with clientBuf or to MEMHANDLE with memHandle",
        ),
        "Q13": QmemRule(
            "A graph is executed, and a context used, before it is freed, and each is freed.",
            (4011, 5002, 6001),
            "free in the order handles, buffers, context, backend, each once",
        ),
        "Q14": QmemRule(
            "A graph is retrieved by a name that the binary has.",
            (6002,),
            "take the name from the binary; qnnmem inspect shows it",
        ),
        "Q15": QmemRule(
            "A buffer of rpcmem_alloc is freed, and once.",
            (),
            "call rpcmem_free once for each rpcmem_alloc, after QnnMem_deRegister",
        ),
    }
)
_SOURCE = "QNN headers and shared buffer tutorial; emulated"
# Where libQnnHtp for x86 itself gives the same code: tried with onnxruntime-qnn 2.7.0.
MEASURED = "QNN headers; the same code as libQnnHtp for x86 gives"


def broken(
    rule: str,
    sentence: str,
    call: str,
    *,
    need: int | None = None,
    given: int | None = None,
    line: str | None = None,
    source: str = "",
) -> Finding:
    """A finding of a rule, with its cure and the line of Python, by default that of the call."""
    where = caller_line() if line is None else line
    cure = RULES[rule].cure
    return Finding(
        *(rule, sentence, call),
        need=need,
        given=given,
        cure=cure,
        source=source or _SOURCE,
        line=where,
    )
