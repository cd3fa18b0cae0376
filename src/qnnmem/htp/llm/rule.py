"""Sizes of a decoder on HTP, by arithmetic; `LayerRatios` corrects them from compiled layers.

Constants come from single layers of Qwen3-0.6B and Llama-3.2-1B and from pairs of graphs of
Llama-3.2-3B and Llama-3-8B, compiled with onnxruntime-qnn 2.7.0 (QAIRT 2.51) for SM8650.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from qnnmem.results.llm import LlmModel, LlmRecipe
from qnnmem.targets.socs import MIB, htp_constant
from qnnmem.units import round_up

ACTIVATION = 2  # bytes of an element
_PER_CHANNEL = 16  # bytes of scale and offset of an output channel
_PER_HIDDEN = 8  # bytes of norms and tables, for each element of the hidden state
_ONCE = 80 * 1024  # bytes of a graph in the file, independent of its content
OPS_IN_FILE = 1.9  # factor from bytes of ops in the file to op data in memory
_OPS_ONCE = 16 * 1024
_TABLE = 40_960  # bytes of an embedding in addition to its values
_LOGIT_COPIES = 1.7  # DDR tensors of a head with many rows, in multiples of its output
# Maxima of 30 compiles of 1 to 24 layers, for 2 to 8 MiB of VTCM, with a margin:
_SCORES_IN_DDR = 3  # copies of the scores of all heads, if larger than VTCM
_SCORE_COPIES = 4  # copies of attention scores that may spill: with mask, after softmax
_KEY_COPIES = 4  # copies of a layer's keys that may spill, values included
_MLP_COPIES = 3  # copies of the gated activations that may spill
_KEYS_IN_DDR = 3  # copies of the keys of one layer, plus one per layer, if larger than VTCM
_DDR_ROUNDING = 64 * 1024
_OP_TILES = 2.6  # factor on the rule's op data, found for graphs with other widths
_OP_OF_WEIGHTS = 0.012  # op data of the tiles of matrices, in proportion to their bytes
_OP_MEASURED = 1.1  # factor on the extrapolation from compiled layers


class LayerSpan(NamedTuple):
    """A range of decoder layers in one context, possibly with embedding or head."""

    first: int
    layers: int
    embedding: bool = False
    head: bool = False

    @property
    def name(self) -> str:
        """The name shown to the user."""
        last = self.first + self.layers - 1
        span = f"layers {self.first}-{last}" if self.layers > 1 else f"layer {self.first}"
        parts = ["embedding"] * self.embedding + [span] * bool(self.layers) + ["head"] * self.head
        return " + ".join(parts)


class LlmGraph(NamedTuple):
    """A graph that takes `ar` tokens at a time through a span of layers."""

    model: LlmModel
    recipe: LlmRecipe
    part: LayerSpan
    ar: int
    context: int
    vtcm: int = 8 * MIB

    @property
    def scores(self) -> int:
        """Size of the attention scores of all heads of a layer."""
        return self.model.heads * self.ar * self.context * ACTIVATION * bool(self.part.layers)

    @property
    def logits(self) -> int:
        """Size of the output of the head."""
        return self.ar * self.model.vocab * ACTIVATION * self.part.head

    @property
    def head_keys(self) -> int:
        """Size of the keys of one KV head of a layer."""
        token = self.model.head_dim * self.recipe.kv // 8
        return token * self.context * bool(self.part.layers)

    @property
    def keys(self) -> int:
        """Size of the keys of a layer; the values of the layer have the same size."""
        return self.model.kv_heads * self.head_keys


class MeasuredParts(NamedTuple):
    """Exact numbers of a graph that was compiled with all its layers."""

    op_data: int
    ddr_tensors: int
    spill_fill: int


class LayerRatios(Struct, frozen=True):
    """Ratios of measured to computed sizes of layers; the defaults leave computed sizes unchanged.

    A key of `compiled` has three parts: tokens at a time, layers and context of a compiled graph.
    The measured sizes apply only to that graph. Graphs with shared weights are tiled differently;
    for them the measured sizes only widen the ranges.
    """

    weights: float = 1.0
    file: Mapping[int, float] = field(default_factory=dict)  # in addition to the weights, by graph
    op_data: Mapping[tuple[int, int], float] = field(default_factory=dict)  # and by context
    compiled: Mapping[tuple[int, int, int], MeasuredParts] = field(default_factory=dict)
    shares: bool = False
    origin: str = "by rule"


def matrices(model: LlmModel) -> Mapping[str, tuple[int, int, int]]:
    """For each kind of weight matrix in a layer, return input size, output size and count."""
    hidden, inter, count = model.hidden, model.inter, max(1, model.experts)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        "q": (hidden, queries, 1),
        "k": (hidden, keys, 1),
        "v": (hidden, keys, 1),
        "o": (queries, hidden, 1),
        "gate": (hidden, inter, count),
        "up": (hidden, inter, count),
        "down": (inter, hidden, count),
    }


def matrix_bytes(inputs: int, outputs: int, bits: int, block: int = 0) -> int:
    """Return the size of one weight matrix; the scale of a block takes one byte."""
    scales = inputs * outputs // block if block and bits == 4 else 0
    channels = 0 if bits == 16 else _PER_CHANNEL * outputs
    return inputs * outputs * bits // 8 + scales + channels


def layer_weights(model: LlmModel, recipe: LlmRecipe, *, is_wide: bool = True) -> int:
    """Return the weight bytes of a layer; `is_wide` gives the recipe's wide matrices 8 bits."""
    wide = recipe.wide if is_wide else ()
    total = _PER_HIDDEN * model.hidden + (model.experts * model.hidden * ACTIVATION)
    for name, (inputs, outputs, count) in matrices(model).items():
        bits, block = (8, 0) if name in wide and recipe.bits < 8 else (recipe.bits, recipe.block)
        total += count * matrix_bytes(inputs, outputs, bits, block)
    return total


