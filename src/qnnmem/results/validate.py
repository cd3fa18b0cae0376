"""Results of `validate`: tensors of two runs compared, and the conclusion about memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.results.result import Count, Result, describe, one_of
from qnnmem.text import counted


class ComparedTensor(Struct, frozen=True):
    """A tensor that both runs computed."""

    name: str
    operator: Annotated[str, describe("Operator that produces the tensor; empty if unknown.")]
    difference: Annotated[
        float | None,
        describe(
            "Largest difference as a share of the tensor's largest value; null if there are no "
            "finite values."
        ),
    ]
    agrees: Annotated[bool, describe("Whether the difference is within the tolerance.")]


class ValidateResult(Result, frozen=True, kw_only=True, tag="qnnmem.validate/1"):
    """The verdict on whether the CPU computes the same results as HTP, or as saved outputs."""

    model: Annotated[str, describe("Model file.")]
    other: Annotated[str, describe("Target that the CPU was compared with.")]
    verdict: Annotated[
        str,
        describe(
            "same: the graph is right; differs: the results differ; refused: only the CPU runs "
            "the model; unknown: no verdict."
        ),
        one_of("same", "differs", "refused", "unknown"),
    ]
    is_memory: Annotated[
        bool | None,
        describe("Whether memory can be the cause of the failure; null if undecided."),
    ]
    tolerance: Annotated[
        float, describe("Allowed difference as a share of a tensor's largest value.")
    ]
    first: Annotated[str | None, describe("First tensor that differs, in graph order.")]
    every: Annotated[bool, describe("Whether intermediate tensors were also compared.")]
    tensors: Annotated[tuple[ComparedTensor, ...], describe("Compared tensors, in graph order.")]
    samples: Annotated[Count, describe("Number of samples that were run.")]
    why: Annotated[str, describe("Why nothing could be compared; empty if something was.")] = ""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if the results are the same, 3 if this is unknown, else 1."""
        return {"same": 0, "unknown": 3}.get(self.verdict, 1)

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.verdict == "unknown":
            return f"cannot tell whether the results agree: {self.why}"
        if self.verdict == "refused":
            memory = "the graph is right; look at memory"
            graph = "look at the graph, not at memory"
            open_ = "it is unclear whether memory is the cause"
            sentence = {True: memory, False: graph, None: open_}[self.is_memory]
            return f"the CPU runs the model and {self.other} does not; {sentence}"
        count = counted(len(self.tensors), "tensor")
        if self.verdict == "same":
            return (
                f"same: the CPU and {self.other} agree in {count}; the graph is right on these "
                f"inputs; look at memory"
            )
        wrong = sum(not tensor.agrees for tensor in self.tensors)
        return f"differs: {wrong} of {count}, first '{self.first}'; look at the graph before memory"
