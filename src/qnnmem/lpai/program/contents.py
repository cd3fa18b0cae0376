"""Allow-list for the program inside a binary.

A binary is a single file, and its program must not read other files. ONNX has many places that can
name a file (tensors anywhere, sparse tensors, functions, training, operators that load files), and
later versions will have more. So every message is checked, and unlisted fields are rejected.

  fields that a program needs           checked recursively
  notes by people and tools             removed before any other code sees them
  a single value equal to its default   treated as absent
  anything else                         rejected
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from qnnmem.deadline import ask_deadline
from qnnmem.errors import ProgramError
from qnnmem.loader.onnx.graph import ONNX_DOMAINS, QUANT_DOMAINS
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx


# Version history of the LPAI backend, Qualcomm document 80-63442-10.
_DOCUMENTED = """
    Add BatchNormalization Buffer Concat DepthToSpace DequantizeLinear GRU Gemm LSTM
    LayerNormalization Mul QuantizeLinear RMSNormalization ReduceMax ReduceMean ReduceMin ReduceSum
    Slice SpaceToDepth Sub Transpose
"""
# Operators accepted by ExecuTorch's quantizer for LPAI.
_SEEN = """
    ArgMax ArgMin AveragePool Cast Clip Constant Conv ConvTranspose Div Dropout Exp Expand Flatten
    Gather Gelu GlobalAveragePool GlobalMaxPool HardSwish Identity Log LogSoftmax MatMul Max MaxPool
    Min PRelu Pad Pow Relu Reshape Resize Sigmoid Softmax Split Sqrt Squeeze Tanh Tile TopK
    Unsqueeze
"""
KNOWN = frozenset((*_DOCUMENTED.split(), *_SEEN.split()))


def _words(table: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {f"onnx.{message}": frozenset(names.split()) for message, names in table.items()}


_NEEDED = _words(
    {
        "ModelProto": "ir_version opset_import graph",
        "OperatorSetIdProto": "domain version",
        "GraphProto": "name node initializer input output value_info",
        "NodeProto": "name op_type domain input output attribute",
        "AttributeProto": "name type f i s t g tp floats ints strings",
        "TensorProto": "name dims data_type raw_data float_data double_data int32_data int64_data "
        "uint64_data string_data",
        "ValueInfoProto": "name type",
        "TypeProto": "tensor_type sequence_type optional_type",
        "TypeProto.Tensor": "elem_type shape",
        "TypeProto.Sequence": "elem_type",
        "TypeProto.Optional": "elem_type",
        "TensorShapeProto": "dim",
        "TensorShapeProto.Dimension": "dim_value dim_param",
    }
)
_NOTES = _words(
    {
        "ModelProto": "producer_name producer_version domain model_version doc_string "
        "metadata_props",
        "GraphProto": "doc_string metadata_props quantization_annotation",
        "NodeProto": "doc_string metadata_props",
        "AttributeProto": "doc_string",
        "TensorProto": "doc_string metadata_props",
        "ValueInfoProto": "doc_string metadata_props",
        "TypeProto": "denotation",
        "TensorShapeProto.Dimension": "denotation",
    }
)
_NOTHING: frozenset[str] = frozenset()
_SINGLE = (int, float, str, bytes)
_NOT_TEXT = "the program contains names that are not valid text"
# Operators that onnxruntime adds to ONNX, as far as models that it optimised or quantized use them
# on a CPU. None of them reads a file or contains a graph; EPContext and Snpe read files.
_RUNTIME_DOMAIN = "com.microsoft"
_RUNTIME_OPERATORS = """
    Attention BiasGelu BifurcationDetector CDist CausalConvWithState ConvTransposeWithDynamicPads
    CropAndResize DecoderMaskedMultiHeadAttention DequantizeLinear DynamicQuantizeLSTM
    DynamicQuantizeMatMul DynamicTimeWarping EmbedLayerNormalization ExpandDims FastGelu FusedConv
    FusedGemm FusedMatMul GatherBlockQuantized GatherND Gelu GridSample GroupQueryAttention Inverse
    LinearAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits
    MaxpoolWithMask MoE MultiHeadAttention MurmurHash3 NGramRepeatBlock NhwcFusedConv NhwcMaxPool
    Pad QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat
    QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean
    QLinearSigmoid QLinearSoftmax QLinearWhere QMoE QuantizeLinear QuickGelu Range RotaryEmbedding
    SampleOp ScaledSiLU SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention
    Tokenizer TransposeMatMul Trilu UnfoldTensor Unique WordConvEmbedding
