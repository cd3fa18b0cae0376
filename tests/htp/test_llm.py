"""Language models: sizes by rule, shards against limits, and configs of any origin."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from context_writer import example_context, example_graph, example_tensor, pack_context
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import qnnmem
from qnnmem.errors import QnnMemError, UsageError
from qnnmem.htp.library import has_library
from qnnmem.htp.llm.config import (
    _BOUNDS,
    _NAMES,
    find_recipe,
    known_models,
    read_model,
    recipe_names,
)
from qnnmem.htp.llm.decoder_layers import write_layers
from qnnmem.htp.llm.rule import (
    LayerRatios,
    LayerSpan,
    LlmGraph,
    MeasuredParts,
    ddr_range,
    io_bytes,
    kv_per_token,
    spill_range,
    weights,
)
from qnnmem.options.htp import LlmOptions
from qnnmem.report.page.llm import llm_section
from qnnmem.results.llm import LlmRecipe, LlmResult
from qnnmem.targets.socs import find_soc
from qnnmem.units import round_up
from qnnmem.verbs import VerbCall
from qnnmem.verbs.llm import plan_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
# Bytes of one compiled layer, onnxruntime-qnn 2.7.0, SM8650: weights and the constant.
COMPILED = [
    ("qwen3-0.6b", 4, 8_069_120),
    ("qwen3-0.6b", 8, 15_933_440),
    ("qwen3-0.6b", 16, 31_469_568),
    ("llama-3.2-1b", 4, 30_801_920),
    ("llama-3.2-1b", 8, 61_210_624),
    ("llama-3.2-1b", 16, 121_651_200),
]
# Inputs and outputs: bytes of each layer, and bytes that a graph has once.
COMPILED_IO = [
    ("qwen3-0.6b", 1, 512, 1_064_960, 40_960),
    ("qwen3-0.6b", 128, 2048, 4_194_304, 1_081_344),
    ("llama-3.2-1b", 1, 512, 540_672, 40_960),
    ("llama-3.2-1b", 128, 2048, 2_097_152, 1_589_248),
]


SMALL = {
    **{"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64},
    **{"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1024},
}


def recipe(bits: int, kv: int = 8) -> LlmRecipe:
    """Return a recipe with the same bits everywhere."""
    return LlmRecipe(name="test", bits=bits, kv=kv)


def config(folder: Path, **changes: object) -> str:
    """Write a config.json with changed fields; None removes a field."""
    values = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(values), "utf-8")
    return str(path)


@pytest.mark.parametrize(("name", "bits", "measured"), COMPILED)
def test_weights_of_a_layer_are_those_of_the_compiler(name: str, bits: int, measured: int) -> None:
    """The computed weights of a layer match the compiler within 0.1 % for 4, 8 and 16 bits."""
    found = weights(known_models()[name], recipe(bits), LayerSpan(0, 1), LayerRatios())
    assert found == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize(("name", "ar", "context", "each", "once"), COMPILED_IO)
def test_inputs_and_outputs_are_exact(
    name: str, ar: int, context: int, each: int, once: int
) -> None:
    """The computed IO of a graph matches the compiler to the byte."""
    model = known_models()[name]
    for layers in (1, 2, 4):
        found = io_bytes(LlmGraph(model, recipe(4), LayerSpan(0, layers), ar, context))
        assert found == layers * each + once


@pytest.mark.parametrize(
    ("name", "split", "parts"),
    [
        ("llama-3.2-3b", (14, 14), {0: 788e6, 1: 719e6, 2: 1.12e9}),
        ("llama-3.1-8b", (9, 9, 9, 5), {0: 1.05e9, 1: 997e6, 2: 997e6, 3: 997e6, 4: 1.08e9}),
    ],
)
def test_published_parts_are_within_one_percent(
    name: str, split: tuple[int, ...], parts: dict[int, float]
) -> None:
    """The computed file sizes match published Genie bundles within 1 %."""
    found = qnnmem.llm(name, soc="SM8650", shards=split)
    assert found.fits
    for at, size in parts.items():
        assert found.shards[at].file_bytes.value == pytest.approx(size, rel=0.01)


def test_the_process_domain_is_never_below_the_loader(tmp_path: Path) -> None:
    """The range for one layer of Llama 3.2 3B with two graphs contains the library's estimate."""
    sizes = {"hidden_size": 3072, "num_attention_heads": 24, "head_dim": 128}
    path = config(tmp_path, **sizes, num_hidden_layers=2)
    found = qnnmem.llm(path, soc="SM8650", shards=(1, 1), recipe="genie-w4a16")
    domain = found.shards[1].process_domain
    assert domain.low.value <= 121_565_184 <= domain.high.value


