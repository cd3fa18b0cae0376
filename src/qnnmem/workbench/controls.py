"""What can be set on the page: each control with its option, and what it takes.

The page draws its forms from this table, and what a request brings is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from qnnmem.errors import UsageError
from qnnmem.text import quote

_MOST = 64  # items of a list
_LONGEST = 300  # characters of one
_NAME = r"[^=\x00-\x1f][^\x00-\x1f]*"

Kind = Literal["choice", "number", "list", "switch", "soc"]


@dataclass(frozen=True, slots=True)
class Control:
    """One setting: how it is shown, which option it is, what may stand in it."""

    name: str
    label: str
    option: str
    kind: Kind
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # value and what is shown; the first is the default
    pattern: str = ""
    low: int = 0
    high: int = 0
    many: bool = False  # of the choices, several
    is_rare: bool = False  # shown where somebody asks for more
    is_needed: bool = False
    only_with: tuple[str, str] | None = None  # another setting and the value it has then

    def counts(self, options: Mapping[str, Any]) -> bool:
        """Whether it has a meaning beside the other settings."""
        return self.only_with is None or options.get(self.only_with[0], "") == self.only_with[1]

    def words(self, value: Any) -> Iterator[str]:
        """The words of the command line, each with its value, so that none is taken for another."""
        if value in (None, "", [], False):
            return
        if self.kind == "switch":
            self._check(value is True, value)
            yield self.option
        elif self.kind == "number":
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            self._check(is_whole and self.low <= value <= self.high, value)
            yield f"{self.option}={value}"
        else:
            several = self.kind == "list" or self.many
            items = value if several and isinstance(value, list) else [value]
            self._check(len(items) <= _MOST, "more than that")
            for item in items:
                self._check(isinstance(item, str) and self._takes(item), item)
                yield f"{self.option}={item}"

    def _takes(self, text: str) -> bool:
        if self.kind == "soc":
            return text in soc_names()
        if self.choices:
            return text in (known for known, _ in self.choices)
        return len(text) <= _LONGEST and re.fullmatch(self.pattern, text) is not None

    def _check(self, is_right: bool, value: object) -> None:
        if not is_right:
            example = f"; {self.hint}" if self.hint else ""
            raise UsageError(f"{self.label} does not take {quote(value)}{example}")


@cache
def soc_names() -> Mapping[str, str]:
    """SoCs with an HTP: name, and the name on the box."""
    from qnnmem.targets.socs import socs

    return {soc.name: soc.marketing_name for soc in socs() if soc.has_htp}


_SIZE = r"[0-9][0-9,_]*(?:\.[0-9]+)? ?(?:[KMG]i?B?|B|bytes)?"
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
DIMS = Control(
    *("dims", "Batch and dimensions", "--dim", "list", "e.g. batch=1"),
    pattern=rf"{_NAME}=[0-9]{{1,12}}",
)
SHAPES = Control(
    *("shapes", "Shapes", "--shape", "list", "e.g. x=1x3x224x224"),
    pattern=rf"{_NAME}=(?:[0-9]{{1,12}}(?:x[0-9]{{1,12}})*|scalar)",
    is_rare=True,
)
# A value that is a file would be read from this machine: numbers only.
VALUES = Control(
    *("values", "Values of inputs", "--value", "list", "e.g. sr=16000"),
    pattern=rf"{_NAME}=(?:true|false|{_NUMBER}(?:,{_NUMBER})*)",
    is_rare=True,
)
STATES = Control(
    *("states", "State kept between runs", "--state", "list", "e.g. h_in=h_out"),
    pattern=rf"{_NAME}=[^\x00-\x1f]+",
    is_rare=True,
)
BITS = Control(
    *("bits", "Bits", "--bits", "choice", "width of floats once quantized"),
    choices=(("", "as in the model"), ("16", "16"), ("8", "8")),
)
ALIGN = Control(
    *("align", "Alignment", "--align", "choice", "of start and size, in bytes"),
    choices=(
        ("", "as the file says, or 64"),
        *((str(1 << power), f"{1 << power:,}") for power in (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12)),
    ),
)
IO = Control(
    *("io", "Inputs and outputs", "--io", "choice"),
    choices=(("", "inside scratch"), ("outside", "in buffers of the application")),
)
REORDER = Control("reorder", "Look for a better order", "--reorder", "switch")
INPLACE = Control("inplace", "Element-wise ops in place", "--inplace", "switch")
BUDGETS = Control(
    *("budgets", "Budgets", "--budget", "list", "e.g. scratch=256K"),
    pattern=rf"[a-z-]+={_SIZE}",
)
HTP_BUDGETS = Control(
    *("htp_budgets", "Budgets", "--budget", "list", "e.g. pd=256M or vtcm=2M"),
    pattern=rf"[a-z-]+={_SIZE}",
)
SOC = Control("soc", "SoC", "--soc", "soc", "of the phone, board or PC", is_needed=True)
MADE_FOR = Control("soc", "SoC", "--soc", "soc")  # which a binary names itself
PRECISION = Control(
    *("precision", "Precision", "--precision", "choice", "what floats become"),
    choices=(("", "fp16"), ("int8", "int8"), ("w8a16", "w8a16")),
)
VTCM = Control(
    "vtcm_mb", "VTCM in MiB", "--vtcm-mb", "number", "1 to 64", low=1, high=64, is_rare=True
)
VARY = Control(
    *("vary", "What varies", "--vary", "list", "e.g. vtcm_mb=2,4,8 or batch=1,2,4"),
    pattern=r"[^=\x00-\x1f]+=[A-Za-z0-9]+(?:(?:,|\.\.)[A-Za-z0-9]+)*",
    is_needed=True,
)
BACKEND = Control(
    *("backend", "Backend", "--backend", "choice"),
    choices=(("", "LPAI"), ("htp", "HTP, by the real library")),
)
ALLOW = Control(
    *("allow", "May change results", "--allow", "choice", "measured where it does"),
    choices=tuple(
        (word, word)
        for word in ("rounding", "operators", "batch", "int16", "w8a16", "int8", "resolution")
    ),
    many=True,
)
STRICT = Control("strict", "Warnings count as errors", "--strict", "switch")


def words_of(controls: Sequence[Control], options: Mapping[str, Any]) -> list[str]:
    """The options of a request as words; UsageError for one that is not among the controls."""
    known = {control.name for control in controls}
    for name in options:
        if name not in known:
            raise UsageError(f"there is no setting {quote(name)} here")
    counting = [control for control in controls if control.counts(options)]
    for control in counting:
        if control.is_needed and not options.get(control.name):
            example = f"; {control.hint}" if control.hint.startswith("e.g.") else ""
            raise UsageError(f"{control.label} is to be chosen first{example}")
    return [word for one in counting for word in one.words(options.get(one.name))]
