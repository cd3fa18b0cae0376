"""Options of a model and of its plan."""

from typing import Annotated, Any

from qnnmem.options import parsers, shared
from qnnmem.options.option import Opt, Options
from qnnmem.options.parsers import Constant
from qnnmem.units import Bytes, parse_size


class ShapeOptions(Options, frozen=True, kw_only=True):
    """Sizes for the open dimensions of a model."""

    dims: Annotated[
        tuple[tuple[str, int], ...],
        Opt(
            "--dim",
            "For a model: fix a named free dimension, e.g. batch=1.",
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
            "For a model: fix a tensor's shape, e.g. x=1x3x224x224.",
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
            "For a model: make an input constant, e.g. sr=16000, ids=1,2,3, flag=true "
            "or mask=@mask.npy; branches that can no longer be taken are removed.",
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
        """Return dimensions, shapes and input values as keyword arguments, as `load` takes them."""
        return {
            "dims": dict(self.dims),
            "shapes": dict(self.shapes),
            "values": dict(self.values),
        }


class ModelOptions(ShapeOptions, frozen=True, kw_only=True):
    """Sizes for the open dimensions of a model, and its state pairs."""

    states: Annotated[
        tuple[tuple[str, str], ...],
        Opt(
            "--state",
            "Keep an output in persistent memory and pass it to an input in the next run, e.g. "
            "h_in=h_out.",
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
    """Layout of a model's buffers."""

    io: Annotated[str, shared.IO] = "inside"
    align: Annotated[int | None, shared.ALIGN] = None
    bits: Annotated[int | None, shared.BITS] = None


class PlanOptions(LayoutOptions, frozen=True, kw_only=True):
    """Options of every verb that plans a model.

    To add an option to `plan`, add a field here and use it in `planner.model_plan`: the command
    line, budget files, the workbench and the reference read this type.
    """

    inplace: Annotated[bool, shared.INPLACE] = False
    reorder: Annotated[bool, shared.REORDER] = False
    budgets: Annotated[tuple[tuple[str, Bytes], ...], shared.BUDGETS] = ()
    capacity: Annotated[
        Bytes | None,
        Opt(
            "--capacity",
            "For a CSV: check whether all buffers fit in this many bytes.",
            metavar="SIZE",
            parse=parse_size,
            is_local=True,  # elsewhere it is the budget of scratch
            is_advanced=True,
        ),
    ] = None
    time_limit: Annotated[float, shared.TIME_LIMIT.but("Seconds to search for a smaller plan.")] = (
        10.0
    )
    seed: Annotated[int, shared.SEED] = 0


class PlanFileOptions(PlanOptions, frozen=True, kw_only=True):
    """Further options of `plan`: which graphs to plan, and in which form."""

    seen_as: Annotated[
        str | None,
        Opt(
            "--as",
            "Plan the QNN graph that an ONNX model is compiled to, and explain how it differs "
            "from the model; needs the real library (Linux on x86-64).",
            choices=("qnn",),
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    graph: Annotated[
        str | None,
        Opt(
            "--graph",
            "For a DLC or with --as qnn: plan only this graph.",
            metavar="NAME",
            default="every graph",
            is_local=True,
            is_advanced=True,
        ),
    ] = None
    trust: Annotated[bool, shared.TRUST] = False
    together: Annotated[
        bool,
        Opt(
            "--together",
            "Share one scratch, persistent and TCM pool among all models; budgets apply "
            "to the shared pools.",
            is_local=True,
            is_advanced=True,
        ),
    ] = False
    concurrent: Annotated[
        tuple[tuple[str, ...], ...],
        shared.CONCURRENT.but(is_advanced=True),
    ] = ()


class BackendOptions(ModelOptions, frozen=True, kw_only=True):
    """Backend of a model, and its compile options for HTP."""

    backend: Annotated[
        str,
        Opt(
            "--backend",
            "Backend whose memory must hold the model.",
            leads=True,
            choices=("lpai", "htp"),
            label="Backend",
            labels=("LPAI", "HTP, with the real library"),
        ),
    ] = "lpai"
    soc: Annotated[str | None, shared.SOC.but("SoC by name or id, e.g. SM8650.", backend="htp")] = (
        None
    )
    precision: Annotated[str | None, shared.PRECISION.but(default="fp16", backend="htp")] = None
    vtcm_mb: Annotated[int | None, shared.VTCM_MB.but(backend="htp", is_advanced=True)] = None
    opt_level: Annotated[int | None, shared.OPT_LEVEL.but(backend="htp", is_advanced=True)] = None

    @property
    def is_htp(self) -> bool:
        """Return True if the real HTP library compiles and checks the model."""
        return self.backend == "htp"