@pytest.mark.parametrize("name", ["llama-3.2-3b", "qwen3-4b", "phi-3.5-mini"])
def test_the_longest_context_is_exact(name: str) -> None:
    """The longest context fits with the same shards; one more token does not fit."""
    first = qnnmem.llm(name, soc="SM8650")
    split = tuple(one.layers for one in first.shards if one.layers)
    split = split if len(split) > 1 else (1,)  # a single number would be a count
    last = first.longest_context
    assert qnnmem.llm(name, soc="SM8650", context=last, shards=split).fits
    assert not qnnmem.llm(name, soc="SM8650", context=last + 1, shards=split).fits


def test_the_fewest_shards_are_the_fewest() -> None:
    """With one shard less than proposed, no model is certain to fit."""
    for name in ("llama-3.1-8b", "qwen3-8b", "mistral-7b"):
        found = qnnmem.llm(name, soc="SM8550")
        count = sum(one.layers > 0 for one in found.shards)
        assert found.fits
        assert count > 1
        assert not qnnmem.llm(name, soc="SM8550", shards=(count - 1,)).fits


@given(
    st.sampled_from(sorted(known_models())),
    st.sampled_from(recipe_names()),
    st.integers(2, 9),
    st.sampled_from([(1,), (128, 1), (64, 32, 1)]),
)
def test_shards_hold_every_layer_once(
    name: str, wanted: str, count: int, ar: tuple[int, ...]
) -> None:
    """Shards hold each layer once, in order, and the embedding and head once; sizes add up."""
    found = qnnmem.llm(name, soc="SM8750", recipe=wanted, shards=(count,), ar=ar, context=2048)
    layers = [n for one in found.shards for n in range(one.first, one.first + one.layers)]
    assert layers == list(range(found.model.layers))
    assert sum(one.embedding for one in found.shards) == 1
    assert [one.head for one in found.shards][-1]
    assert sum(one.head for one in found.shards) == 1
    assert found.file_bytes.value == sum(one.file_bytes.value for one in found.shards)
    assert sorted((*found.placement.order,)) == list(range(len(found.shards)))
    for one in found.shards:
        assert one.process_domain.low.value <= one.process_domain.high.value
        assert one.process_domain.low.value > one.weights.value


def test_the_kv_cache_grows_by_its_heads() -> None:
    """The KV cache takes these bytes for each token, and twice as much with 16 bits."""
    for name, size in (("llama-3.2-1b", 16_384), ("llama-3.2-3b", 57_344), ("qwen3-0.6b", 57_344)):
        model = known_models()[name]
        assert kv_per_token(model, recipe(4)) == size
        assert kv_per_token(model, recipe(4, kv=16)) == 2 * size


def test_a_known_config_is_recognized(tmp_path: Path) -> None:
    """A config that matches a known model gets the recipe that an exporter states for it."""
    model = read_model(config(tmp_path))
    assert model.preset == "llama-3.2-1b"
    assert find_recipe("executorch-16a4w", model).wide_layers == (0, 3)
    assert find_recipe("executorch-16a4w", model).is_stated


def test_experts_windows_and_encoders_are_said(tmp_path: Path) -> None:
    """Experts, sliding windows, text decoders and unknown types each get a note."""
    dense = qnnmem.llm(config(tmp_path), soc="SM8650")
    odd = config(
        tmp_path,
        **{"num_local_experts": 4, "sliding_window": 4096, "model_type": "odd"},
        text_config={"hidden_size": 2048},
    )
    found = qnnmem.llm(odd, soc="SM8650")
    notes = " ".join(found.notes)
    for word in ("experts", "sliding", "text decoder", "planned like Llama"):
        assert word in notes
    assert found.file_bytes.value > 1.9 * dense.file_bytes.value
    assert dense.fits
    assert found.fits is None
    shared = config(tmp_path, num_experts=4, shared_expert_intermediate_size=8192 * 2)
    assert read_model(shared).experts == 6


