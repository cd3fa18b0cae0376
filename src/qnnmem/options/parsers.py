"""Parsers for option values: text on the command line, values in TOML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnmem.arguments import expect
from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import MAX_BYTES, Bytes, as_bytes, parse_size

# A constant input: a number, a boolean, several of them, or a file.
Constant = bool | int | float | tuple[bool | int | float, ...] | Path

_MAX_DIM = 1 << 40
_MAX_RANK = 64
_MAX_ITEMS = 1000  # items of a TOML table
_FILES = (".npy", ".raw")  # suffixes of values that are files even without @
_INTEGER = r"[+-]?[0-9]{1,20}"
_FLOAT = r"(?i)[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(e[+-]?[0-9]{1,4})?"
_INSPECTED = 200  # characters searched for a hint; nobody types more
# Other tools write shapes as 1x3, 1,3, 1*3 or [1, 3].
_SEPARATOR = r"[xX\u00d7*,]"
_BRACKETS = r"[\[(](.*?),?[\])]"
# `name:value` and `name value`, typed in place of `name=value`.
_COLON = r"(?P<name>[^\s=]+?)\s*[:\s]\s*(?P<value>[\w.,@\u00d7*\[\]()-]+)"
_SEVERAL = r"[\w.:/-]+=[\dxX]+(?:[,;\s]+[\w.:/-]*[A-Za-z_][\w.:/-]*=[\dxX]+)+"
_NEXT = r"[,;\s]+(?=[\w.:/-]*=)"


def pair(text: str, form: str = "name=value", example: str = "") -> tuple[str, str]:
    """Return both sides of `name=value`; the last `=` splits, so names may contain `=`."""
    left, _, right = text.rpartition("=")
    if not (left and right):
        raise UsageError(f"'{text}' is not of the form {form}{_meant(text, example)}")
    return left, right


def _meant(text: str, example: str) -> str:
    """Return a hint for a malformed option: the option corrected, else `example`.

    The hint is empty if there is no example.
    """
    if not example:
        return ""
    option, _, _rest = example.partition(" ")
    match = re.fullmatch(_COLON, text.strip()[:_INSPECTED])
    if match is not None and ("shape" not in option or re.search(_SEPARATOR, match["value"])):
        return f"; did you mean {option} {match['name']}={match['value']}?"
    return f"; write it without spaces and with =, e.g. {example}"


def _one_at_a_time(text: str, option: str) -> None:
    """Raise UsageError for several pairs in one option, such as `a=1,b=2`."""
    if len(text) <= _INSPECTED and re.fullmatch(_SEVERAL, text):
        words = " ".join(f"{option} {word.strip()}" for word in re.split(_NEXT, text))
        raise UsageError(f"write a separate option for each: {words}")


def dimension(text: str) -> tuple[str, int]:
    """Parse a dimension such as `batch=1`."""
    _one_at_a_time(text, "--dim")
    name, value = pair(text, "dimension=number", "--dim batch=1")
    return name, whole_number(value)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse a shape: `input=1x3x224x224`, `input=1,3,224,224` or `t=scalar`."""
    _one_at_a_time(text, "--shape")
    name, value = pair(text, "tensor=1x3x224x224", "--shape x=1x3x224x224")
    if value.strip() in ("scalar", "[]", "()"):
        return name, ()
    bare = re.sub(_BRACKETS, r"\1", value.strip())
    try:
        return name, tuple(whole_number(part.strip()) for part in re.split(_SEPARATOR, bare))
    except UsageError as exc:
        raise UsageError(f"'{text}' is not of the form tensor=1x3x224x224: {exc}") from None


def state(text: str) -> tuple[str, str]:
    """Parse a state pair such as `h_in=h_out`."""
    return pair(text, "input=output", "--state h_in=h_out")


def budgets(text: str) -> tuple[tuple[str, Bytes], ...]:
    """Parse budgets such as `scratch=256K` or `scratch=256K,tcm=1M`."""
    return tuple(_budget(part) for part in text.split(","))


def _budget(text: str) -> tuple[str, Bytes]:
    name, size = pair(text, "pool=size", "--budget scratch=256K")
    return name, parse_size(size)


def word_list(text: str) -> tuple[str, ...]:
    """Parse words such as `int8` or `int16,batch`."""
    return tuple(word.strip().lower() for word in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parse at least two names such as `wake,vad`."""
    words = tuple(word.strip() for word in text.split(","))
    if len(words) < 2 or not all(words):
        raise UsageError(
            f"'{text}' names fewer than two models; write at least two, as in wake,vad"
        )
    return words


def counts(text: str) -> tuple[int, ...]:
    """Parse counts such as `3` or `9,9,9,5`."""
    return tuple(whole_number(word.strip()) for word in text.split(","))


def part_bits(text: str) -> tuple[tuple[str, int], ...]:
    """Parse bit widths for parts of a language model, such as `head=4` or `head=4,kv=16`."""
    return tuple(_part(word) for word in text.split(","))


def _part(text: str) -> tuple[str, int]:
    name, bits = pair(text.strip(), "part=bits", "--bits head=4")
    return name, whole_number(bits)


def seconds(text: str) -> float:
    """Parse a number of seconds such as `10` or `0.5`, at most one day."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:  # nan fails every comparison
        raise UsageError(f"'{text}' is not a number of seconds from 0 to 86400")
    return value


def whole_number(text: str) -> int:
    """Parse a whole number from 0 to 2^40."""
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= _MAX_DIM):
        raise UsageError(f"'{text}' is not a whole number from 0 to {_MAX_DIM}")
    return int(text)


