"""The sizes of a decoder, from config.json, the header of a GGUF file or the table of models."""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from qnnmem.bounded_file import is_there, read_bytes, read_head
from qnnmem.errors import LoadError, Setting, UsageError
from qnnmem.loader.file_kind import kind_of_bytes
from qnnmem.results.llm import LlmModel, LlmRecipe
from qnnmem.text import nearest, printable, quote, suggestion

_MAX_CONFIG = 1 << 20  # bytes; a config.json has a few KiB
_MAX_HEADER = 1 << 26  # of a GGUF file: vocabularies of 262,144 tokens take 16 MiB
_MAX_NAME = 80

# Upper limits for a decoder, far beyond any real model, so that sums of sizes do not overflow.
_BOUNDS = {
    "hidden": 1 << 17,
    "layers": 1 << 10,
    "heads": 1 << 10,
    "kv_heads": 1 << 10,
    "head_dim": 1 << 12,
    "inter": 1 << 20,
    "vocab": 1 << 22,
}
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "inter": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
}
FAMILIES = (  # families whose layers were compiled for the rule
    *("baichuan", "cohere", "hunyuan_v1_dense", "minicpm", "olmo", "stablelm"),
    *("llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3", "gemma3_text", "mistral"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "granite", "smollm3", "olmo2", "internlm2", "exaone"),
)
# Keys in config.json of decoder parts that the size rule does not cover.
_REFUSED = {
    "kv_lora_rank": "compressed KV caches (multi-head latent attention)",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "linear_num_value_heads": "layers of linear attention",
    "hidden_size_per_layer_input": "separate embeddings in each layer",
    "is_encoder_decoder": "an encoder in addition to the decoder",
    "interleave_moe_layer_step": "layers of different types",
    "first_k_dense_replace": "layers of different types",
}
# Families whose MLP has no gate.
_UNGATED = (
    *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt"),
    *("nemotron", "opt", "phi", "phi2", "starcoder2"),
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_PARTS = {  # parts that a caller may set, with their allowed values
    "layers": ("bits", (4, 8, 16)),
    "embedding": ("embedding", (4, 8, 16)),
    "head": ("head", (4, 8, 16)),
    "kv": ("kv", (8, 16)),
    "block": ("block", (0, 16, 32, 64, 128)),
}
_CHANGED = ", changed"
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def read_model(text: str) -> LlmModel:
    """Return the decoder described by a file, a folder with config.json, or a known name."""
    path = Path(text)
    known = known_models()
    if not is_there(path):
        if text.lower() in known:
            return known[text.lower()]
        if "/" in text or path.suffix in (".json", ".gguf"):
            raise LoadError(path, "no such file")
        meant = nearest(text, known)
        families = dict.fromkeys(name.partition("-")[0] for name in known)
        hint = f"did you mean {meant}?" if meant else (f"Known families: {', '.join(families)}.")
        problem = f"{quote(text)} is neither a file nor a known model"
        raise UsageError(
            problem, cure=f"{hint} A config.json or a GGUF file works for any other model"
        )
    if path.is_dir():
        path = path / "config.json"
    head = read_head(path, 4) if path.is_file() else b""
    model = _read_gguf(path) if head == b"GGUF" else _read_config(path)
    preset = next((other for other in known.values() if _sizes(other) == _sizes(model)), None)
    return model if preset is None else replace(model, preset=preset.name)


@cache
def known_models() -> Mapping[str, LlmModel]:
    """Return the table of known models by name."""
    table = tomllib.loads(files(__package__).joinpath("models.toml").read_text("utf-8"))
    return {
        name: _known(name, dict(zip(table["columns"], row, strict=True)))
        for name, row in table["models"].items()
    }


def _known(name: str, row: dict[str, Any]) -> LlmModel:
    row["source"] = f"sizes as published for {row['source']}"
    return LlmModel(name=name, preset=name, **row)


def _sizes(model: LlmModel) -> tuple[int, ...]:
    return tuple(getattr(model, name) for name in _BOUNDS)


def _read_config(path: Path) -> LlmModel:
    data = read_bytes(path, _MAX_CONFIG)
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        kind = kind_of_bytes(data)
        problem = "is truncated or damaged JSON" if data[:1] == b"{" else f"is {kind.words}"
        cure = "pass config.json of the model, a GGUF file, or a known model"
        raise LoadError(path, problem, cure=cure) from exc
    if not isinstance(values, dict):
        raise LoadError(path, "is not the config.json of a model")
    notes = []
    inner = values.get("text_config")
    if isinstance(inner, dict):
        notes.append("only the text decoder is planned, not image or audio encoders")
        values = {**values, **inner}
    _refuse(path, values)
    name = values.get("_name_or_path") or path.absolute().parent.name or path.name
    return _model(path, values, notes, str(name))


def _refuse(path: Path, values: Mapping[str, Any]) -> None:
    for key, what in _REFUSED.items():
        if values.get(key):
            raise LoadError(path, f"has {what}; this is not supported ({key})")
    layers = values.get("layer_types")
    if isinstance(layers, list):
        others = {str(layer) for layer in layers} - {"full_attention", "sliding_attention"}
        if others:
            odd = quote(min(others))
            raise LoadError(path, f"has layers of the type {odd}, which are not supported")


def _model(path: Path, values: Mapping[str, Any], notes: list[str], name: str) -> LlmModel:
    family = values.get("model_type")
    family = printable(family[:40]) if isinstance(family, str) else "not stated"
    if family in _UNGATED:
        raise LoadError(path, f"is a {family} model; an MLP without a gate is not supported")
    sizes = {key: _first(path, values, names) for key, names in _NAMES.items()}
    experts = next((key for key in _EXPERTS if values.get(key)), "")
    more = 0
    if experts:
        sizes["inter"] = _first(path, values, ("moe_intermediate_size", *_NAMES["inter"]))
        notes.append(
            "all experts are counted as resident; this was never checked with a compiled model"
        )
        shared = _first(path, values, ("shared_expert_intermediate_size",))
        count = _first(path, values, ("n_shared_experts",)) or 0
        more = count + -(-(shared or 0) // max(1, sizes["inter"] or 1))
    if sizes["kv_heads"] is None:
        sizes["kv_heads"] = sizes["heads"]
    if sizes["head_dim"] is None and sizes["hidden"] and sizes["heads"]:
        if sizes["hidden"] % sizes["heads"]:
            raise LoadError(
                path,
                f"hidden_size {sizes['hidden']:,} is not a multiple of {sizes['heads']:,} "
                "heads, and head_dim is missing",
            )
        sizes["head_dim"] = sizes["hidden"] // sizes["heads"]
    longest = _number(path, "max_position_embeddings", values.get("max_position_embeddings"))
    if values.get("sliding_window") and values.get("use_sliding_window", True):
        notes.append("sliding windows are counted as full KV caches, their upper bound")
    if family not in FAMILIES:
        notes.append(f"the family {family} is unknown and is planned like Llama")
    # Transformers ties head and embedding if the field is missing.
    tied = values.get("tie_word_embeddings", True) is not False
    return checked(
        path,
        sizes,
        name=printable(name[-_MAX_NAME:]),
        family=family,
        tied=tied,
        experts=more + (_number(path, experts, values[experts]) or 0) if experts else 0,
        max_context=longest or 0,
        source="config.json",
        notes=tuple(notes),
    )


def checked(path: Path, sizes: Mapping[str, int | None], **rest: Any) -> LlmModel:
    """Return the decoder; raise LoadError for missing, absurd or contradictory sizes."""
    for key, largest in _BOUNDS.items():
        value = sizes[key]
        if value is None:
            raise LoadError(
                path, f"does not state {_NAMES[key][0]}, so it is not the config of a decoder"
            )
        if not 1 <= value <= largest:
            raise LoadError(path, f"{_NAMES[key][0]} is {quote(value)}, not from 1 to {largest:,}")
    heads, groups = sizes["heads"], sizes["kv_heads"]
    if heads and groups and heads % groups:
        problem = (
            f"{heads:,} heads cannot share {groups:,} KV heads: {heads:,} is not a multiple of "
            f"{groups:,}"
        )
        raise LoadError(path, problem)
    if rest.get("experts", 0) > 1 << 12:
        raise LoadError(path, f"{quote(rest['experts'])} experts are over the limit of 4,096")
    return LlmModel(**{**sizes, **rest})


def _first(path: Path, values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    name = next((name for name in names if values.get(name) is not None), None)
    return None if name is None else _number(path, name, values[name])


def _number(path: Path, name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise LoadError(path, f"{name} is {quote(value)}, not a whole number")
    if not 0 <= value < 1 << 53:
        raise LoadError(path, f"{name} is {quote(value)}, which is not a valid size")
    return value


# --- GGUF: only the header ------------------------------------------------------------------------


_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 16
_GGUF = {
    "hidden": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "inter": "feed_forward_length",
    "vocab": "vocab_size",
}


class _Header:
    """Reader of a GGUF header; raises struct.error or IndexError if the header is truncated."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4

    def number(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += size
        return value

    def text(self) -> str:
        length = self.number("Q")
        self._skip(length)
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return the next number or string; for an array, skip it and return `range(length)`."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_FIXED[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind != _STRING:
            self._skip(count * struct.calcsize(f"<{_FIXED[kind]}"))
            return range(count)
        for _ in range(count):
            self._skip(self.number("Q"))
        return range(count)

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise IndexError


def _read_gguf(path: Path) -> LlmModel:
    header = _Header(read_head(path, _MAX_HEADER))
    try:
        header.number("I")
        tensors, entries = header.number("Q"), header.number("Q")
        if max(tensors, entries) > _MAX_ENTRIES:
            raise IndexError
        fields = {}
        for _ in range(entries):
            key = header.text()
            fields[key] = header.value(header.number("I"))
        names = set()
        for _ in range(tensors):
            names.add(header.text())
            for _ in range(min(header.number("I"), 8)):
                header.number("Q")
            header.number("I"), header.number("Q")
    except (struct.error, IndexError, KeyError) as exc:
        raise LoadError(path, "is a GGUF file with a damaged or truncated header") from exc
    return _gguf_model(path, fields, names)


def _gguf_model(path: Path, fields: Mapping[str, Any], names: set[str]) -> LlmModel:
    family = str(fields.get("general.architecture", "not stated"))[:40]
    for word in (".ssm.", "kv_lora_rank"):
        if any(word in key for key in fields):
            raise LoadError(path, f"is a {quote(family)} model, whose layers are not supported")
    values = {_NAMES[key][0]: fields.get(f"{family}.{name}") for key, name in _GGUF.items()}
    tokens = fields.get("tokenizer.ggml.tokens")
    if values["vocab_size"] is None and isinstance(tokens, range):
        values["vocab_size"] = len(tokens)
    experts = fields.get(f"{family}.expert_count")
    inter = fields.get(f"{family}.expert_feed_forward_length")
    values |= {
        "model_type": family,
        "num_experts": experts,
        "moe_intermediate_size": inter,
        "max_position_embeddings": fields.get(f"{family}.context_length"),
        "tie_word_embeddings": "output.weight" not in names,
    }
    name = str(fields.get("general.name") or path.stem)
    model = _model(path, values, [], name)
    return replace(model, source="GGUF header")


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("recipes.toml").read_text("utf-8"))


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes."""
    return tuple(_table())


def find_recipe(name: str, model: LlmModel, parts: Iterable[tuple[str, int]] = ()) -> LlmRecipe:
    """Return a recipe adapted to a model, with parts set by the caller."""
    if name not in _table():
        raise UsageError(f"{quote(name)} is not a known recipe", cure=suggestion(name, _table()))
    fields = {**_table()[name]}
    models, stated = fields.pop("models", {}), fields.pop("stated", ())
    own = models.get(model.preset, {})
    fields |= {
        key: tuple(value) if isinstance(value, list) else value for key, value in own.items()
    }
    recipe = LlmRecipe(name=name, is_stated=bool(own) or model.preset in stated, **fields)
    return with_parts(recipe, parts)


def with_parts(recipe: LlmRecipe, parts: Iterable[tuple[str, int]]) -> LlmRecipe:
    """Return the recipe with other bits for some parts."""
    for part, bits in parts:
        recipe = _with_part(recipe, part, bits)
    return recipe


def _with_part(recipe: LlmRecipe, part: str, bits: int) -> LlmRecipe:
    """Return the recipe with other bits for one part."""
    name = f"{recipe.name.removesuffix(_CHANGED)}{_CHANGED}"
    recipe = replace(recipe, name=name, is_stated=False)
    part = part.removesuffix("_proj")
    if part in _MATRICES:
        if bits not in (recipe.bits, 8):
            problem = f"{part} can have {recipe.bits} bits like its layer, or 8, but not {bits}"
            raise UsageError(
                problem, cure=("change all matrices with ", Setting("bits", "layers=8"))
            )
        others = tuple(matrix for matrix in recipe.wide if matrix != part)
        return replace(recipe, wide=(*others, part) if bits == 8 else others, wide_layers=None)
    if part not in _PARTS:
        known = ", ".join((*_PARTS, *_MATRICES))
        raise UsageError(f"{quote(part)} is not a part of a recipe; choose one of {known}")
    field, allowed = _PARTS[part]
    if bits not in allowed:
        listed = ", ".join(map(str, allowed))
        raise UsageError(f"{part} cannot have {quote(bits)} bits; choose one of {listed}")
    return replace(recipe, **{field: bits})


def usual_range(recipe: LlmRecipe) -> tuple[LlmRecipe, LlmRecipe] | None:
    """Return the smallest and largest usual recipe, if the recipe is a guess; else None."""
    if recipe.is_stated or recipe.bits != 4:
        return None
    small = replace(recipe, block=0, wide=(), head=min(recipe.head, 4))
    large = replace(recipe, block=16, wide=("down",), wide_layers=None, head=max(recipe.head, 8))
    return small, large