@pytest.mark.parametrize(
    ("soc", "settings", "said"),
    [
        ("SM8450", {"bits": {"kv": 16}}, "KV cache: 16 bits"),
        ("SM8350", {"bits": {"block": 32}}, "recipe: block scales"),
        ("QCS6490", {"context": 16384}, "VTCM: the keys of one head"),
    ],
)
def test_what_nobody_tried_does_not_fit(soc: str, settings: dict[str, Any], said: str) -> None:
    """A graph has no verdict on an SoC that is not documented to run it, even if sizes fit."""
    found = qnnmem.llm("qwen3-0.6b", soc=soc, **settings)
    assert found.fits is None
    assert found.why.startswith(said)


def test_weights_count_for_each_graph_where_sharing_is_not_documented() -> None:
    """Before v73 the upper bound counts weights for each graph, because sharing is undocumented."""
    old, new = (
        qnnmem.llm("qwen3-0.6b", soc=soc, shards=(2,)).shards[1] for soc in ("SM8450", "SM8550")
    )
    assert old.process_domain.low == new.process_domain.low
    more = old.process_domain.high.value - new.process_domain.high.value
    assert more == round_up(new.weights.value, 2 << 20)


# Spill/fill and DDR tensors of compiled graphs near the bounds (onnxruntime-qnn 2.7.0).
SPILLED = [
    ("smollm2-135m", 4, 8, "SM8650", 128, 2048, 12, 12_517_376, 13_107_712),
    ("smollm2-135m", 4, 8, "SM8635", 128, 2048, 24, 13_369_344, 13_107_712),
    ("smollm2-135m", 8, 8, "SM8650", 32, 16384, 2, 43_253_760, 0),
    ("smollm2-135m", 4, 16, "SM8650", 1, 32768, 2, 9_568_256, 62_816_512),
    ("smollm2-1.7b", 4, 16, "SM8650", 1, 8192, 1, 20_250_624, 50_328_064),
    ("tinyllama-1.1b", 4, 8, "QCS6490", 1, 4096, 2, 2_490_368, 0),
    ("qwen3-0.6b", 4, 8, "SM8650", 512, 2048, 1, 66_650_112, 67_109_376),
    ("qwen3-0.6b", 4, 8, "SM8650", 128, 8192, 1, 33_816_576, 88_080_896),
]


@pytest.mark.parametrize("row", SPILLED, ids=lambda row: f"{row[0]}-{row[3]}-{row[4]}-{row[5]}")
def test_nothing_that_was_compiled_spills_more(row: tuple[Any, ...]) -> None:
    """The upper bounds hold for small VTCM, long contexts, wide KV caches and many layers."""
    name, bits, kv, soc, ar, context, layers, spill, ddr = row
    vtcm = find_soc(soc).vtcm_bytes
    assert vtcm is not None
    part = LayerSpan(0, layers)
    graph = LlmGraph(known_models()[name], recipe(bits, kv), part, ar, context, vtcm.value)
    assert spill_range(graph, LayerRatios())[1] >= spill
    assert ddr_range(graph, LayerRatios())[1] >= ddr


def test_compiled_layers_are_exact_only_for_their_own_graph() -> None:
    """Measured layers are exact for their own graph; other contexts use the bound by rule."""
    seen = LayerRatios(compiled={(128, 2, 2048): MeasuredParts(1, 2, 3)})
    graph = LlmGraph(known_models()["qwen3-0.6b"], recipe(4), LayerSpan(0, 2), 128, 2048)
    assert spill_range(graph, seen) == (3, 3)
    assert ddr_range(graph, seen) == (2, 2)
    for other, how in (
        (graph._replace(context=4096), seen),
        (graph, replace(seen, shares=True)),
    ):
        assert spill_range(other, how) == spill_range(other, LayerRatios())


