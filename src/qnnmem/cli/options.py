"""Make click options from the types of `qnnmem.options`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qnnmem.cli.help import HelpOption, Page, color_option, help_all_option
from qnnmem.errors import UsageError
from qnnmem.options.option import Opt, OptionField, Options, option_fields
from qnnmem.options.shared import DetailedOptions, FormatOptions, ResultOptions
from qnnmem.text import shorten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from qnnmem.cli.output import Output

# Format of an output file by its suffix; an option for the format takes precedence.
_FORM_OF = {
    **{".json": "json", ".csv": "csv", ".h": "c", ".hpp": "c", ".md": "markdown"},
    **{".sarif": "sarif", ".html": "html", ".svg": "svg", ".txt": "text", ".xml": "junit"},
    **{".png": "png", ".perfetto": "perfetto", ".pftrace": "perfetto"},
}

_FIELDS = "qnnmem_fields"  # attribute of a command's function: its options, not yet made

F = TypeVar("F", bound=Callable[..., Any])


class OutputPath(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Path to write to; `-` means standard output, which only a text result can use."""

    name = "path"

    def __init__(self, *, is_text: bool = True) -> None:
        self._is_text = is_text

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | None:
        """Return the path, or None for standard output."""
        if value == "-" and not self._is_text:
            self.fail(
                "this result cannot be printed; to write to a file named -, use ./-", param, ctx
            )
        return None if value == "-" else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return an item that makes the shell list files."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def takes(group: type[Options]) -> Callable[[F], F]:
    """Return a decorator that adds the options of `group`; the command gets them as `options`."""

    def decorate(command: F) -> F:
        @wraps(command)
        def called(*words: Any, **given: Any) -> Any:
            return command(*words, options=group(**_chosen(option_fields(group), given)), **given)

        return _with_options(cast(F, called), partial(option_fields, group))

    return decorate


