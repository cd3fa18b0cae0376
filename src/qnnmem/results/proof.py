"""The scope of the proof of a plan's size, and the words for it."""

from __future__ import annotations

from enum import Enum


class ProofScope(Enum):
    """The conditions under which scratch is minimal; alignment, views and IO location are fixed."""

    ANY_ORDER = "proven minimal for any order"
    THIS_ORDER = "minimal for this order"
    IN_PLACE = "minimal for this order and these in-place ops"  # others may overwrite other inputs
    LIFETIMES = "proven minimal for these lifetimes"  # a list of buffers has no order
    ESTIMATE = "estimate before quantization"  # which fuses ops and adds others
    UPPER_BOUND = "upper bound"  # bodies of control flow are planned separately
    NONE = "not proven minimal"

    @property
    def basis(self) -> str:
        """The phrase for a verdict that is based on an estimate; empty for any other verdict."""
        return f" by an {self.value}" if self is ProofScope.ESTIMATE else ""


def proof_words(proof: ProofScope, peak: int, bound: int) -> str:
    """Return a proof as a phrase, with the bound if the peak is not proven minimal."""
    if proof is not ProofScope.NONE:
        return str(proof.value)
    above = 100 * (peak - bound) / max(bound, 1)
    return f"at most {above:.2f} % above the minimum for these lifetimes (proven bound {bound:,})"