HOSTILE = {
    "no size": {"hidden_size": None},
    "huge": {"hidden_size": 1 << 60},
    "negative": {"num_hidden_layers": -1},
    "zero": {"num_attention_heads": 0},
    "a word": {"vocab_size": "many"},
    "true": {"intermediate_size": True},
    "a fraction": {"num_hidden_layers": 1.5},
    "a list": {"num_attention_heads": [32]},
    "contradiction": {"num_key_value_heads": 7},
    "which is not a multiple": {"num_attention_heads": 33, "num_key_value_heads": 33},
    "state space": {"mamba_d_state": 16},
    "linear attention": {"layer_types": ["linear_attention", "full_attention"]},
    "latent attention": {"kv_lora_rank": 512},
    "many experts": {"num_experts": 1 << 40},
    "no gate": {"model_type": "phi"},
    "layers of two kinds": {"num_experts": 8, "first_k_dense_replace": 1},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_config_is_one_sentence(tmp_path: Path, changes: dict[str, object]) -> None:
    """Huge, negative, missing or contradictory numbers give one sentence and exit code 2."""
    with pytest.raises(QnnMemError) as caught:
        qnnmem.llm(config(tmp_path, **changes), soc="SM8650")
    assert caught.value.exit_code == 2
    assert str(caught.value).count("\n") == 0
    assert len(str(caught.value)) < 500


def test_the_largest_config_is_answered_at_once(tmp_path: Path) -> None:
    """A config with every number at its bound does not fit, and the answer comes at once."""
    sizes = {name[0]: _BOUNDS[key] for key, name in _NAMES.items()}
    sizes["num_key_value_heads"] = 1 << 10
    found = qnnmem.llm(config(tmp_path, **sizes), soc="SM8650")
    assert found.fits is False


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"\xff" * 99, b'{"a":' * 100_000, b"0" * (10 << 20), b"GGUF", b"GGUF\3\0"],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """A truncated, deeply nested, large or non-JSON config is refused with one sentence."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(QnnMemError) as caught:
        read_model(str(path))
    assert "\n" not in str(caught.value)


def text(value: str) -> bytes:
    """Return a GGUF string."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(tensors: list[str]) -> bytes:
    """Return the header of a small decoder with a vocabulary of five tokens."""
    numbers = {
        **{"embedding_length": 2048, "block_count": 16, "feed_forward_length": 8192},
        **{"attention.head_count": 32, "attention.head_count_kv": 8, "context_length": 4096},
    }
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text(f"llama.{k}") + struct.pack("<II", 4, v) for k, v in numbers.items()]
    tokens = b"".join(text(word) for word in "abcde")
    entries.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 5) + tokens)
    entries.append(text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 5) + bytes(20))
    infos = [text(name) + struct.pack("<IQIQ", 1, 64, 0, 0) for name in tensors]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries))
    return head + b"".join(entries) + b"".join(infos)


