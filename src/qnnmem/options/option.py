"""One option: its flag, help, bounds and parser, attached to the field that holds its value."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from qnnmem.errors import UsageError

Kind = Literal["flag", "number", "choice", "text"]
Choice = str | int


@dataclass(frozen=True, slots=True)
class Opt:
    """Everything about an option but its value; stands in `Annotated` beside the field's type.

    Without further words an option belongs to the command line, to budget files and to the
    workbench. `is_local` and `is_file` keep it on the command line.
    """

    flag: str
    help: str
    short: str = ""  # `-o`
    aliases: tuple[str, ...] = ()  # other spellings that stay accepted, shown nowhere
    metavar: str = ""
    ge: float | None = None
    le: float | None = None
    choices: tuple[Choice, ...] = ()
    parse: Callable[[str], Any] | None = None  # the text of one value
    item: Callable[[object, str], Any] | None = None  # one value of a TOML table, with its name
    show: Callable[[Any], str] = str  # one value as it is typed
    parses_many: bool = False  # `parse` returns several values, as in `a=1,b=2`
    is_soc: bool = False  # the name of a SoC, which the workbench lists
    in_bytes: bool = False  # a budget file may write the number as "4K"
    bare: str = ""  # the value of the option that is given without one
    default: str = ""  # what holds without the option, where the default is computed
    required: bool = False
    backend: Literal["", "lpai", "htp"] = ""  # the option is refused for the other one
    for_buffers: bool = False  # also of a buffer CSV, which has neither ops nor constants
    is_file: bool = False  # names a file or folder of this machine
    is_local: bool = False  # neither for budget files nor for the workbench
    leads: bool = False  # listed before inherited options
    is_advanced: bool = False  # listed by --help-all only
    is_hidden: bool = False  # listed nowhere
    key: str = ""  # in a budget file, where it is not the name of the field
    label: str = ""  # in the workbench
    example: str = ""  # in the workbench
    labels: tuple[str, ...] = ()  # of the choices, in the workbench
    offered: tuple[str, ...] = ()  # values that the workbench shows as check boxes
    is_folded: bool = False  # the workbench shows it among the rarer settings


class NoOptions(Struct, frozen=True):
    """Of a verb that takes no options from a request."""


class OptionField(NamedTuple):
    """A field of an options type."""

    name: str
    opt: Opt
    kind: Kind
    is_many: bool  # holds a tuple, and the option may be repeated
    default: Any

    @property
    def key(self) -> str:
        """Its name in a budget file."""
        return self.opt.key or self.name

    @property
    def is_shared(self) -> bool:
        """True if budget files and the workbench have the option, too."""
        return not (self.opt.is_local or self.opt.is_file or self.opt.is_hidden)

    def parsed(self, text: str) -> tuple[Any, ...]:
        """Return the values that a text means; one, unless the parser splits it."""
        if self.kind == "choice":
            return (next(one for one in self.opt.choices if str(one) == text),)
        found = text if self.opt.parse is None else self.opt.parse(text)
        return tuple(found) if self.opt.parses_many else (found,)

    def words(self, value: Any) -> list[str]:
        """Return the option as it is typed, `--flag=value`, once for each value."""
        if value == self.default:
            return []
        if self.kind == "flag":
            return [self.opt.flag]
        return [
            f"{self.opt.flag}={self.opt.show(one)}" for one in (value if self.is_many else [value])
        ]


@cache
def option_fields(group: type[Struct]) -> tuple[OptionField, ...]:
    """Return the fields of an options type that are options, in order."""
    hints = get_type_hints(group, include_extras=True)
    names = group.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(group.__struct_defaults__), strict=False))
    return tuple(
        _field(name, hints[name], defaults[name])
        for name in names
        if get_origin(hints[name]) is Annotated
    )


def _field(name: str, hint: Any, default: Any) -> OptionField:
    held, *notes = get_args(hint)
    opt = next(one for one in notes if isinstance(one, Opt))
    is_union = get_origin(held) in (Union, types.UnionType)
    kinds = [one for one in (get_args(held) if is_union else (held,)) if one is not type(None)]
    kind: Kind = "text"
    if opt.choices:
        kind = "choice"
    elif bool in kinds:
        kind = "flag"
    elif opt.parse is None and int in kinds:
        kind = "number"
    return OptionField(name, opt, kind, get_origin(kinds[0]) is tuple, default)


def typed(value: Struct) -> list[str]:
    """Return the options that differ from their defaults, as they are typed."""
    return [
        word
        for field in option_fields(type(value))
        for word in field.words(getattr(value, field.name))
    ]


def flags_of(group: type[Struct]) -> set[str]:
    """Return every spelling of every option of a type."""
    return {
        word
        for one in option_fields(group)
        for word in (one.opt.flag, one.opt.short, *one.opt.aliases)
        if word
    }


def refuse_foreign(options: Struct, backend: str, *, lpai_only: Collection[str] = ()) -> None:
    """Refuse an option of the other backend that was given; `lpai_only` names inherited ones."""
    for field in option_fields(type(options)):
        own = field.opt.backend or ("lpai" if field.name in lpai_only else backend)
        if own != backend and getattr(options, field.name) != field.default:
            raise UsageError(f"{field.opt.flag} is for --backend {own}")
