"""Results of `sweep`: one row per setting, and the largest value that fits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from qnnmem.results.result import Count, Difference, Result, describe
from qnnmem.text import counted

SettingValue = int | str
SweepState = Literal["fits", "over", "refused", "failed"]


class CompileNumbers(Struct, frozen=True, kw_only=True):
    """The memory needs of one compile in bytes; null if unknown."""

    code: Annotated[Difference | None, describe("QNN error code.")] = None
    compile_need: Annotated[
        Count | None, describe("Estimate that the compile limit applies to.")
    ] = None
    pd_need: Annotated[
        Count | None, describe("Upper bound of the bytes needed in a process domain.")
    ] = None
    pd_low: Annotated[
        Count | None,
        describe(
            "Lower bound of the bytes needed in a process domain; equal to pd_need if that number "
            "is exact."
        ),
    ] = None
    vtcm: Count | None = None
    ram: Annotated[Count | None, describe("Bytes of memory in total.")] = None
    weights: Count | None = None
    io: Count | None = None
    spill_fill: Count | None = None
    ddr_read: Annotated[Count | None, describe("Bytes read from DDR in one inference.")] = None
    ddr_written: Annotated[Count | None, describe("Bytes written to DDR in one inference.")] = None
    host_ram: Annotated[Count | None, describe("Peak memory of the compiling process.")] = None
    file_bytes: Annotated[Count | None, describe("Size of the context binary.")] = None
    seconds: Annotated[float, Meta(ge=0, lt=1e9), describe("Compile time in seconds.")] = 0.0

    @property
    def is_compiled(self) -> bool:
        """True if the compile produced a binary."""
        return self.file_bytes is not None


class SweptSetting(CompileNumbers, frozen=True):
    """A row: a setting and the outcome of its compile."""

    setting: Annotated[
        dict[str, SettingValue], describe("Value of each setting that the sweep varies.")
    ]
    state: Annotated[
        SweepState,
        describe(
            "over: does not fit; refused: rejected for a reason other than size; failed: "
            "retried by the next run."
        ),
    ]
    from_cache: Annotated[bool, describe("Whether the result came from an earlier run.")] = False
    reason: Annotated[str, describe("Reason for any state other than fits.")] = ""


class SearchEnd(Struct, frozen=True, kw_only=True):
    """The outcome of the search for the largest value."""

    value: Annotated[
        SettingValue | None,
        describe("Largest value that reached the goal; null if even the smallest value failed."),
    ]
    next_value: Annotated[SettingValue | None, describe("Smallest value that failed.")]
    until: Annotated[
        Literal["fits", "compiles"], describe("Goal of the search: fits or compiles.")
    ] = "fits"
    predicted: Annotated[
        SettingValue | None, describe("First prediction, extrapolated from small values.")
    ] = None
    halved: Annotated[
        bool, describe("Whether the value was found by bisection instead of by the prediction.")
    ] = False
    is_open: Annotated[
        bool,
        describe(
            "Whether the compile of the next value ran out of time, so a larger value might work."
        ),
    ] = False


class LargestValue(SearchEnd, frozen=True):
    """The largest value of a setting that reaches the goal; `setting` holds the other settings."""

    name: str
    setting: dict[str, SettingValue]
    next_reason: Annotated[str, describe("Why the next value fails.")] = ""


class SweepResult(Result, frozen=True, kw_only=True, tag="qnnmem.sweep/1"):
    """The table of a sweep, with numbers measured by the library."""

    file: str
    soc: str
    library: Annotated[str, describe("Package and version of the library.")] = ""
    rows: tuple[SweptSetting, ...]
    largest: tuple[LargestValue, ...] = ()
    interrupted: Annotated[
        bool, describe("Whether Ctrl-C ended the sweep before all rows were known.")
    ] = False

    @property
    def summary(self) -> str:
        """Result in one line, for a history of results."""
        fits = sum(row.state == "fits" for row in self.rows)
        return f"{fits} of {counted(len(self.rows), 'setting')} fit on {self.soc}"