def value(text: str) -> tuple[str, Constant]:
    """Parse an input value: `sr=16000`, `ids=1,2,3`, `flag=true` or `mask=@mask.npy`."""
    name, content = pair(text, "input=value", "--value sr=16000")
    if content.startswith("@") or content.lower().endswith(_FILES):
        return name, Path(content.removeprefix("@"))
    bare = re.sub(_BRACKETS, r"\1", content.strip())
    numbers = tuple(_number(part.strip(), text) for part in bare.split(","))
    return name, numbers if "," in bare or bare != content.strip() else numbers[0]


def _number(word: str, text: str) -> bool | int | float:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if re.fullmatch(_INTEGER, word):
        return int(word)
    if re.fullmatch(_FLOAT, word):
        return float(word)
    raise UsageError(
        f"'{text}' has no value; write a number, numbers such as 1,2,3, true, false, or "
        "a file such as @mask.npy"
    )


# The reverse of the parsers above: values in the form that a user types.


def show_pair(named: tuple[str, object]) -> str:
    """Return a pair in the form `name=value`."""
    return f"{named[0]}={named[1]}"


def show_shape(named: tuple[str, tuple[int, ...]]) -> str:
    """Return a shape in the form `tensor=1x3x224x224`."""
    name, sizes = named
    return f"{name}={'x'.join(map(str, sizes)) or 'scalar'}"


def show_value(named: tuple[str, Any]) -> str:
    """Return an input value in the form `input=value`."""
    name, content = named
    if isinstance(content, Path):
        return f"{name}=@{content}"
    several = content if isinstance(content, tuple | list) else (content,)
    words = (str(item).lower() if isinstance(item, bool) else str(item) for item in several)
    return f"{name}={','.join(words)}"


# For TOML: readers of table values; `label` names the value in an error.


def table(value: object, label: str) -> Mapping[str, Any]:
    """Return a TOML table; raise UsageError for other values and for too many keys."""
    if not isinstance(value, Mapping) or len(value) > _MAX_ITEMS:
        raise UsageError(f"{label} must be a table of at most 1000 keys, such as {{ name = 1 }}")
    return value


def number(value: object, label: str, low: float, high: float) -> Any:
    """Return a number from `low` to `high`; it must be whole if `low` is an int."""
    kinds = int if isinstance(low, int) else (int, float)
    expect(value, kinds, f"{label} must be a number from {low} to {high}")
    if not low <= value <= high:  # type: ignore[operator]
        raise UsageError(f"{label} must be a number from {low} to {high}, not {quote(value)}")
    return value


def dimension_item(value: object, label: str) -> int:
    """Return the size of a free dimension."""
    return int(number(value, label, 0, _MAX_DIM))


def shape_item(value: object, label: str) -> tuple[int, ...]:
    """Return a shape from `"1x3x224x224"` or `[1, 3, 224, 224]`."""
    example = f'{label} must be a shape, such as "1x3x224x224" or [1, 3, 224, 224]'
    if isinstance(value, str):
        try:
            return shape(f"x={value}")[1]
        except UsageError:
            raise UsageError(example) from None
    if not isinstance(value, list | tuple) or len(value) > _MAX_RANK:
        raise UsageError(example)
    return tuple(dimension_item(size, label) for size in value)


def value_item(value: object, label: str) -> Constant:
    """Return a constant input from a number, a list of numbers, or a file such as "@mask.npy"."""
    if isinstance(value, str) and value.removeprefix("@"):
        return Path(value.removeprefix("@"))
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    for item in numbers:
        expect(
            item,
            (bool, int, float),
            f'{label} must be a number, a list of numbers, or a file such as "@mask.npy"',
        )
    return numbers if isinstance(value, list | tuple) else numbers[0]


def text_item(value: object, label: str) -> str:
    """Return a string; raise UsageError if it is empty or contains NUL."""
    expect(value, str, f"{label} must be a string")
    if not str(value).strip() or "\0" in str(value):
        raise UsageError(f"{label}: a string must not be empty or contain NUL")
    return str(value)


def size_item(value: object, label: str) -> Bytes:
    """Return a size in bytes from 262144 or "256K"."""
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        raise UsageError(f'{label} must be a size, such as 262144 or "256K"')
    size = as_bytes(value)
    if not 0 <= size <= MAX_BYTES:
        raise UsageError(f"{label} must be between 0 and {MAX_BYTES:,} bytes")
    return size
