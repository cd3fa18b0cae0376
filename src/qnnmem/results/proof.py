"""What is proven about the bytes of a plan: the one place that decides the word."""

from __future__ import annotations

from enum import Enum


class ProofScope(Enum):
    """What scratch is minimal for, given alignment, views, and where inputs and outputs lie."""

    ANY_ORDER = "proven minimal for any order"
    THIS_ORDER = "minimal for this order"
    IN_PLACE = "minimal for this order and these in-place ops"  # others may overwrite other inputs
    LIFETIMES = "proven minimal for these lifetimes"  # a list of buffers has no order
    ESTIMATE = "estimate before quantization"  # which fuses ops and adds others
    UPPER_BOUND = "upper bound"  # bodies of control flow are planned separately
    NONE = "not proven minimal"

    @property
    def basis(self) -> str:
        """What a verdict rests on, where that is not the model that will run."""
        return f" by an {self.value}" if self is ProofScope.ESTIMATE else ""


def proof_words(proof: ProofScope, peak: int, bound: int) -> str:
    """A proof as a part of a sentence, with the bound where the peak is above it."""
    if proof is not ProofScope.NONE:
        return str(proof.value)
    above = 100 * (peak - bound) / max(bound, 1)
    return f"at most {above:.2f} % above the minimum for these lifetimes (proven bound {bound:,})"
