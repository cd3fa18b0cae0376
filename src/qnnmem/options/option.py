"""Definition of an option: flag, help, bounds and parser, attached to the field of its value."""

from __future__ import annotations

import types
from collections import ChainMap
from collections.abc import Callable
from functools import cache
from inspect import get_annotations
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
)

from msgspec import Struct
from msgspec.structs import replace

from qnnmem.errors import UsageError

Kind = Literal["flag", "number", "choice", "text"]
Choice = str | int


class Opt(Struct, frozen=True):
    """Definition of an option without its value, for the `Annotated` type of an options field.

    By default, an option belongs to the command line, to budget files and to the workbench.
    `is_local` and `is_file` restrict it to the command line.
    """

    flag: str
    help: str
    short: str = ""  # short flag, e.g. `-o`
    aliases: tuple[str, ...] = ()  # other accepted spellings, shown nowhere
    metavar: str = ""
    ge: float | None = None
    le: float | None = None
    choices: tuple[Choice, ...] = ()
    parse: Callable[[str], Any] | None = None  # parses the text of one value
    item: Callable[[object, str], Any] | None = None  # reads one named value of a TOML table
    show: Callable[[Any], str] = str  # writes one value in the syntax of the option
    parses_many: bool = False  # `parse` returns several values, as for `a=1,b=2`
    is_soc: bool = False  # name of a SoC, which the workbench lists
    in_bytes: bool = False  # a budget file may write the number as "4K"
    bare: str = ""  # value of the option if it is typed without a value
    default: str = ""  # description of a computed default
    required: bool = False
    backend: Literal["", "lpai", "htp"] = ""  # the option is refused for the other backend
    for_buffers: bool = False  # also for a buffer CSV, which has neither ops nor constants
    is_file: bool = False  # name of a file or folder on this machine
    is_local: bool = False  # not in budget files and not in the workbench
    leads: bool = False  # listed before inherited options
    is_advanced: bool = False  # listed only by --help-all
    is_hidden: bool = False  # not listed
    key: str = ""  # name in a budget file, if different from the field's name
    label: str = ""  # label in the workbench
    example: str = ""  # example in the workbench
    labels: tuple[str, ...] = ()  # labels of the choices in the workbench
    offered: tuple[str, ...] = ()  # well-known values: check boxes, and shell completion
    is_folded: bool = False  # among the rarer settings in the workbench
    of_model: bool = False  # the help says that it is for a model, not for a binary
    writes: Literal["", "text", "file"] = ""  # output path; "text" may also go to standard output
    envvar: str = ""  # environment variable with the value

    @property
    def text(self) -> str:
        """Return the help text; a prefix names the kind of model that the option applies to."""
        whose = "For a model" if self.of_model else self.backend
        if not whose:
            return self.help
        first = self.help.partition(" ")[0]
        is_name = not first[1:].islower()  # a name such as SoC or VTCM
        return f"{whose}: {self.help if is_name else self.help[:1].lower() + self.help[1:]}"

    def but(self, text: str = "", **changes: Any) -> Opt:
        """Return a copy of the option with changed fields, for use in another options type."""
        return replace(self, **{"help": text or self.help, **changes})


class Options(Struct, frozen=True, kw_only=True):
    """Base of every options type; itself the type of verbs without options."""

    # Inherited options that this type marks as for LPAI only, or as rare.
    lpai_only: ClassVar[tuple[str, ...]] = ()
    rare: ClassVar[tuple[str, ...]] = ()


class OptionField(NamedTuple):
    """Field of an options type: its option, kind of value, and default."""

    name: str
    opt: Opt
    kind: Kind
    is_many: bool  # holds a tuple; the option may be repeated
    default: Any

    @property
    def key(self) -> str:
        """Name of the option in a budget file."""
        return self.opt.key or self.name

    @property
    def is_shared(self) -> bool:
        """True if budget files and the workbench also have the option."""
        return not (self.opt.is_local or self.opt.is_file or self.opt.is_hidden)

    def parsed(self, text: str) -> tuple[Any, ...]:
        """Return the values parsed from a string; several if the parser splits the string."""
        if self.kind == "choice":
            return (next(choice for choice in self.opt.choices if str(choice) == text),)
        value = text if self.opt.parse is None else self.opt.parse(text)
        return tuple(value) if self.opt.parses_many else (value,)

    def words(self, value: Any) -> list[str]:
        """Return the option as words, one `--flag=value` for each value; empty for the default."""
        if value == self.default:
            return []
        if self.kind == "flag":
            return [self.opt.flag]
        items = value if self.is_many else [value]
        return [f"{self.opt.flag}={self.opt.show(item)}" for item in items]


@cache
def option_fields(group: type[Options]) -> tuple[OptionField, ...]:
    """Return the options of a type, inherited ones first."""
    hints = ChainMap(*(_own_hints(base) for base in group.__mro__))
    names = group.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(group.__struct_defaults__), strict=False))
    return tuple(_field(group, name, hints[name], defaults[name]) for name in names)


@cache
def _own_hints(group: type) -> dict[str, Any]:
    """Return the types of the fields that a class itself declares, without inherited fields."""
    return get_annotations(group, eval_str=True)


def _field(group: type[Options], name: str, hint: Any, default: Any) -> OptionField:
    held, opt = get_args(hint)
    if name in group.lpai_only:
        opt = replace(opt, backend="lpai")
    if name in group.rare:
        opt = replace(opt, is_advanced=True)
    is_union = get_origin(held) in (Union, types.UnionType)
    parts = get_args(held) if is_union else (held,)
    kinds = [part for part in parts if part is not types.NoneType]
    kind: Kind = "text"
    if opt.choices:
        kind = "choice"
    elif bool in kinds:
        kind = "flag"
    elif opt.parse is None and {int, float} & set(kinds):
        kind = "number"
    return OptionField(name, opt, kind, get_origin(kinds[0]) is tuple, default)


def typed(value: Options) -> list[str]:
    """Return the options that differ from their defaults, as words for a command line."""
    return [
        word
        for field in option_fields(type(value))
        for word in field.words(getattr(value, field.name))
    ]


def flags_of(group: type[Options]) -> set[str]:
    """Return every spelling of every option of a type."""
    return {
        word
        for field in option_fields(group)
        for word in (field.opt.flag, field.opt.short, *field.opt.aliases)
        if word
    }


def refuse_foreign(options: Options, backend: str) -> None:
    """Raise UsageError if an option of the other backend was given."""
    for field in option_fields(type(options)):
        own = field.opt.backend or backend
        if own != backend and getattr(options, field.name) != field.default:
            raise UsageError(f"{field.opt.flag} is for --backend {own}")
