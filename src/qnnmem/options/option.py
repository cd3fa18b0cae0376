"""One option: its flag, help, bounds and parser, attached to the field that holds its value."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

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
    offered: tuple[
        str, ...
    ] = ()  # well-known values: check boxes, and words that a shell completes
    is_folded: bool = False  # the workbench shows it among the rarer settings
    of_model: bool = False  # the help says that it is for a model, not for a binary
    writes: Literal["", "text", "file"] = ""  # a path to write; text may go to standard output
    envvar: str = ""  # the environment variable that gives the value

    @property
    def text(self) -> str:
        """The help text, with whom the option is for."""
        whose = "Model" if self.of_model else self.backend
        if not whose:
            return self.help
        first = self.help.partition(" ")[0]
        is_name = not first[1:].islower()  # such as SoC and VTCM
        return f"{whose}: {self.help if is_name else self.help[:1].lower() + self.help[1:]}"

    def but(self, text: str = "", **changes: Any) -> Opt:
        """Return the same option as another group has it: with another help text, or default."""
        return replace(self, **{"help": text or self.help, **changes})


class Options(Struct, frozen=True, kw_only=True):
    """Base of every options type; by itself a verb without options."""

    # How a type has the options that it inherits.
    lpai_only: ClassVar[tuple[str, ...]] = ()
    rare: ClassVar[tuple[str, ...]] = ()


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
def option_fields(group: type[Options]) -> tuple[OptionField, ...]:
    """Return the options of a type, inherited ones first."""
    hints = get_type_hints(group, include_extras=True)
    names = group.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(group.__struct_defaults__), strict=False))
    return tuple(_field(group, name, hints[name], defaults[name]) for name in names)


def _field(group: type[Options], name: str, hint: Any, default: Any) -> OptionField:
    held, opt = get_args(hint)
    if name in group.lpai_only:
        opt = replace(opt, backend="lpai")
    if name in group.rare:
        opt = replace(opt, is_advanced=True)
    is_union = get_origin(held) in (Union, types.UnionType)
    kinds = [one for one in (get_args(held) if is_union else (held,)) if one is not type(None)]
    kind: Kind = "text"
    if opt.choices:
        kind = "choice"
    elif bool in kinds:
        kind = "flag"
    elif opt.parse is None and {int, float} & set(kinds):
        kind = "number"
    return OptionField(name, opt, kind, get_origin(kinds[0]) is tuple, default)


def typed(value: Options) -> list[str]:
    """Return the options that differ from their defaults, as they are typed."""
    return [
        word
        for field in option_fields(type(value))
        for word in field.words(getattr(value, field.name))
    ]


def flags_of(group: type[Options]) -> set[str]:
    """Return every spelling of every option of a type."""
    return {
        word
        for one in option_fields(group)
        for word in (one.opt.flag, one.opt.short, *one.opt.aliases)
        if word
    }


def refuse_foreign(options: Options, backend: str) -> None:
    """Refuse an option of the other backend that was given."""
    for field in option_fields(type(options)):
        own = field.opt.backend or backend
        if own != backend and getattr(options, field.name) != field.default:
            raise UsageError(f"{field.opt.flag} is for --backend {own}")
