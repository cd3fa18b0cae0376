"""Outputs of a model that its compiled context does not give."""

from __future__ import annotations

from dataclasses import dataclass

from qnnmem.text import quote

_NAMED = 6


@dataclass(frozen=True, slots=True)
class MissingOutput:
    """An output that is not in the context, and what gives it instead."""

    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MissingOutputs:
    """The outputs that a context lacks: its bytes are those of a part of the model."""

    outputs: tuple[MissingOutput, ...]
    total: int  # outputs of the model

    @property
    def sentence(self) -> str:
        """What is missing, by name."""
        named = [
            quote(one.name) + (f" ({one.reason})" if one.reason else "")
            for one in self.outputs[:_NAMED]
        ]
        more = len(self.outputs) - len(named)
        named += [f"{more} more"] if more else []
        verb = "is" if len(self.outputs) == 1 else "are"
        count = f"{len(self.outputs):,} of {self.total:,} outputs"
        return f"not the whole model: {count} {verb} not in the context binary: {', '.join(named)}"
