"""What a change of a model is, and what a remedy must be able to do.

A remedy proposes changes; each is a new model beside the old one. It counts only after the planner
said what it brings and the results were compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qnnmem.units import Bytes

if TYPE_CHECKING:
    import onnx

    from qnnmem.fix.prove import Proof
    from qnnmem.load.onnx.passes.shape import ShapedModel


@dataclass(frozen=True, slots=True)
class Change:
    """A changed model, by whom, and what is different in it."""

    remedy: str  # its name, as reports and recipes have it
    what: str  # in words, for people
    exact: bool  # whether results are promised to stay the same, bit by bit
    model: onnx.ModelProto
    extra_macs: int = 0  # multiply-adds that are done twice


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change that was judged: bytes before and after, and how far results differ."""

    remedy: str
    what: str
    exact: bool
    before: Bytes
    after: Bytes
    limit: Bytes | None = None  # what there may be; None where as few as possible are wanted
    proof: Proof | None = None  # None where nothing is computed otherwise
    macs: int = 0  # multiply-adds of the model as it was
    extra_macs: int = 0
    seconds: float = 0.0

    @property
    def fits(self) -> bool | None:
        """Whether the bytes are within the limit; None without one."""
        return None if self.limit is None else self.after <= self.limit

    @property
    def holds(self) -> bool:
        """Whether the results are what the change promises."""
        return self.proof is None or self.proof.identical or not self.exact


class ModelRemedy(Protocol):
    """A way to change a model so that it needs less memory."""

    name: str

    def applies(self, model: ShapedModel) -> str:
        """Why it cannot help this model, in one sentence; empty where it can."""
        ...

    def change(self, model: ShapedModel) -> Change | None:
        """The changed model; None where nothing was found that needs less."""
        ...
