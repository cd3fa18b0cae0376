"""Results of `place`: which contexts can be resident together, and in how many domains."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.provenance import Origin
from qnnmem.results.fit import FitAnswer, answer_of
from qnnmem.results.result import Count, Difference, Result, SourcedNumber, describe

DOMAINS = SourcedNumber(
    4,
    Origin.DOCUMENTED,
    "sessions of a process in the open FastRPC user library; some SoCs allow only one",
)


class PlacedDomain(Struct, frozen=True):
    """A process domain and the contexts in it."""

    contexts: Annotated[
        tuple[Count, ...], describe("Indexes into the list of contexts, counted from 0.")
    ]
    used: Count
    left: Count


class Placement(Struct, frozen=True):
    """The process domain of each context if the contexts are loaded in `order`."""

    order: tuple[Count, ...]
    domains: tuple[PlacedDomain, ...]
    too_large: Annotated[
        tuple[Count, ...], describe("Contexts larger than a whole process domain.")
    ] = ()

    @property
    def fits(self) -> bool:
        """True if every context fits into the domains of one process."""
        return not self.too_large and len(self.domains) <= DOMAINS.value


class PlacedContext(Struct, frozen=True, kw_only=True):
    """A context binary and its memory need in a process domain."""

    file: str
    need_low: SourcedNumber
    need_high: SourcedNumber
    spill_fill: Annotated[Count, describe("Bytes of the context's largest spill/fill buffer.")] = 0

    @property
    def size(self) -> int:
        """Bytes to reserve for the context: the upper bound of its need."""
        return self.need_high.value


class Admission(Struct, frozen=True, kw_only=True):
    """The library's actual decision on a context, and the prediction from its file."""

    predicted: Annotated[
        bool | None,
        describe("Predicted answer; null if the size of the context is too uncertain."),
    ]
    admitted: Annotated[
        bool | None,
        describe(
            "Answer of the library; null if the x86 library estimates the context but "
            "cannot load it."
        ),
    ]
    code: Annotated[
        Difference | None, describe("Error code; null if the library crashed first.")
    ] = None
    estimate: Annotated[Count | None, describe("The library's own estimate in bytes.")] = None
    need_low: Annotated[
        Count, describe("Lower bound of the bytes needed, computed from the file alone.")
    ] = 0
    need_high: Annotated[
        Count, describe("Upper bound of the bytes needed, computed from the file alone.")
    ] = 0
    agrees: Annotated[bool, describe("Whether every prediction was right.")] = True

    @property
    def in_range(self) -> bool:
        """True if the library's estimate is within the predicted bounds, or is missing."""
        return self.estimate is None or self.need_low <= self.estimate <= self.need_high


class PlaceResult(Result, frozen=True, kw_only=True, tag="qnnmem.place/1"):
    """The placement in the given order and in the best order, and the verdict."""

    answer: Annotated[FitAnswer, describe("Whether all contexts fit in the given order.")]
    budget: Annotated[SourcedNumber, describe("Size of one process domain in bytes.")]
    max_domains: Annotated[
        SourcedNumber, describe("Number of process domains that one process can have.")
    ] = DOMAINS
    max_domains_seen_on_device: Annotated[
        bool, describe("Whether a process with several domains has ever been observed on a device.")
    ] = False
    contexts: tuple[PlacedContext, ...]
    given: Annotated[Placement, describe("Placement in the given order.")]
    best: Annotated[Placement, describe("Placement in the best order.")]
    best_is_exact: Annotated[
        bool, describe("Whether `best` is proven to need the fewest domains of all orders.")
    ] = False
    spill_fill_saving: Annotated[
        Count, describe("Bytes saved if the contexts of a domain share one spill/fill buffer.")
    ] = 0
    unjudged: Annotated[
        tuple[str, ...],
        describe("Parts whose memory is unknown; if there are any, the answer is never `fits`."),
    ] = ()
    verified: Annotated[
        tuple[Admission, ...] | None,
        describe("Answers of the real library for each context, if requested."),
    ] = None

    @property
    def fits(self) -> bool | None:
        """True if the given order fits; None if the sizes are not exact enough."""
        return answer_of(self.answer)