"""
_STANDARD_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml")
# Operator that onnxruntime itself adds to the standard domain.
_ALMOST_STANDARD = frozenset({"SimplifiedLayerNormalization"})


def check_contents(program: onnx.ModelProto) -> None:
    """Raise ProgramError if a program contains unlisted fields; remove notes from it."""
    size = program.ByteSize()
    program.DiscardUnknownFields()
    if program.ByteSize() != size:
        raise ProgramError("the program contains fields that ONNX does not define")
    try:
        _check(program)
    except UnicodeDecodeError as exc:
        raise ProgramError(_NOT_TEXT) from exc


def _check(message: Any) -> None:
    """Check a message and all nested messages; unpacking has already limited their depth."""
    ask_deadline()
    kind = message.DESCRIPTOR.full_name
    needed, notes = _NEEDED.get(kind, _NOTHING), _NOTES.get(kind, _NOTHING)
    for field, value in message.ListFields():
        if field.name in notes:
            message.ClearField(field.name)
        elif field.name in needed:
            for inner in _messages(field, value):
                _check(inner)
            if field.type == field.TYPE_STRING and not _is_text(value):
                raise ProgramError(_NOT_TEXT)
        elif not isinstance(value, _SINGLE) or value != field.default_value:
            raise _refusal(message, field.name)
    if kind == "onnx.NodeProto":
        _check_operator(message)


def _refusal(message: Any, field: str) -> ProgramError:
    if field in ("external_data", "data_location"):
        where = "in another file, which is not allowed in a binary"
        return ProgramError(f"constant {quote(message.name)} is stored {where}")
    return ProgramError(
        f"the program contains {field} of {message.DESCRIPTOR.name}, which might refer to "
        "another file or change what runs; this is not allowed in a binary"
    )


def _messages(field: Any, value: Any) -> Iterable[Any]:
    if field.message_type is None:
        return ()
    return (value,) if hasattr(value, "ListFields") else value


def _is_text(value: Any) -> bool:
    """Return whether the value of a text field is a string; some protobuf versions return bytes."""
    values = (value,) if isinstance(value, str | bytes) else value
    return all(isinstance(item, str) for item in values)


def may_hold(node: onnx.NodeProto) -> bool:
    """Return whether a program may contain this operator."""
    return node.op_type in _operators().get(node.domain, _NOTHING)


def _check_operator(node: onnx.NodeProto) -> None:
    if not may_hold(node):
        domain = f" of domain {quote(node.domain)}" if node.domain else ""
        raise ProgramError(
            f"the program uses operator {quote(node.op_type)}{domain}, which is not "
            "allowed in a binary"
        )


@cache
def _operators() -> dict[str, frozenset[str]]:
    """Return the permitted operators by domain."""
    import onnx

    operators: dict[str, set[str]] = {domain: set() for domain in _STANDARD_DOMAINS}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in operators:
            operators[schema.domain].add(schema.name)
    standard = frozenset(operators[""] | _ALMOST_STANDARD)
    known = {domain: frozenset(names) for domain, names in operators.items()}
    runtime = {_RUNTIME_DOMAIN: frozenset(_RUNTIME_OPERATORS.split())}
    return known | dict.fromkeys(ONNX_DOMAINS, standard) | runtime


def unknown_operators(nodes: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the count of each operator that no public source lists for LPAI.

    `nodes` are pairs of operator and domain.
    """
    counts: Counter[str] = Counter()
    for kind, domain in nodes:
        plain = kind.removeprefix("QLinear")  # QLinear: the quantized form of an operator
        if plain not in KNOWN or domain not in (*QUANT_DOMAINS, "qti_aisw"):
            counts[kind] += 1
    return counts
