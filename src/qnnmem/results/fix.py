"""Results of `fix`: remedies tried to reduce the memory of one or several models."""

from __future__ import annotations

import math
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
    Gap, describe("The largest difference as part of the output's largest value.")
]
OverBudget = Annotated[tuple[str, ...], describe("Pools that are over their limits.")]


def finite(number: float) -> float | None:
    """Return the number; None for infinity and NaN, which JSON cannot represent."""
    return number if math.isfinite(number) else None


class OutputDifference(Struct, frozen=True):
    """An output that differs from the output of the original model."""

    name: Annotated[str, describe("Name of the output.")]
    largest_difference: LargestGap
    relative_difference: RelativeGap
    signal_to_noise_db: Annotated[
        float | None, describe("Signal to noise in decibels; null where it is not defined.")
    ]


class LevelDifference(Struct, frozen=True):
    """The difference between original and result at one onnxruntime optimisation level."""

    level: Annotated[
        str, Meta(pattern="^(basic|extended|all)$"), describe("The optimisation level.")
    ]
    identical: Annotated[bool, describe("Whether every output is the same bit by bit.")]
    largest_difference: LargestGap
    relative_difference: RelativeGap


class RemedyTrial(Struct, frozen=True, kw_only=True):
    """A tried remedy and its result."""

    remedy: Annotated[str, describe("Name of the remedy; none is the model as it is.")]
    change: Annotated[str, describe("What it changes, in a few words.")]
    pool: Annotated[
        str,
        describe("What the bytes are of: scratch for LPAI, for HTP the pool that decides."),
    ] = "scratch"
    bytes: Annotated[Count | None, describe("Bytes needed; null where the judge could not say.")]
    limit_bytes: Annotated[Count | None, describe("Limit of the pool in bytes.")] = None
    fits: Annotated[bool | None, describe("Whether every limit holds; null without one.")]
    over_budget: OverBudget = ()
    missing_bytes: Annotated[Count, describe("Bytes over all limits together.")] = 0
    why: Annotated[str, describe("Why it does not fit, if the reason is not a size.")] = ""
    identical: Annotated[bool, describe("Whether every output is the same bit by bit.")]
    lossy: Annotated[
        bool,
        describe("Whether results may differ; without it a differing result is rejected."),
    ] = False
    samples: Annotated[Count, describe("On how many samples results were compared.")] = 0
    largest_difference: LargestGap = 0.0
    relative_difference: RelativeGap = 0.0
    outputs: Annotated[
        tuple[OutputDifference, ...], describe("Outputs that differ, and how far.")
    ] = ()
    reshaped_outputs: Annotated[
        tuple[str, ...], describe("Outputs of another shape, which cannot be compared.")
    ] = ()
    macs: Annotated[
        Count, describe("Multiply-adds of the model as it is; 0 where they do not change.")
    ] = 0
    extra_macs: Annotated[int, describe("Multiply-adds on top.")] = 0
    optimisation_levels: Annotated[
        tuple[LevelDifference, ...] | UnsetType,
        describe(
            "How results compare at optimisation levels of onnxruntime, both models at the same; "
            "of the result only. Without optimisation, `identical` says it."
        ),
    ] = UNSET
    seconds: Annotated[float, Meta(ge=0), describe("Time it took in seconds.")] = 0.0
    steps: Annotated[
        tuple[dict[str, Any], ...],
        describe("Remedies in order, each with its own numbers, as in qnnmem.fix-recipe/1."),
    ] = ()

    @property
    def extra_work(self) -> str:
        """Additional multiply-adds relative to the original model, as a percentage."""
        return f"{self.extra_macs / self.macs:+.1%}" if self.macs else "-"


class FixDeployment(Struct, frozen=True, kw_only=True):
    """How the parts are deployed, and the memory of all parts together."""

    arrangement: Annotated[
        Literal["resident", "shared", "in-turn"],
        describe(
            "All parts stay loaded; the same with one spill/fill buffer; or each part is loaded, "
            "run and freed before the next."
        ),
    ]
    parts: Annotated[Positive, describe("Number of parts.")]
    worst_part: Annotated[
        Positive, describe("Counted from 1: the part during which most is in memory.")
    ]
    held_bytes: Annotated[
        Count, describe("Bytes of tensors that wait for other parts while it runs.")
    ]
    pools: Annotated[
        dict[str, Count], describe("Bytes of each pool at its own worst moment, all parts counted.")
    ]
    total_bytes: Annotated[Count, describe("Bytes of everything at the worst moment.")]
    plain_total_bytes: Annotated[
        Count | None, describe("The same of the model in one piece; null where it is not known.")
    ] = None
    weights_bytes: Annotated[Count, describe("Bytes of the weights of all parts.")]
    plain_weights_bytes: Annotated[
        Count | None, describe("Bytes of the weights of the model in one piece.")
    ]
    repeated_weights_bytes: Annotated[
        Count, describe("Bytes of weights that are stored in more than one part.")
    ]
    moved_bytes_per_inference: Annotated[
        Count, describe("Bytes of tensors handed from part to part.")
    ]
    load_bytes_per_inference: Annotated[
        Count, describe("The same, and all weights where parts are loaded in turn.")
    ]