def test_the_header_of_a_gguf_file_is_enough(tmp_path: Path) -> None:
    """A GGUF header gives the sizes; without an output tensor the embedding is tied."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(["token_embd.weight"]))
    model = read_model(str(path))
    assert (model.hidden, model.layers, model.vocab, model.head_dim) == (2048, 16, 5, 64)
    assert model.tied
    path.write_bytes(gguf(["token_embd.weight", "output.weight"]))
    assert not read_model(str(path)).tied


def test_heads_of_each_layer_are_not_taken_for_their_number(tmp_path: Path) -> None:
    """An array of head counts in a GGUF header is refused, because only one number is supported."""
    path = tmp_path / "model.gguf"
    heads = text("llama.attention.head_count")
    one, many = struct.pack("<II", 4, 32), struct.pack("<IIQII", 9, 4, 2, 32, 32)
    path.write_bytes(gguf([]).replace(heads + one, heads + many))
    with pytest.raises(QnnMemError, match="num_attention_heads is"):
        read_model(str(path))


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_gguf_header_never_escapes(at: int, value: int) -> None:
    """A GGUF header with one changed byte gives a model or a QnnMemError."""
    import tempfile

    data = bytearray(gguf(["token_embd.weight"]))
    data[at % len(data)] = value
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        with suppress(QnnMemError):
            read_model(file.name)


def test_a_result_survives_json() -> None:
    """A result written as JSON reads back equal."""
    from qnnmem.results.read import read_result
    from qnnmem.results.schema import encode

    result = qnnmem.llm("qwen3-0.6b", soc="SM8650")
    again = read_result(json.loads(encode(result)), "here")
    assert isinstance(again, LlmResult)
    assert again == result


@pytest.mark.parametrize("wanted", ["w4a16", "executorch-16a4w", "w8a16"])
def test_written_layers_have_the_inputs_that_are_counted(tmp_path: Path, wanted: str) -> None:
    """The written layers are a valid model whose IO adds up to the computed IO."""
    import onnx

    model = read_model(config(tmp_path, **SMALL))
    chosen, path = find_recipe(wanted, model), tmp_path / "layers.onnx"
    write_layers(path, model, chosen, layers=2, ar=8, context=64)
    found = onnx.load(path)
    onnx.checker.check_model(found, full_check=True)
    sizes = {onnx.TensorProto.UINT8: 1, onnx.TensorProto.UINT16: 2}
    total = 0
    for item in (*found.graph.input, *found.graph.output):
        shape = [one.dim_value for one in item.type.tensor_type.shape.dim]
        total += round_up(prod(shape) * sizes[item.type.tensor_type.elem_type], 8192)
    assert total == io_bytes(LlmGraph(model, chosen, LayerSpan(0, 2), 8, 64))


@pytest.mark.htp
@pytest.mark.skipif(not has_library(), reason="the QNN library is not installed")
def test_compiled_layers_agree_with_more_of_them(tmp_path: Path) -> None:
    """Four compiled layers match the prediction from one and two layers."""
    options = LlmOptions(
        soc="SM8650",
        context=256,
        ar=(8, 1),
        recipe="w4a16",
        check=True,
        cache=str(tmp_path / "cache"),
    )
    found = plan_model(config(tmp_path, **SMALL), options, VerbCall(Mock()))
    assert found.origin == "computed from 2 compiled layers"
    assert {(one.ar, one.layers) for one in found.checks} == {(8, 4), (1, 4)}
    for one in found.checks:
        limit = {"IO": 0, "op data": 0.5}.get(one.what, 0.1)
        assert one.expected == pytest.approx(one.measured, rel=limit)


def test_layers_of_floats_are_not_compiled(tmp_path: Path) -> None:
    """Compiling layers of a float recipe is refused before any compile."""
    options = LlmOptions(soc="SM8650", recipe="fp16", compile=True)
    with pytest.raises(UsageError, match="cannot be checked by compiling"):
        plan_model(config(tmp_path), options, VerbCall(Mock()))


def test_a_page_shows_lanes_domains_and_contexts() -> None:
    """The page shows the verdict, a bar for each shard and domain, and a curve of contexts."""
    options = LlmOptions(soc="SM8650", shards=(9, 9, 9, 5), vary=("context=1024..8192",))
    found = plan_model("llama-3.1-8b", options, VerbCall(Mock()))
    body = str(llm_section(found).body)
    assert body.index("fits") < body.index("layers 27-31 + head needs at most")
    for words in ("layers 9-17", "domain 1", "Load in this order", "budget of a domain"):
        assert words in body
    assert body.count('class="step"') == len(found.rows)
    assert 'max="3" step="1" value="2"' in body
    assert body.count('<path d="M') > 4  # points of the curve


def exported(
    layers: int, *, shared: int, heads: int = 2, head_dim: int = 64, vocab: int = 0
) -> bytes:
    """Return a context binary of two graphs of a small model, with a KV cache for each layer."""
    caches = [
        example_tensor(f"l{n}.past_{what}", 2 * n + at, dimensions=(1, heads, head_dim, 56))
        for n in range(layers)
        for at, what in enumerate(("key", "value"))
    ]
    hidden = example_tensor("hidden", 99, dimensions=(1, 8, 256))
    ends = {"outputs": (example_tensor("logits", 98, dimensions=(1, 8, vocab)),)} if vocab else {}
    graphs = [
        example_graph(
            name, inputs=(hidden, *caches), shared_weights=shared, const=1_000_000, **ends
        )
        for name in ("ar8", "ar1")
    ]
    return pack_context(example_context(*graphs))


def test_exported_files_are_compared(tmp_path: Path) -> None:
    """An exported file is matched by its KV caches; unshared weights and caches are findings."""
    model = config(tmp_path, **SMALL)
    (tmp_path / "part.bin").write_bytes(exported(3, shared=0))
    options = LlmOptions(
        soc="SM8650", context=64, ar=(8, 1), recipe="w4a16", beside=str(tmp_path / "part.bin")
    )
    (found,) = plan_model(model, options, VerbCall(Mock())).actual
    assert found.shard == "layers 0-2"
    assert found.findings[0].startswith("its 2 graphs share no weights")
    assert any(f"{6 * 2 * 64 * 56:,} bytes of KV cache" in one for one in found.findings)
    (tmp_path / "part.bin").write_bytes(exported(3, shared=2_000_000))
    (found,) = plan_model(model, options, VerbCall(Mock())).actual
    assert not any("share no weights" in one for one in found.findings)


def test_a_bundle_with_a_config_is_the_model_itself(tmp_path: Path) -> None:
    """The binaries of a bundle take consecutive layers; a surplus binary matches no layer."""
    config(tmp_path, **SMALL)
    names = ["part_1.bin", "part_2.bin", "part_3.bin"]
    for name, layers in zip(names, (1, 3, 2), strict=True):
        (tmp_path / name).write_bytes(exported(layers, shared=2_000_000))
    binary = {"model": {"type": "binary", "binary": {"ctx-bins": names}}}
    text = json.dumps({"dialog": {"context": {"size": 64}, "engine": binary}})
    (tmp_path / "genie_config.json").write_text(text, "utf-8")
    options = LlmOptions(soc="SM8650", context=64, ar=(8, 1), recipe="w4a16")
    found = plan_model(str(tmp_path), options, VerbCall(Mock())).actual
    assert [one.shard for one in found] == ["layer 0", "layers 1-3", ""]
    assert found[2].findings[-1] == "the file could not be matched with layers of the model"


def bundle(folder: Path, **contents: bytes) -> Path:
    """Write a Genie bundle of binaries without the model's config."""
    for name, content in contents.items():
        (folder / f"{name}.bin").write_bytes(content)
    binary = {"model": {"type": "binary", "binary": {"ctx-bins": [f"{n}.bin" for n in contents]}}}
    text = json.dumps({"dialog": {"context": {"size": 64}, "engine": binary}})
    (folder / "genie_config.json").write_text(text, "utf-8")
    return folder


