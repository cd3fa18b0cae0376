"""Results on whether a language model fits HTP: shards, process domains, KV cache."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from qnnmem.provenance import Sourced
from qnnmem.results.fit import FitAnswer, answer_of
from qnnmem.results.footprint import SizeRange
from qnnmem.results.place import DOMAINS, Placement
from qnnmem.results.result import Count, Positive, Result, SourcedNumber, describe
from qnnmem.text import counted, shorten


class LlmModel(Struct, frozen=True, kw_only=True):
    """The sizes of a decoder."""

    name: str
    family: str
    hidden: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    inter: Annotated[Positive, describe("Width of the MLP, or of one expert.")]
    vocab: Positive
    tied: Annotated[bool, describe("Whether the embedding and the head share one matrix.")]
    experts: Annotated[Count, describe("Experts of each layer; 0 for a dense model.")] = 0
    max_context: Annotated[Count, describe("Longest supported context; 0: unknown.")] = 0
    preset: Annotated[str, describe("Known model with these sizes, if any.")] = ""
    source: str = ""
    notes: tuple[str, ...] = ()


class LlmRecipe(Struct, frozen=True, kw_only=True):
    """The quantization of a model: the number of bits of each part."""

    name: str
    bits: Annotated[Positive, describe("Bits of the weights of a layer.")]
    block: Annotated[
        Count, describe("Number of weights that share a scale; 0: one scale per channel.")
    ] = 0
    wide: Annotated[tuple[str, ...], describe("Matrices of a layer that keep 8 bits.")] = ()
    wide_layers: Annotated[
        tuple[Count, Count] | None, describe("First and last layer with 8-bit matrices; null: all.")
    ] = None
    embedding: Annotated[Positive, describe("Bits of the embedding.")] = 16
    head: Annotated[Positive, describe("Bits of the head.")] = 8
    kv: Annotated[Positive, describe("Bits of an element of the KV cache.")] = 8
    apart: Annotated[bool, describe("Whether the embedding is a separate context.")] = False
    is_stated: Annotated[
        bool, describe("Whether the exporter states this recipe for this model.")
    ] = False
    source: str = ""


class LlmShard(Struct, frozen=True, kw_only=True):
    """A context binary of the model."""

    name: str
    first: Annotated[Count, describe("First layer of the shard.")] = 0
    layers: Count = 0
    embedding: bool = False
    head: bool = False
    file_bytes: Sourced
    weights: Annotated[
        Sourced, describe("Bytes of the weights, which all graphs of the shard share.")
    ]
    io: Annotated[
        Sourced, describe("Bytes of inputs and outputs of all graphs, KV cache included.")
    ]
    spill_fill: SizeRange
    compile_need: Annotated[SizeRange, describe("Compile estimate of the shard's largest graph.")]
    process_domain: SizeRange


class LlmRow(Struct, frozen=True, kw_only=True):
    """The verdict and the memory needs for another SoC or another setting."""

    setting: dict[str, str | int]
    answer: FitAnswer
    shards: Annotated[Count, describe("Number of context binaries, including the embedding.")]
    domains: Count
    largest_domain: Annotated[
        Count,
        describe("Upper bound of the bytes that the largest shard needs in a process domain."),
    ]
    file_bytes: Count
    kv_bytes: Count
    longest_context: Count
    why: str = ""


class LlmCheck(Struct, frozen=True, kw_only=True):
    """A number measured on compiled layers, and the number extrapolated from fewer layers."""

    what: str
    ar: Positive
    layers: Positive
    expected: Count
    measured: Count


class LlmActual(Struct, frozen=True, kw_only=True):
    """An existing context binary, compared with the expected shard."""

    file: str
    file_bytes: Count
    shard: Annotated[
        str, describe("Shard that the file was matched with; empty if no shard matches.")
    ] = ""
    expected: Annotated[
        Count | None, describe("Bytes of the expected shard; null if no shard matches.")
    ] = None
    process_domain: SizeRange | None = None
    findings: tuple[str, ...] = ()


class LlmResult(Result, frozen=True, kw_only=True, tag="qnnmem.llm/1"):
    """The verdict on whether a language model fits a SoC, with its shards."""

    model: LlmModel
    recipe: LlmRecipe
    soc: str
    context: Annotated[Positive, describe("Length of the KV cache in tokens.")]
    ar: Annotated[tuple[Positive, ...], describe("Number of tokens per execution of each graph.")]
    answer: FitAnswer
    why: Annotated[str, describe("Decisive limit.")]
    shards: tuple[LlmShard, ...]
    placement: Annotated[Placement, describe("Load order and process domains.")]
    budget: Annotated[Sourced, describe("Size of one process domain in bytes.")]
    max_domains: SourcedNumber = DOMAINS
    file_bytes: Sourced
    recipe_range: Annotated[
        SizeRange | None,
        describe(
            "Smallest and largest total file size over the usual recipes; null if a recipe "
            "is stated."
        ),
    ] = None
    kv_bytes_per_token: Sourced
    kv_bytes: Sourced
    longest_context: Annotated[
        Count, describe("Longest context that fits with these shards; 0 if no context fits.")
    ]
    spill_fill: Annotated[SizeRange, describe("Spill/fill bytes with one buffer per graph.")]
    spill_fill_shared: Annotated[SizeRange, describe("Spill/fill bytes with one shared buffer.")]
    host_ram: Annotated[
        SizeRange, describe("Memory that the compiler needs for the largest shard.")
    ]
    compile_seconds: Annotated[
        tuple[Count, Count], describe("Compile time of all shards, order of magnitude only.")
    ]
    origin: Annotated[str, describe("Where the sizes of a layer come from.")]
    notes: Annotated[tuple[str, ...], describe("Limitations of the answer.")] = ()
    rows: Annotated[tuple[LlmRow, ...], describe("Results for other SoCs or settings.")] = ()
    changes: Annotated[
        tuple[LlmRow, ...], describe("Suggested changes, each with its computed result.")
    ] = ()
    checks: Annotated[
        tuple[LlmCheck, ...],
        describe("Extrapolated numbers, compared with the numbers of a compile with more layers."),
    ] = ()
    actual: Annotated[tuple[LlmActual, ...], describe("Files that were compared.")] = ()

    @property
    def fits(self) -> bool | None:
        """True if the model fits; None if the limit is between the bounds of the need."""
        return answer_of(self.answer)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if the model fits in any row, else 3 if any row is undecided, else 1."""
        verdicts = {row.answer for row in self.rows} or {self.answer}
        return 0 if "fits" in verdicts else 3 if "cannot-tell" in verdicts else 1

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        word = {True: "fits", False: "does not fit", None: "cannot tell"}[self.fits]
        parts = f"{counted(len(self.shards), 'shard')} at context {self.context:,}"
        return f"{word}: {shorten(self.model.name)} on {self.soc}, {parts}"