def weights(model: LlmModel, recipe: LlmRecipe, part: LayerSpan, measured: LayerRatios) -> int:
    """Return the bytes of the weights of a context, which all its graphs share."""
    first, last = recipe.wide_layers or (0, model.layers)
    wide = max(0, min(last + 1, part.first + part.layers) - max(first, part.first))
    each = wide * layer_weights(model, recipe)
    each += (part.layers - wide) * layer_weights(model, recipe, is_wide=False)
    total = round(each * measured.weights)
    if part.embedding:
        total += model.vocab * model.hidden * recipe.embedding // 8 + _TABLE
    if part.head:
        total += matrix_bytes(model.hidden, model.vocab, recipe.head, recipe.block)
    return total


def io_bytes(graph: LlmGraph) -> int:
    """Return the size of inputs and outputs, each rounded up the way the library does."""
    unit = htp_constant("io", "unit").value
    return sum(round_up(size, unit) * count for size, count in _io(graph))


def _io(graph: LlmGraph) -> Iterator[tuple[int, int]]:
    """Yield size and count of each kind of input and output."""
    model, part, ar, context = graph.model, graph.part, graph.ar, graph.context
    row = ar * model.hidden * ACTIVATION
    yield (ar * 4 if part.embedding else row), 1
    yield (graph.logits or row), 1
    if part.layers:
        token = model.kv_heads * model.head_dim * graph.recipe.kv // 8
        yield ar * context * ACTIVATION, 1  # mask
        yield ar * model.head_dim // 2 * ACTIVATION, 2  # cosine and sine
        yield token * (context - ar), 2 * part.layers
        yield token * ar, 2 * part.layers


def kv_per_token(model: LlmModel, recipe: LlmRecipe) -> int:
    """Return how many bytes each token adds to the KV cache."""
    return 2 * model.layers * model.kv_heads * model.head_dim * recipe.kv // 8


