"""How far a quantized model is from the float one, and which widths bring it nearer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LARGE_ERROR = 0.2  # of an output's largest value; beyond it results say little


class Tried(NamedTuple):
    """The error of the same model on the same samples with other widths."""

    bits: int
    weight_bits: int
    error: float


def percent(error: float) -> str:
    """An error as a share of the largest output."""
    return f"{error:.3g}".replace("inf", "∞") + " times" if error >= 10 else f"{error:.1%}"


@dataclass(frozen=True, slots=True)
class QuantizeError:
    """The largest difference between the outputs of the float model and of the quantized one."""

    graph: str
    bits: int
    weight_bits: int
    error: float  # on the samples, relative to the output's largest value
    made_up: bool  # the samples are random numbers, not data of the user
    tried: tuple[Tried, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether the first thing to say about the model is this."""
        return self.error > LARGE_ERROR

    @property
    def sentence(self) -> str:
        """How large it is, on what."""
        samples = "made-up samples" if self.made_up else "the calibration samples"
        widths = f"int{self.bits} with {self.weight_bits}-bit weights"
        return f"{widths}: off by up to {percent(self.error)} of the largest output on {samples}"

    @property
    def cures(self) -> tuple[Tried, ...]:
        """What was seen to help, narrow numbers first: each is at least twice as good as before.

        What leaves the error large is named only where nothing does better.
        """
        found: list[Tried] = []
        enough = [one for one in self.tried if one.error <= LARGE_ERROR]
        for one in sorted(enough or self.tried):
            if one.error < min((t.error for t in found), default=self.error) / 2:
                found.append(one)
        return tuple(found)