def test_exported_files_alone_are_recognized(tmp_path: Path) -> None:
    """A bundle without a config is recognised by layers, KV caches and vocabulary, or refused."""
    qwen = {"shared": 2_000_000, "heads": 8, "head_dim": 128}
    whole = bundle(tmp_path, a=exported(14, **qwen), b=exported(14, **qwen, vocab=151936))
    found = plan_model(
        str(whole), LlmOptions(soc="SM8650", context=64, ar=(8, 1)), VerbCall(Mock())
    )
    assert found.model.preset == "qwen3-0.6b"
    assert "identified as qwen3-0.6b" in found.notes[0]
    assert [one.shard for one in found.actual] == ["embedding + layers 0-13", "layers 14-27 + head"]
    half = bundle(tmp_path, a=exported(14, **qwen, vocab=151936))
    with pytest.raises(QnnMemError, match="no known language model"):
        plan_model(str(half), LlmOptions(soc="SM8650"), VerbCall(Mock()))


@pytest.mark.parametrize("content", [b"", b"\0\0\0\2\0\0\0\3", b"nothing"])
def test_a_damaged_file_beside_the_model_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """A damaged file given with --beside is refused before any output."""
    path = tmp_path / "part.bin"
    path.write_bytes(content)
    options = LlmOptions(soc="SM8650", beside=str(path))
    with pytest.raises(QnnMemError):
        plan_model("qwen3-0.6b", options, VerbCall(Mock()))