def graph_layers(graph: LlmGraph) -> float:
    """Return how many bytes a graph's layers take in the file, without their weights."""
    ar, context = graph.ar, graph.context
    per_head = 2_600 + 1.34 * context if ar == 1 else 3_100 + 2.34 * context * max(1, ar / 128)
    return graph.part.layers * graph.model.heads * per_head


def file_extra(graph: LlmGraph, how: LayerRatios) -> int:
    """Return how many bytes of the file a graph takes in addition to its weights."""
    return round(graph_layers(graph) * how.file.get(graph.ar, 1.0)) + _ONCE


def op_data(graph: LlmGraph, how: LayerRatios) -> int:
    """Return the bytes of a graph's op data, about twice those of its layers in the file."""
    layers = graph_layers(graph) * how.op_data.get((graph.ar, graph.context), 1.0)
    return round(OPS_IN_FILE * layers) + _OPS_ONCE


def op_range(graph: LlmGraph, how: LayerRatios) -> tuple[int, int]:
    """Return the minimum and maximum op data; less VTCM or wider matrices need more op data."""
    compiled = _compiled(graph, how)
    if compiled is not None and not how.shares:
        return compiled.op_data, compiled.op_data + _tiles(graph, how, layers=0)
    usual = op_data(graph, how)
    if (graph.ar, graph.context) in how.op_data:
        most = round(_OP_MEASURED * usual)
        return round(usual / _OP_MEASURED), most + _tiles(graph, how, layers=0)
    attention = round(_OP_TILES * max(1, 8 * MIB / graph.vtcm) * usual)
    return usual // 2, attention + _tiles(graph, how, layers=graph.part.layers)


def _tiles(graph: LlmGraph, how: LayerRatios, *, layers: int) -> int:
    """Return the maximum op data for the matrices of layers and head, without the embedding."""
    part = graph.part._replace(layers=layers, embedding=False)
    return round(_OP_OF_WEIGHTS * weights(graph.model, graph.recipe, part, how))


def _compiled(graph: LlmGraph, how: LayerRatios) -> MeasuredParts | None:
    return how.compiled.get((graph.ar, graph.part.layers, graph.context))


def spill_range(graph: LlmGraph, how: LayerRatios) -> tuple[int, int]:
    """Return the minimum and maximum spill buffer, because the tiling cannot be predicted."""
    logits = graph.logits if graph.ar > 1 else 0
    gated = _MLP_COPIES * graph.ar * graph.model.inter * ACTIVATION * bool(graph.part.layers)
    most = _SCORE_COPIES * graph.scores + _KEY_COPIES * graph.keys + gated
    compiled = _compiled(graph, how)
    least, most = _bounds(most, None if compiled is None else compiled.spill_fill, how)
    return least, most + logits


def ddr_range(graph: LlmGraph, how: LayerRatios) -> tuple[int, int]:
    """Return the minimum and maximum size of DDR tensors: attention scores, logits, KV caches."""
    many = graph.ar > 1
    logits = round(_LOGIT_COPIES * graph.logits) if many else 0
    copies = _KEYS_IN_DDR + graph.part.layers if graph.keys >= graph.vtcm else 0
    most = copies * graph.keys + (_SCORES_IN_DDR * graph.scores if many else 0)
    compiled = _compiled(graph, how)
    measured = None if compiled is None else compiled.ddr_tensors
    least, most = _bounds(most + _DDR_ROUNDING * bool(most), measured, how)
    return least, most + logits


def _bounds(most: int, compiled: int | None, how: LayerRatios) -> tuple[int, int]:
    """Return the minimum and the maximum; both are the compiled value if it applies exactly.

    With shared weights, the compiled value only widens the range that the rule gives.
    """
    if compiled is None:
        return 0, most
    return (0, max(most, compiled)) if how.shares else (compiled, compiled)
