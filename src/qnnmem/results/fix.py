"""Results of `fix`: remedies tried to reduce the memory of one or several models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from qnnmem.results.files import SeveralFiles
from qnnmem.results.plan import PlanMap
from qnnmem.results.result import Count, Positive, Result, describe

# Deviation of results; null for NaN or infinity, which JSON cannot represent.
Gap = Annotated[float, Meta(ge=0)] | None
LargestGap = Annotated[
    Gap, describe("Largest difference; null where a number became NaN or infinite.")
]
RelativeGap = Annotated[
    Gap, describe("The largest difference as a share of the output's largest value.")
]
OverBudget = Annotated[tuple[str, ...], describe("Pools that are over their limits.")]


class OutputDifference(Struct, frozen=True):
    """An output that differs from the output of the original model."""

    name: Annotated[str, describe("Name of the output.")]
    largest_difference: LargestGap
    relative_difference: RelativeGap
    signal_to_noise_db: Annotated[
        float | None, describe("Signal-to-noise ratio in decibels; null if undefined.")
    ]


class LevelDifference(Struct, frozen=True):
    """The difference between original and fixed model at one onnxruntime optimisation level."""

    level: Annotated[
        str, Meta(pattern="^(basic|extended|all)$"), describe("The optimisation level.")
    ]
    identical: Annotated[bool, describe("Whether every output is bit-identical.")]
    largest_difference: LargestGap
    relative_difference: RelativeGap


class RemedyTrial(Struct, frozen=True, kw_only=True):
    """A tried remedy and its result."""

    remedy: Annotated[str, describe("Name of the remedy; `none` for the unchanged model.")]
    change: Annotated[str, describe("Description of the change, in a few words.")]
    pool: Annotated[
        str,
        describe("Pool that `bytes` counts: scratch for LPAI, the decisive pool for HTP."),
    ] = "scratch"
    bytes: Annotated[Count | None, describe("Bytes needed; null if unknown.")]
    limit_bytes: Annotated[Count | None, describe("Limit of the pool in bytes.")] = None
    fits: Annotated[bool | None, describe("Whether every limit holds; null without a limit.")]
    over_budget: OverBudget = ()
    missing_bytes: Annotated[Count, describe("Bytes over the limits, summed over all pools.")] = 0
    why: Annotated[
        str, describe("Why the changed model does not fit, if the reason is not a size.")
    ] = ""
    identical: Annotated[bool, describe("Whether every output is bit-identical.")]
    lossy: Annotated[
        bool,
        describe(
            "Whether the remedy is allowed to change results; if not, a changed result is rejected."
        ),
    ] = False
    samples: Annotated[Count, describe("Number of samples on which results were compared.")] = 0
    largest_difference: LargestGap = 0.0
    relative_difference: RelativeGap = 0.0
    outputs: Annotated[
        tuple[OutputDifference, ...], describe("Outputs that differ, and by how much.")
    ] = ()
    reshaped_outputs: Annotated[
        tuple[str, ...], describe("Outputs whose shape changed, so that they cannot be compared.")
    ] = ()
    macs: Annotated[
        Count,
        describe(
            "Multiply-adds of the original model; 0 if they were not counted, because the remedy "
            "adds none."
        ),
    ] = 0
    extra_macs: Annotated[int, describe("Additional multiply-adds.")] = 0
    optimisation_levels: Annotated[
        tuple[LevelDifference, ...] | UnsetType,
        describe(
            "Comparison of the changed with the original model at each onnxruntime optimisation "
            "level; only the chosen trial has this. `identical` is the comparison without "
            "optimisation."
        ),
    ] = UNSET
    seconds: Annotated[float, Meta(ge=0), describe("Time taken in seconds.")] = 0.0
    steps: Annotated[
        tuple[dict[str, Any], ...],
        describe(
            "Steps of the change in order, each with its parameters, as in qnnmem.fix-recipe/1."
        ),
    ] = ()

    @property
    def extra_work(self) -> str:
        """Additional multiply-adds in percent of the original model's; `-` if these are unknown."""
        return f"{self.extra_macs / self.macs:+.1%}" if self.macs else "-"


