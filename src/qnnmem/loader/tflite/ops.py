"""What TFLite's element types and operators mean for memory."""

from __future__ import annotations

from qnnmem.ir import DType

# Numbers of TensorType in the TFLite schema; strings, resources and variants have no fixed size.
DTYPES = {
    0: DType.FLOAT32,
    1: DType.FLOAT16,
    2: DType.INT32,
    3: DType.UINT8,
    4: DType.INT64,
    6: DType.BOOL,
    7: DType.INT16,
    8: DType.COMPLEX64,
    9: DType.INT8,
    10: DType.FLOAT64,
    11: DType.COMPLEX128,
    12: DType.UINT64,
    15: DType.UINT32,
    16: DType.UINT16,
    17: DType.INT4,
    18: DType.BFLOAT16,
    19: DType.UINT4,
}
RESOURCE = 13
UNSIZED = {5: "strings", 13: "a resource", 14: "a variant"}

VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})

# Of a constant these give the same bytes again: weights kept as float16, or sparse, which are
# counted dense.
STORED_FORMS = VIEWS | {"DEQUANTIZE", "DENSIFY"}

# With every shape fixed their result is known, whatever the input holds.
SHAPE_QUERIES = frozenset({"SHAPE", "RANK"})

NEVER_FOLDED = frozenset(
    {
        "ASSIGN_VARIABLE",
        "BUFFERIZE",
        "CALL",
        "CALL_ONCE",
        "DELEGATE",
        "HASHTABLE",
        "HASHTABLE_IMPORT",
        "IF",
        "MULTINOMIAL",
        "RANDOM_STANDARD_NORMAL",
        "RANDOM_UNIFORM",
        "READ_VARIABLE",
        "STABLEHLO_RNG_BIT_GENERATOR",
        "VAR_HANDLE",
        "WHILE",
    }
)

# How much they return depends on the values they read.
DATA_DEPENDENT = frozenset({"WHERE", "UNIQUE"})

# They run a nested graph in a way this reader does not follow.
UNFOLLOWED = frozenset({"STABLEHLO_CASE", "STABLEHLO_WHILE"})

ELEMENTWISE = frozenset(
    {
        "ABS",
        "ADD",
        "ADD_N",
        "BITWISE_XOR",
        "CAST",
        "CEIL",
        "COS",
        "DEQUANTIZE",
        "DIV",
        "ELU",
        "EQUAL",
        "EXP",
        "FLOOR",
        "FLOOR_DIV",
        "FLOOR_MOD",
        "GELU",
        "GREATER",
        "GREATER_EQUAL",
        "HARD_SWISH",
        "LEAKY_RELU",
        "LESS",
        "LESS_EQUAL",
        "LOG",
        "LOGICAL_AND",
        "LOGICAL_NOT",
        "LOGICAL_OR",
        "LOGISTIC",
        "MAXIMUM",
        "MINIMUM",
        "MUL",
        "NEG",
        "NOT_EQUAL",
        "POW",
        "PRELU",
        "QUANTIZE",
        "RELU",
        "RELU6",
        "RELU_0_TO_1",
        "RELU_N1_TO_1",
        "RIGHT_SHIFT",
        "ROUND",
        "RSQRT",
        "SELECT",
        "SELECT_V2",
        "SIGN",
        "SIN",
        "SQRT",
        "SQUARE",
        "SQUARED_DIFFERENCE",
        "SUB",
        "TANH",
    }
)
