"""Bytes of a decoder on HTP by arithmetic; `LayerRatios` replaces the parts that were compiled.

Constants come from single layers of Qwen3-0.6B and Llama-3.2-1B and from pairs of graphs of
Llama-3.2-3B and Llama-3-8B, compiled with onnxruntime-qnn 2.7.0 (QAIRT 2.51) for SM8650.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from qnnmem.results.llm import LlmModel, LlmRecipe
from qnnmem.targets.socs import htp_constant
from qnnmem.units import round_up

ACTIVATION = 2  # bytes of an element
_PER_CHANNEL = 16  # bytes of scale and offset of an output channel
_PER_HIDDEN = 8  # bytes of norms and tables, for each element of the hidden state
_ONCE = 80 * 1024  # bytes of a graph in the file, whatever it holds
OPS_IN_FILE = 1.9  # bytes of op data for each byte of ops in the file
_OPS_ONCE = 16 * 1024
_TABLE = 40_960  # bytes beside the values of an embedding
_LOGIT_COPIES = 1.7  # DDR tensors of a head with many rows, in sizes of its output
_SCORES_IN_DDR = 2  # copies of the scores of all heads, where those are larger than VTCM
_SCORE_COPIES = 3  # of the attention scores that may spill: with the mask, and after softmax


class LayerSpan(NamedTuple):
    """Layers of a decoder that go into one context, with embedding or head where it has them."""

    first: int
    layers: int
    embedding: bool = False
    head: bool = False

    @property
    def name(self) -> str:
        """As a person names it."""
        last = self.first + self.layers - 1
        span = f"layers {self.first}-{last}" if self.layers > 1 else f"layer {self.first}"
        parts = ["embedding"] * self.embedding + [span] * bool(self.layers) + ["head"] * self.head
        return " + ".join(parts)


class LayerRatios(Struct, frozen=True):
    """What compiled layers need in proportion to the rule; as it is: the rule alone."""

    weights: float = 1.0
    file: Mapping[int, float] = field(default_factory=dict)  # beside the weights, by graph
    op_data: Mapping[int, float] = field(default_factory=dict)
    spill_fill: Mapping[int, int] = field(default_factory=dict)  # the most that was seen
    origin: str = "by rule"


def matrices(model: LlmModel) -> Mapping[str, tuple[int, int, int]]:
    """Inputs, outputs and count of each kind of matrix in a layer."""
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
    """Weights of one matrix; a scale of a block takes one byte."""
    scales = inputs * outputs // block if block and bits == 4 else 0
    channels = 0 if bits == 16 else _PER_CHANNEL * outputs
    return inputs * outputs * bits // 8 + scales + channels


def layer_weights(model: LlmModel, recipe: LlmRecipe, layer: int) -> int:
    """Weights of one layer."""
    first, last = recipe.wide_layers or (0, model.layers)
    wide = recipe.wide if first <= layer <= last else ()
    total = _PER_HIDDEN * model.hidden + (model.experts * model.hidden * ACTIVATION)
    for name, (inputs, outputs, count) in matrices(model).items():
        bits, block = (8, 0) if name in wide and recipe.bits < 8 else (recipe.bits, recipe.block)
        total += count * matrix_bytes(inputs, outputs, bits, block)
    return total


def weights(model: LlmModel, recipe: LlmRecipe, part: LayerSpan, measured: LayerRatios) -> int:
    """Weights of a context, which all its graphs share."""
    each = sum(layer_weights(model, recipe, n) for n in range(part.first, part.first + part.layers))
    total = round(each * measured.weights)
    if part.embedding:
        total += model.vocab * model.hidden * recipe.embedding // 8 + _TABLE
    if part.head:
        total += matrix_bytes(model.hidden, model.vocab, recipe.head, recipe.block)
    return total


def io_bytes(model: LlmModel, recipe: LlmRecipe, part: LayerSpan, ar: int, context: int) -> int:
    """Inputs and outputs of one graph, each rounded up as the library does."""
    unit = htp_constant("io", "unit").value
    return sum(round_up(size, unit) * n for size, n in _io(model, recipe, part, ar, context))


def _io(
    model: LlmModel, recipe: LlmRecipe, part: LayerSpan, ar: int, context: int
) -> Iterator[tuple[int, int]]:
    """Size and count of each kind of input and output."""
    row = ar * model.hidden * ACTIVATION
    yield (ar * 4 if part.embedding else row), 1
    yield (ar * model.vocab * ACTIVATION if part.head else row), 1
    if part.layers:
        token = model.kv_heads * model.head_dim * recipe.kv // 8
        yield ar * context * ACTIVATION, 1  # mask
        yield ar * model.head_dim // 2 * ACTIVATION, 2  # cosine and sine
        yield token * (context - ar), 2 * part.layers
        yield token * ar, 2 * part.layers


def kv_per_token(model: LlmModel, recipe: LlmRecipe) -> int:
    """Bytes that the KV cache grows by with each token."""
    return 2 * model.layers * model.kv_heads * model.head_dim * recipe.kv // 8


def graph_layers(model: LlmModel, part: LayerSpan, ar: int, context: int) -> float:
    """Bytes of the layers of a graph in the file beside the weights: by heads, tiles by context."""
    per_head = 2_600 + 1.34 * context if ar == 1 else 3_100 + 2.34 * context * max(1, ar / 128)
    return part.layers * model.heads * per_head


def file_extra(model: LlmModel, part: LayerSpan, ar: int, context: int, how: LayerRatios) -> int:
    """Bytes of a graph in the file beside the weights."""
    return round(graph_layers(model, part, ar, context) * how.file.get(ar, 1.0)) + _ONCE


def op_data(model: LlmModel, part: LayerSpan, ar: int, context: int, how: LayerRatios) -> int:
    """Op data of a graph: about twice what the file holds of it."""
    layers = graph_layers(model, part, ar, context) * how.op_data.get(ar, 1.0)
    return round(OPS_IN_FILE * layers) + _OPS_ONCE


def spill_fill(model: LlmModel, part: LayerSpan, ar: int, context: int, how: LayerRatios) -> int:
    """The most that may spill: how the compiler tiles is not predictable, and none is the least."""
    scores = _SCORE_COPIES * model.heads * ar * context * ACTIVATION
    layers = max(scores, how.spill_fill.get(ar, 0)) if part.layers else 0
    logits = ar * model.vocab * ACTIVATION if part.head and ar > 1 else 0
    return layers + logits


def ddr_tensors(model: LlmModel, part: LayerSpan, ar: int, context: int) -> int:
    """The most that stays in DDR: scores of many heads, logits of many rows."""
    if ar == 1:
        return 0
    scores = _SCORES_IN_DDR * model.heads * ar * context * ACTIVATION if part.layers else 0
    logits = round(_LOGIT_COPIES * ar * model.vocab * ACTIVATION) if part.head else 0
    return scores + logits