class FixDeployment(Struct, frozen=True, kw_only=True):
    """How the parts of a split model are deployed, and the memory of all parts together."""

    arrangement: Annotated[
        Literal["resident", "shared", "in-turn"],
        describe(
            "How the parts are loaded: all resident, all resident with one spill/fill "
            "buffer, or in turn."
        ),
    ]
    parts: Annotated[Positive, describe("Number of parts.")]
    worst_part: Annotated[Positive, describe("Part that runs at the peak, counted from 1.")]
    held_bytes: Annotated[Count, describe("Bytes of tensors held for other parts at the peak.")]
    pools: Annotated[dict[str, Count], describe("Peak bytes of each pool over all parts.")]
    total_bytes: Annotated[Count, describe("Peak bytes of all memory.")]
    plain_total_bytes: Annotated[
        Count | None, describe("Peak bytes of the unsplit model; null if unknown.")
    ] = None
    weights_bytes: Annotated[Count, describe("Bytes of the weights of all parts.")]
    plain_weights_bytes: Annotated[
        Count | None, describe("Bytes of the weights of the unsplit model.")
    ]
    repeated_weights_bytes: Annotated[
        Count, describe("Bytes of duplicate weights: extra copies that several parts store.")
    ]
    moved_bytes_per_inference: Annotated[
        Count, describe("Bytes of tensors passed between parts in one inference.")
    ]
    load_bytes_per_inference: Annotated[
        Count,
        describe(
            "Bytes moved between parts in one inference, plus all weights if parts are "
            "loaded in turn."
        ),
    ]


class ValidatedOutput(Struct, frozen=True, kw_only=True):
    """The comparison of one output over all samples."""

    output: Annotated[str, describe("Name of the output.")]
    identical: Annotated[bool, describe("Whether the output equals that of the original model.")]
    largest_difference: Annotated[
        Gap,
        describe(
            "Largest difference from the original model; null if a number became NaN or infinite."
        ),
    ]
    relative_difference: RelativeGap
    planned_difference: Annotated[
        Gap,
        describe("Largest difference between the run in planned memory and the run on the CPU."),
    ]
    nans: Annotated[Count, describe("Number of NaN elements.")]
    infinities: Annotated[Count, describe("Number of infinite elements.")]
    new_infinities: Annotated[
        Count, describe("Number of infinite elements beyond those of the original model.")
    ]


class Validation(Struct, frozen=True, kw_only=True):
    """Checks made by running the result of a fix."""

    holds: Annotated[bool, describe("Whether the result passed every check.")]
    samples: Annotated[Count, describe("Number of samples.")]
    planned: Annotated[
        bool, describe("Whether the result also ran in memory laid out by the plan.")
    ]
    why_not_planned: Annotated[
        str, describe("Why the result did not run in memory laid out by the plan; empty if it did.")
    ]
    findings: Annotated[tuple[str, ...], describe("Rules broken by the run in planned memory.")]
    outputs: Annotated[tuple[ValidatedOutput, ...], describe("Comparison of every output.")]


class LossyOption(Struct, frozen=True):
    """A remedy whose plan would fit, but which changes results and is not allowed."""

    allow: Annotated[str, describe("Name of the remedy to allow.")]
    pool: Annotated[str, describe("Pool that `bytes` counts.")]
    bytes: Annotated[Count | None, describe("Bytes needed with the remedy.")]


class FixMaps(Struct, frozen=True):
    """The memory maps before and after the fix."""

    before: Annotated[PlanMap, describe("Plan of the original model.")]
    after: Annotated[PlanMap, describe("Plan of the result.")]
    after_is: Annotated[
        Literal["whole model", "neediest part"],
        describe("What `after` shows: the whole model, or the part that needs the most memory."),
    ] = "whole model"


Shape = tuple[Count, ...]


class FixRecipe(Result, frozen=True, kw_only=True, tag="qnnmem.fix-recipe/1"):
    """The remedies applied to a model, so that they can be applied again."""

    backend: Annotated[Literal["lpai", "htp"], describe("Backend of the recipe.")]
    model: Annotated[str, describe("File name of the original model.")]
    shapes: Annotated[dict[str, Shape], describe("Shapes of all inputs.")]
    steps: Annotated[
        tuple[dict[str, Any], ...],
        Meta(max_length=100),
        describe("Remedies in order, each with its parameters."),
    ]
    before_bytes: Annotated[Count | None, describe("Bytes that the original model needs.")] = None
    after_bytes: Annotated[Count | None, describe("Bytes that the result needs.")] = None

    def __post_init__(self) -> None:
        """Raise ValueError if a step of the recipe does not name its remedy."""
        if not all(isinstance(step.get("remedy"), str) for step in self.steps):
            raise ValueError("each step must name its remedy")