def shows(
    schema: str,
    forms: Sequence[str] = ("text", "json"),
    note: str = "",
    *,
    group: type[FormatOptions] = ResultOptions,
    by_suffix: bool = True,
    suffixes: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Return a decorator that adds the output options; the command gets an `Output`.

    If no option is given, the suffix of the output file selects the format. `suffixes` maps
    additional suffixes to formats that no option can select.
    """
    is_inferred = issubclass(group, ResultOptions) and by_suffix
    default = f"{forms[0]}, or from the suffix of -o" if is_inferred else forms[0]
    adapted: dict[str, dict[str, Any]] = {
        "form": {"text": note, "choices": tuple(forms), "default": default},
        "as_json": {"text": f"Short for --format json; its schema is {schema}."},
    }

    @cache
    def fields() -> tuple[OptionField, ...]:
        return tuple(
            field._replace(
                opt=field.opt.but(**adapted.get(field.name, {})),
                kind="choice" if field.name == "form" else field.kind,
            )
            for field in option_fields(group)
        )

    def decorate(command: F) -> F:
        @wraps(command)
        def called(*words: Any, **given: Any) -> Any:
            result = group(**_chosen(fields(), given))
            output = _output(result, forms, suffixes or {}, is_inferred=is_inferred)
            if output.path is not None:
                from qnnmem.atomic_file import check_replaceable

                check_replaceable(output.path, force=output.force)  # before the work starts
            return command(*words, output=output, **given)

        return _with_options(cast(F, called), fields)

    return decorate


detailed = partial(shows, group=DetailedOptions)
printed = partial(shows, group=FormatOptions)


def answered(refused: Mapping[str, str], ignored: Mapping[str, str]) -> Callable[[F], F]:
    """Return a decorator that adds the given flags of an SDK tool, to be refused or ignored."""
    kinds = (("Ignored here", ignored), ("Refused here", refused))
    rows = [(name, f"{kind}: {why}.") for kind, flags in kinds for name, why in flags.items()]

    def fields() -> list[OptionField]:
        opts = [
            (name, Opt(f"--{name}", text, metavar="VALUE", is_advanced=True)) for name, text in rows
        ]
        return [OptionField(name, opt, "text", False, None) for name, opt in opts]

    return lambda command: _with_options(command, fields)


def _output(
    options: FormatOptions, forms: Sequence[str], suffixes: Mapping[str, str], *, is_inferred: bool
) -> Output:
    from qnnmem.cli.output import Output

    form = options.form
    if options.as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} cannot be combined")
    form = "json" if options.as_json else form
    if not isinstance(options, ResultOptions):
        return Output(form or forms[0])
    path = None if options.output is None else Path(options.output)
    if path is not None and is_inferred and path.suffix in suffixes:
        form = form or suffixes[path.suffix]
    elif path is not None and is_inferred:
        form = _form_of_file(path, form, forms)
    verbose = isinstance(options, DetailedOptions) and options.verbose
    return Output(form or forms[0], path, options.force, verbose)


def _with_options(command: F, fields: Callable[[], Sequence[OptionField]]) -> F:
    """Note the options for `dress`."""
    vars(command)[_FIELDS] = (fields, *vars(command).get(_FIELDS, ()))
    return command


def dress(command: click.Command) -> click.Command:
    """Add all options and the help layout to a verb and its sub-verbs.

    A module has several verbs, and a run needs one: its options are made when it is looked up.
    """
    if command.context_class is Page:
        return command  # already processed
    command.context_class = Page
    for fields in vars(command.callback).get(_FIELDS, ()):
        # Options marked `leads` come first in the help.
        listed = sorted(fields(), key=lambda field: not field.opt.leads)
        command.params += map(_click_option, listed)
    command.params += (color_option(), help_all_option())
    for parameter in command.params:
        if isinstance(parameter.type, click.IntRange) and parameter.metavar is None:
            parameter.metavar = "N"
    if isinstance(command, click.Group):
        for verb in command.commands.values():
            dress(verb)
    return command


def _chosen(fields: Iterable[OptionField], values: dict[str, Any]) -> dict[str, Any]:
    """Remove the values of these options from `values`; return them converted, by field name."""
    return {field.name: _held(field, values.pop(field.name)) for field in fields}


def _held(field: OptionField, value: Any) -> Any:
    """Convert a value that click has parsed to the type of its option field."""
    if value is None or not (field.opt.choices or field.opt.parses_many):
        return value
    if not field.is_many:
        return field.parsed(value)[0]
    if field.opt.parses_many:  # each text was parsed to a tuple
        return tuple(value for several in value for value in several)
    return tuple(field.parsed(text)[0] for text in value)


def _click_option(field: OptionField) -> HelpOption:
    """Return the click option of a field."""
    opt = field.opt
    shown: dict[str, Any] = {"metavar": opt.metavar} if opt.metavar else {}
    if opt.bare:
        shown |= {"is_flag": False, "flag_value": opt.bare}
    if field.kind == "flag":
        shown = {"is_flag": True}
    elif field.is_many:
        shown |= {"multiple": True, "required": opt.required}
    elif opt.required:
        shown["required"] = True
    elif field.default is not None:
        is_text = opt.choices or (opt.parse is not None and not isinstance(field.default, float))
        shown |= {"default": opt.show(field.default) if is_text else field.default}
        shown["show_default"] = not opt.default
    if opt.offered:
        shown["shell_complete"] = partial(_starting, opt.offered)
    if opt.envvar:
        shown["envvar"] = opt.envvar
    return HelpOption(
        [*filter(None, (opt.short, opt.flag, *opt.aliases)), field.name],
        type=_click_type(field),
        help=f"{opt.text}  [default: {opt.default}]" if opt.default else opt.text,
        is_advanced=opt.is_advanced,
        hidden=opt.is_hidden,
        **shown,
    )


def _starting(
    known: Sequence[str], _context: click.Context, _option: click.Parameter, incomplete: str
) -> list[str]:
    """Return the well-known values that start with the typed text."""
    return [word for word in known if word.startswith(incomplete)]


def _click_type(field: OptionField) -> Any:
    opt = field.opt
    if opt.choices:
        return click.Choice([str(choice) for choice in opt.choices])
    if opt.parse is not None:
        return opt.parse
    if opt.writes:
        return OutputPath(is_text=opt.writes == "text")
    if field.kind == "number" and isinstance(field.default, float):
        return click.FloatRange(opt.ge, opt.le)
    if field.kind == "number":
        return click.IntRange(
            None if opt.ge is None else int(opt.ge), None if opt.le is None else int(opt.le)
        )
    return click.Path() if opt.is_file else None


def form_of(name: str | Path) -> str | None:
    """Return the format for the suffix of a file name; None if the suffix is unknown."""
    return _FORM_OF.get(Path(name).suffix.lower())


def _form_of_file(path: Path, form: str | None, forms: Sequence[str]) -> str | None:
    """Infer the format from the suffix; warn if an option disagrees."""
    from qnnmem.cli.streams import note

    inferred, name = form_of(path), shorten(str(path), 200)
    if inferred is None and form is None and path.suffix:
        known = {known: suffix for suffix, known in reversed(_FORM_OF.items())}
        suffixes = ", ".join(known[form_name] for form_name in forms if form_name in known)
        suffix = shorten(path.suffix, 20)
        note(
            f"note: {name} is written as {forms[0]}, because {suffix} is not a known suffix; "
            f"use {suffixes}"
        )
    is_trace = (inferred, form) == ("json", "perfetto")  # which is JSON
    if inferred is None or inferred == form or is_trace:
        return form
    if form is None and inferred in forms:
        return inferred
    note(f"note: {name} is written as {form or forms[0]}, despite its suffix")
    return form
