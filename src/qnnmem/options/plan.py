"""Options of a model and of its plan."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from qnnmem.options import parsers
from qnnmem.options.option import Opt
from qnnmem.options.parsers import Constant
from qnnmem.units import Bytes, parse_size

MAX_SECONDS = 86_400.0
MAX_SEED = 1 << 31


class ShapeOptions(Struct, frozen=True, kw_only=True):
    """What fixes the sizes that a model leaves open."""

    dims: Annotated[
        tuple[tuple[str, int], ...],
        Opt(
            "--dim",
            "Model: fix a named free dimension, e.g. batch=1.",
            metavar="NAME=N",
            parse=parsers.dimension,
            item=parsers.dimension_item,
            show=parsers.show_pair,
            label="Batch and dimensions",
            example="batch=1",
        ),
    ] = ()
    shapes: Annotated[
        tuple[tuple[str, tuple[int, ...]], ...],
        Opt(
            "--shape",
            "Model: fix a tensor's shape, e.g. x=1x3x224x224.",
            metavar="TENSOR=AxB",
            parse=parsers.shape,
            item=parsers.shape_item,
            show=parsers.show_shape,
            label="Shapes",
            example="x=1x3x224x224",
            is_folded=True,
        ),
    ] = ()
    values: Annotated[
        tuple[tuple[str, Constant], ...],
        Opt(
            "--value",
            "Model: make an input a constant, e.g. sr=16000, ids=1,2,3, flag=true or "
            "mask=@mask.npy; branches that cannot be taken then are left out.",
            metavar="INPUT=VALUE",
            parse=parsers.value,
            item=parsers.value_item,
            show=parsers.show_value,
            label="Values of inputs",
            example="sr=16000",
            is_folded=True,
        ),
    ] = ()

    @property
    def sizes(self) -> dict[str, Any]:
        """The same as keyword arguments of `load` and of a compile."""
        return {
            "dims": dict(self.dims),
            "shapes": dict(self.shapes),
            "values": dict(self.values),
        }


class ModelOptions(ShapeOptions, frozen=True, kw_only=True):
    """Which model is meant: its open sizes, and its state."""

    states: Annotated[
        tuple[tuple[str, str], ...],
        Opt(
            "--state",
            "Keep an output as an input of the next run, e.g. h_in=h_out, in persistent memory.",
            metavar="IN=OUT",
            parse=parsers.state,
            item=parsers.text_item,
            show=parsers.show_pair,
            label="State kept between runs",
            example="h_in=h_out",
            is_folded=True,
        ),
    ] = ()


class LayoutOptions(ModelOptions, frozen=True, kw_only=True):
    """How the buffers of a model lie."""

    io: Annotated[
        str,
        Opt(
            "--io",
            "Inputs and outputs inside scratch or in the application's buffers.",
            choices=("inside", "outside"),
            label="Inputs and outputs",
            labels=("inside scratch", "in buffers of the application"),
        ),
    ] = "inside"
    align: Annotated[
        int | None,
        Opt(
            "--align",
            "Alignment of start and size in bytes.",
            ge=1,
            le=1 << 20,
            in_bytes=True,
            default="64; for a CSV as the file says",
            label="Alignment",
            for_buffers=True,
        ),
    ] = None
    bits: Annotated[
        int | None,
        Opt(
            "--bits",
            "Width of floating-point elements once quantized.",
            choices=(8, 16, 32),
            default="as in the model",
            label="Bits",
        ),
    ] = None


class PlanOptions(LayoutOptions, frozen=True, kw_only=True):
    """What is planned and how, for every verb that plans a model.

    A new option of `plan` is a new field here and its use in `planner.model_plan`: the command
    line, budget files, the workbench and the reference read this type.
    """

    inplace: Annotated[
        bool,
        Opt(
            "--inplace",
            "Let element-wise ops overwrite an input that dies there.",
            label="Element-wise ops in place",
        ),
    ] = False
    reorder: Annotated[
        bool,
        Opt(
            "--reorder",
            "Search for an operator order that needs less memory.",
            label="Search for a better order",
        ),
    ] = False
    budgets: Annotated[
        tuple[tuple[str, Bytes], ...],
        Opt(
            "--budget",
            "Bytes that scratch, persistent, io, constants or tcm may take, e.g. scratch=256K.",
            metavar="POOL=SIZE",
            parse=parsers.budgets,
            parses_many=True,
            item=parsers.size_item,
            show=parsers.show_pair,
            key="budget",
            label="Budgets",
            example="scratch=256K",
            for_buffers=True,
        ),
    ] = ()
    capacity: Annotated[
        Bytes | None,
        Opt(
            "--capacity",
            "For a CSV: does everything fit this many bytes?",
            metavar="SIZE",
            parse=parse_size,
            is_local=True,  # elsewhere it is the budget of scratch
            is_advanced=True,
        ),
    ] = None
    time_limit: Annotated[
        float,
        Opt(
            "--time-limit",
            "Seconds to search for a lower plan.",
            metavar="S",
            parse=parsers.seconds,
            ge=0.0,
            le=MAX_SECONDS,
            label="Seconds",
            is_folded=True,
        ),
    ] = 10.0
    seed: Annotated[
        int,
        Opt(
            "--seed",
            "Varies the search; the same seed gives the same plan.",
            ge=0,
            le=MAX_SEED,
            label="Seed",
            is_folded=True,
            is_advanced=True,
        ),
    ] = 0


class PlanFileOptions(PlanOptions, frozen=True, kw_only=True):
    """What `plan` takes besides: which graphs of a file, and as whom."""

    seen_as: Annotated[
        str | None,
        Opt(
            "--as",
            "Plan an ONNX model as the graph that QNN is given of it, and say why that differs; "
            "takes the real library (Linux on x86-64).",
            choices=("qnn",),
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    graph: Annotated[
        str | None,
        Opt(
            "--graph",
            "Of a DLC or of a model as QNN graph: only this graph.",
            metavar="NAME",
            default="every graph",
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    trust: Annotated[
        bool,
        Opt(
            "--trust",
            "FILE may be a model library (.so) of QNN's tools: its code is executed, in a child "
            "process with limits, which are no sandbox.",
            is_local=True,  # neither a project's file nor the network may run native code
            is_advanced=True,
        ),
    ] = False