class FixedModel(Result, frozen=True, kw_only=True, tag="qnnmem.fix/1"):
    """The remedies tried on a model, and the result."""

    input: Annotated[str, describe("Path of the model as given.")]
    backend: Annotated[
        Literal["lpai", "htp"] | UnsetType,
        describe(
            "Backend that the result was made for; the result is not a fix for other backends."
        ),
    ] = UNSET
    fits: Annotated[bool | None, describe("Whether every budget holds; null without a budget.")]
    before_bytes: Annotated[Count | None, describe("Bytes that the original model needs.")] = None
    after_bytes: Annotated[Count | None, describe("Bytes that the result needs.")] = None
    limit_bytes: Annotated[Count | None, describe("Limit for `after_bytes`.")] = None
    over_budget: OverBudget = ()
    total_bytes: Annotated[
        Count | None,
        describe("Peak bytes of all memory during a run; null if unknown."),
    ] = None
    plain_total_bytes: Annotated[
        Count | None, describe("Peak bytes of all memory for the original model.")
    ] = None
    deployment: Annotated[
        FixDeployment | None,
        describe(
            "How the parts are deployed, and how much they need in total; null for an unsplit "
            "model."
        ),
    ] = None
    best: Annotated[Count, describe("Index of the chosen trial, from 0.")]
    tried: Annotated[
        tuple[RemedyTrial, ...],
        Meta(min_length=1),
        describe("All trials in order; the first is the unchanged model."),
    ]
    obstacle: Annotated[str, describe("What prevents a fit.")] = ""
    notes: Annotated[tuple[str, ...], describe("Notes for the user.")] = ()
    would_fit: Annotated[
        tuple[LossyOption, ...],
        describe("Remedies whose plans would fit, but which change results and are not allowed."),
    ] = ()
    validation: Annotated[
        Validation | None, describe("Checks made by running the result; null unless requested.")
    ] = None
    files: Annotated[tuple[str, ...], describe("Files that were written.")] = ()
    next: Annotated[str, describe("The next command.")] = ""
    soc: Annotated[str | UnsetType, describe("For HTP: the SoC of the result.")] = UNSET
    exit_code: Annotated[int, describe("Exit code of the command.")] = 0
    plans: Annotated[
        FixMaps | UnsetType,
        describe("For LPAI: memory maps before and after; absent if several models were changed."),
    ] = UNSET
    from_log: Annotated[
        tuple[str, ...] | UnsetType,
        describe("How the budgets follow from the log; empty without a log."),
    ] = UNSET

    def __post_init__(self) -> None:
        """Raise ValueError if `best` is not an index of `tried`."""
        if self.best >= len(self.tried):
            raise ValueError("best is not the index of a tried change")

    @property
    def chosen(self) -> RemedyTrial:
        """The chosen trial, whose model is the result."""
        return self.tried[self.best]

    @property
    def maps(self) -> FixMaps | None:
        """The memory maps before and after the fix; None if the result contains no maps."""
        return self.plans if isinstance(self.plans, FixMaps) else None

    @property
    def soc_name(self) -> str:
        """Name of the SoC; empty for LPAI."""
        return self.soc if isinstance(self.soc, str) else ""

    @property
    def summary(self) -> str:
        """The result in one line."""
        fits = {True: "fits", False: "does not fit", None: "cannot tell"}[self.fits]
        if self.before_bytes is None or self.after_bytes is None:
            return fits
        return f"{fits}: {self.before_bytes:,} to {self.after_bytes:,} bytes"


class FixedModels(SeveralFiles, frozen=True, kw_only=True, tag="qnnmem.fixes/1"):
    """The results of fixing several models."""

    listed = "results"
    results: Annotated[tuple[FixedModel, ...], describe("The result of each model, in order.")]