class ValidatedOutput(Struct, frozen=True, kw_only=True):
    """The comparison of one output over all samples."""

    output: Annotated[str, describe("Name of the output.")]
    identical: Annotated[bool, describe("Whether it equals that of the model as it was.")]
    largest_difference: Annotated[
        Gap, describe("To the model as it was; null where a number became NaN or infinite.")
    ]
    relative_difference: RelativeGap
    planned_difference: Annotated[Gap, describe("Difference of planned memory to the CPU.")]
    nans: Annotated[Count, describe("Elements that are NaN.")]
    infinities: Annotated[Count, describe("Elements that are infinite.")]
    new_infinities: Annotated[
        Count, describe("Infinite elements that the model as it was does not give.")
    ]


class Validation(Struct, frozen=True, kw_only=True):
    """The checks of a result by execution."""

    holds: Annotated[bool, describe("Whether the result passed every check.")]
    samples: Annotated[Count, describe("Number of samples.")]
    planned: Annotated[bool, describe("Whether it was executed in planned memory, too.")]
    why_not_planned: Annotated[str, describe("Why it was not; empty where it was.")]
    findings: Annotated[tuple[str, ...], describe("Rules broken in planned memory.")]
    outputs: Annotated[tuple[ValidatedOutput, ...], describe("Every output.")]


class LossyOption(Struct, frozen=True):
    """A remedy that changes results and whose plan would fit if it were allowed."""

    allow: Annotated[str, describe("Name of the remedy to allow.")]
    pool: Annotated[str, describe("What the bytes are of.")]
    bytes: Annotated[Count | None, describe("Bytes that it would need.")]


class FixMaps(Struct, frozen=True):
    """The memory maps before and after the fix."""

    before: Annotated[PlanMap, describe("The plan of the model as it is.")]
    after: Annotated[PlanMap, describe("The plan of the result.")]
    after_is: Annotated[
        Literal["whole model", "neediest part"], describe("What `after` is the plan of.")
    ] = "whole model"


Shape = tuple[Count, ...]


class FixRecipe(Result, frozen=True, kw_only=True, tag="qnnmem.fix-recipe/1"):
    """The remedies applied to a model, so that they can be applied again."""

    backend: Annotated[Literal["lpai", "htp"], describe("The backend that it is for.")]
    model: Annotated[str, describe("Name of the file.")]
    shapes: Annotated[dict[str, Shape], describe("Shapes of all inputs.")]
    steps: Annotated[
        tuple[dict[str, Any], ...],
        Meta(max_length=100),
        describe("Remedies in order, each with its own numbers."),
    ]
    before_bytes: Annotated[Count | None, describe("Bytes of the model as it was.")] = None
    after_bytes: Annotated[Count | None, describe("Bytes of the result.")] = None

    def __post_init__(self) -> None:
        """Raise ValueError for a step without a remedy."""
        if not all(isinstance(step.get("remedy"), str) for step in self.steps):
            raise ValueError("a step names its remedy")


class FixedModel(Result, frozen=True, kw_only=True, tag="qnnmem.fix/1"):
    """The remedies tried on a model, and the result."""

    input: Annotated[str, describe("Path of the model, as it was given.")]
    backend: Annotated[
        Literal["lpai", "htp"] | UnsetType,
        describe("The backend that the result is for; it is not a fix for the other."),
    ] = UNSET
    fits: Annotated[bool | None, describe("Whether every budget holds; null without one.")]
    before_bytes: Annotated[Count | None, describe("Bytes of the model as it is.")] = None
    after_bytes: Annotated[Count | None, describe("Bytes of the result.")] = None
    limit_bytes: Annotated[Count | None, describe("Limit of these bytes.")] = None
    over_budget: OverBudget = ()
    total_bytes: Annotated[
        Count | None,
        describe("Bytes of everything at the worst moment of a run; null where it is not known."),
    ] = None
    plain_total_bytes: Annotated[
        Count | None, describe("The same bytes of the model as it is.")
    ] = None
    deployment: Annotated[
        FixDeployment | None,
        describe("How the parts are deployed, and what they take together; null for one piece."),
    ] = None
    best: Annotated[Count, describe("Which of those tried is the result, counted from 0.")]
    tried: Annotated[
        tuple[RemedyTrial, ...],
        Meta(min_length=1),
        describe("All that was tried, in order; the first is the model as it is."),
    ]
    obstacle: Annotated[str, describe("What prevents a fit.")] = ""
    notes: Annotated[tuple[str, ...], describe("Notes for the user.")] = ()
    would_fit: Annotated[
        tuple[LossyOption, ...],
        describe("What would fit by its plan if it were allowed; it changes results."),
    ] = ()
    validation: Annotated[
        Validation | None, describe("What running the result showed; null unless asked for.")
    ] = None
    files: Annotated[tuple[str, ...], describe("Files that were written.")] = ()
    next: Annotated[str, describe("The next command.")] = ""
    soc: Annotated[str | UnsetType, describe("For HTP: the SoC that it is for.")] = UNSET
    exit_code: Annotated[int, describe("Exit code of the command.")] = 0
    plans: Annotated[
        FixMaps | UnsetType,
        describe(
            "For LPAI: where every tensor lies before and after; of one model, not in a table of "
            "several."
        ),
    ] = UNSET
    from_log: Annotated[
        tuple[str, ...] | UnsetType,
        describe("How the log led to the budgets; only with a log."),
    ] = UNSET

    def __post_init__(self) -> None:
        """Raise ValueError if `best` is not an index of `tried`."""
        if self.best >= len(self.tried):
            raise ValueError("best is not one of those tried")

    @property
    def chosen(self) -> RemedyTrial:
        """The trial that is the result."""
        return self.tried[self.best]

    @property
    def maps(self) -> FixMaps | None:
        """The memory maps before and after the fix; None if there are none."""
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
