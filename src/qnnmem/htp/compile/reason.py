"""What a line means in which the library, or ONNX Runtime around it, refuses a node or a tensor."""

from __future__ import annotations

import re

from qnnmem.qnn.enums import DataType
from qnnmem.text import printable

# Lines of the validator that follow from an earlier one, or belong to it.
_GENERIC = re.compile(
    r"^(?:REASON : )?(?:validateNativeOps|QnnBackend_validateOpConfig failed|Failed to validate op"
    r"|Requested I/O|Supported I/O|Please refer|unexpected GraphHtpSettings"
    r"|Failed to add\b.{0,80}\bnode\b)"
)
_NO_TYPE = re.compile(r"Operators of type `(\S{1,100})` are not supported by QNN EP")
_UNKNOWN = (
    re.compile(r"Fatal error: ([\w.-]{1,200}):(\w{1,100})\(-?\d{1,9}\) is not a registered"),
    re.compile(r"No Op registered for ()(\w{1,100}) with domain_version of"),
)
_RANK = re.compile(r"has incorrect Rank (\d{1,3})")
_VALUE = re.compile(r"has incorrect Value (\S{1,40}), expected equal to (\S{1,40}?)\.?$")
_MISMATCH = re.compile(r"mismatching datatypes\. (0x[0-9a-fA-F]{1,8}) != (0x[0-9a-fA-F]{1,8})")
_TENSOR = re.compile(r"tensor datatype (\d{1,9}) not supported")
_MEANINGS = (
    (re.compile(r"SocModel doesn't support FP16"), "{soc} does not compute in FP16"),
    (
        re.compile(r"Unsupported FP64 data type in graph IO"),
        "64-bit floats cannot be inputs or outputs of a graph for QNN",
    ),
    (
        re.compile(r"Failed to map Onnx data type to Qnn data type"),
        "QNN has no such data type",
    ),
    (
        re.compile(r"Unsupported input/output datatypes requested"),
        "HTP does not have it for these data types",
    ),
    (re.compile(r"^(?:REASON : )?Cannot get shape"), "its shape is not fixed"),
)
VALIDATOR = "the library's validator refuses it and does not say why (code 3110)"


def is_generic(line: str) -> bool:
    """Whether a line says that something was refused, and nothing about why."""
    return _GENERIC.search(line) is not None


def has_no_builder(line: str) -> bool:
    """Whether a line says that no node of this type can be taken, whatever its shape."""
    return _NO_TYPE.search(line) is not None or unknown_operator(line) is not None


def unknown_operator(line: str) -> tuple[str, str] | None:
    """Domain and type of an operator that ONNX Runtime itself does not know."""
    found = next(filter(None, (pattern.search(line) for pattern in _UNKNOWN)), None)
    return None if found is None else (found[1].removeprefix("ai.onnx"), found[2])


def meaning(line: str, soc: str) -> str:
    """A clause that says why, in words; ONNX Runtime's own where that is a sentence already."""
    if not line:
        return VALIDATOR
    if unknown := unknown_operator(line):
        return f"ONNX Runtime knows no operator {':'.join(filter(None, unknown))}"
    if has_no_builder(line):
        return "QNN has no operator of this type"
    if found := _RANK.search(line):
        return f"a tensor of it has {found[1]} dimensions, which HTP does not take there"
    if found := _VALUE.search(line):
        return f"a parameter of it is {found[1]}, HTP takes {found[2]} only"
    if found := _MISMATCH.search(line):
        one, other = (type_name(int(number, 16)) for number in found.groups())
        return f"QNN sees its tensors as {one} and {other}, which have to be of one type"
    if found := _TENSOR.search(line):
        return f"QNN has no tensors of {type_name(int(found[1]))}"
    for pattern, words in _MEANINGS:
        if pattern.search(line):
            return words.format(soc=soc)
    return printable(line).removeprefix("REASON : ").rstrip(" .!")


def type_name(number: int) -> str:
    """A `Qnn_DataType_t` in short, `float64` for example, or its number where it is not known."""
    if number not in set(DataType):
        return f"type 0x{number:x}"
    name = DataType(number).name.lower()
    return name if "fixed" in name else name.replace("_", "")
