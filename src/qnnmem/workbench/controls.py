"""Options as controls on the page, and the validation of requests.

Label, kind, choices and bounds come from the option's field, whose parser reads the value. A value
that names a file on this machine is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from qnnmem.errors import UsageError
from qnnmem.options.option import OptionField, Options, option_fields
from qnnmem.text import quote

_MAX_ITEMS = 64  # items of a list
_MAX_TEXT = 300  # characters of an item

Kind = Literal["choice", "number", "list", "switch", "soc", "text"]


@dataclass(frozen=True, slots=True)
class Control:
    """A control on the page for one option."""

    field: OptionField
    is_needed: bool = False
    choices: tuple[tuple[str, str], ...] = ()  # value and label; "" is the default
    only_with: tuple[str, str] | None = None  # name and required value of another control

    @property
    def name(self) -> str:
        """Return the key of the control's value in a request."""
        return self.field.name

    @property
    def label(self) -> str:
        """Return the control's label on the page."""
        words = self.field.opt.flag.lstrip("-").replace("-", " ").replace("_", " ")
        return self.field.opt.label or words.capitalize()

    @property
    def is_many(self) -> bool:
        """Return True for a group of check boxes, several of which can be selected."""
        return bool(self.choices) and self.field.is_many

    @property
    def kind(self) -> Kind:
        """Return the kind of HTML control for this option."""
        opt = self.field.opt
        if opt.is_soc:
            return "soc"
        if self.field.kind == "flag":
            return "switch"
        if self.choices:
            return "choice"
        if opt.ge is not None:
            return "number"
        return "list" if self.field.is_many else "text"

    @property
    def hint(self) -> str:
        """Return the line of help below the control."""
        opt = self.field.opt
        if opt.example:
            return f"e.g. {opt.example}"
        if self.kind == "number":
            return f"{opt.ge:,.0f} to {opt.le:,.0f}"
        return ""

    def values(self) -> dict[str, Any]:
        """Return the JSON object that the page receives."""
        return {
            "name": self.name,
            "label": self.label,
            "option": self.field.opt.flag,
            "kind": self.kind,
            "hint": self.hint,
            "choices": self.choices,
            "low": self.field.opt.ge or 0,
            "high": self.field.opt.le or 0,
            "many": self.is_many,
            "is_rare": self.field.opt.is_folded,
            "is_needed": self.is_needed,
            "only_with": self.only_with,
        }

    def counts(self, options: Mapping[str, Any]) -> bool:
        """Return True if this option has an effect, given the other settings."""
        return self.only_with is None or options.get(self.only_with[0], "") == self.only_with[1]

    def read(self, value: Any) -> Any:
        """Convert the value in a request to the field's value; raise UsageError if it is wrong."""
        if self.kind == "switch":
            self._check(value is True, value)
            return True
        if self.kind == "number":
            return self._number(value)
        items = value if self.field.is_many and isinstance(value, list) else [value]
        self._check(len(items) <= _MAX_ITEMS, "too many values")
        values = tuple(value_read for item in items for value_read in self._items(item))
        return values if self.field.is_many else values[0]

    def _number(self, value: Any) -> int | float:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            value = int(value)
        kinds = (int, float) if isinstance(self.field.opt.ge, float) else int
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        low, high = self.field.opt.ge or 0, self.field.opt.le or 0
        self._check(is_number and low <= value <= high, value)
        return value  # type: ignore[no-any-return]

    def _items(self, item: Any) -> tuple[Any, ...]:
        is_text = isinstance(item, str) and 0 < len(item) <= _MAX_TEXT
        self._check(is_text and min(item) >= " ", item)  # control characters are refused
        if self.kind == "soc":
            self._check(item in soc_names(), item)
        elif self.choices:
            self._check(item in (known for known, _ in self.choices), item)
        try:
            values = self.field.parsed(item)
        except UsageError:
            self._check(False, item)
            raise
        # The server would read the file on this machine, with its own rights.
        self._check(not any(map(_names_file, values)), item)
        return values

    def _check(self, is_right: bool, value: object) -> None:
        if not is_right:
            example = f"; {self.hint}" if self.hint else ""
            raise UsageError(f"{self.label} cannot be {quote(value)}{example}")


def _names_file(value: Any) -> bool:
    several = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, Path) for item in several)


@cache
def soc_names() -> Mapping[str, str]:
    """Return the name and the marketing name of each SoC with an HTP."""
    from qnnmem.targets.socs import socs

    return {soc.name: soc.marketing_name for soc in socs() if soc.has_htp}


def controls_of(
    group: type[Options],
    *,
    without: Collection[str] = (),
    needed: Collection[str] = (),
) -> tuple[Control, ...]:
    """Return controls for the options in `group`; options that requests cannot set are left out."""
    return tuple(
        Control(field, field.name in needed, _choices(field), _only_with(field))
        for field in option_fields(group)
        if field.is_shared and field.name not in without
    )


def _choices(field: OptionField) -> tuple[tuple[str, str], ...]:
    opt = field.opt
    if field.is_many or not opt.choices:
        return tuple((str(choice), str(choice)) for choice in opt.choices or opt.offered)
    labels = opt.labels or tuple(map(str, opt.choices))
    known = dict(zip(map(str, opt.choices), labels, strict=True))
    unset = known.pop(str(field.default), "") if field.default is not None else opt.default
    if field.default is None:
        known.pop(opt.default, None)  # the default's own label replaces it
    return (("", unset or "as it is"), *known.items())


def _only_with(field: OptionField) -> tuple[str, str] | None:
    backend = field.opt.backend
    return ("backend", "" if backend == "lpai" else backend) if backend else None


def read_request(
    controls: Sequence[Control], options: Mapping[str, Any]
) -> Iterator[tuple[OptionField, Any]]:
    """Yield each option that a request sets, with its value; raise UsageError for a bad request."""
    known = {control.name for control in controls}
    for name in options:
        if name not in known:
            raise UsageError(f"there is no setting {quote(name)} for this task")
    counting = [control for control in controls if control.counts(options)]
    for control in counting:
        if control.is_needed and not options.get(control.name):
            example = f"; {control.hint}" if control.hint.startswith("e.g.") else ""
            raise UsageError(f"choose {control.label} first{example}")
    for control in counting:
        value = options.get(control.name)
        if value not in (None, "", [], False):
            yield control.field, control.read(value)
