"""Click options: those of a type of `qnnmem.options`, and those about the output of a verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qnnmem.cli.help import HelpOption
from qnnmem.errors import UsageError
from qnnmem.options.option import Opt, OptionField, option_fields
from qnnmem.options.parsers import seconds
from qnnmem.text import shorten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from msgspec import Struct

# What a result that is a file is written as, where nobody says so.
_FORM_OF = {
    **{".json": "json", ".csv": "csv", ".h": "c", ".hpp": "c", ".md": "markdown"},
    **{".sarif": "sarif", ".html": "html", ".svg": "svg", ".txt": "text", ".xml": "junit"},
    **{".png": "png", ".perfetto": "perfetto", ".pftrace": "perfetto"},
}

F = TypeVar("F", bound=Callable[..., Any])


class OutputPath(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Where a result goes; `-` is standard output, as everywhere, for results that are text."""

    name = "path"

    def __init__(self, *, is_text: bool = True) -> None:
        self._is_text = is_text

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | None:
        """The path, or None for standard output."""
        if value == "-" and not self._is_text:
            self.fail("this result cannot be printed; a file of that name is ./-", param, ctx)
        return None if value == "-" else value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Any file: the shell lists them."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def _apply(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    """The command with the options, in the order they are listed."""
    for option in reversed(options):
        command = option(command)
    return command


def takes(group: type[Struct], name: str = "options") -> Callable[[F], F]:
    """Give a command the options of a type, and hand it one value of that type as `name`."""
    # The options of the verb itself go before those that it shares.
    fields = sorted(option_fields(group), key=lambda field: not field.opt.leads)

    def decorate(command: F) -> F:
        @wraps(command)
        def called(*words: Any, **given: Any) -> Any:
            chosen = {field.name: _held(field, given.pop(field.name)) for field in fields}
            return command(*words, **{name: group(**chosen)}, **given)

        return _apply(cast(F, called), tuple(map(_click_option, fields)))

    return decorate


def _held(field: OptionField, given: Any) -> Any:
    """Return the value of a field for what click parsed."""
    if given is None or not (field.opt.choices or field.opt.parses_many):
        return given
    if not field.is_many:
        return field.parsed(given)[0]
    if field.opt.parses_many:  # each text gave a tuple
        return tuple(value for several in given for value in several)
    return tuple(field.parsed(one)[0] for one in given)


def _click_option(field: OptionField) -> Callable[[F], F]:
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
        shown |= {"default": str(field.default) if opt.choices else field.default}
        shown["show_default"] = not opt.default
    return click.option(
        *filter(None, (opt.short, opt.flag, *opt.aliases)),
        field.name,
        cls=HelpOption,
        type=_click_type(field),
        help=_help(opt),
        is_advanced=opt.is_advanced,
        hidden=opt.is_hidden,
        **shown,
    )


def _click_type(field: OptionField) -> Any:
    opt = field.opt
    if opt.choices:
        return click.Choice([str(one) for one in opt.choices])
    if opt.parse is not None:
        return opt.parse
    if field.kind == "number":
        return click.IntRange(
            None if opt.ge is None else int(opt.ge), None if opt.le is None else int(opt.le)
        )
    return click.Path() if opt.is_file else None


def _help(opt: Opt) -> str:
    """Return the help text: whose option it is, what it does, what holds without it."""
    text = opt.help
    if opt.backend:
        first = text.partition(" ")[0]
        is_name = not first[1:].islower()  # such as SoC and VTCM
        text = f"{opt.backend}: {text if is_name else text[:1].lower() + text[1:]}"
    return f"{text}  [default: {opt.default}]" if opt.default else text


def seconds_option(default: float | None, note: str) -> Callable[[F], F]:
    """`--time-limit`, in seconds; without a default the note says what holds then."""
    return click.option(
        "--time-limit",
        type=seconds,
        metavar="S",
        default=default,
        show_default=default is not None,
        help=note,
    )


def form_options(
    schema: str,
    forms: Sequence[str] = ("text", "json"),
    note: str = "How the result is written.",
    *,
    to_file: bool = False,
) -> Callable[[F], F]:
    """`--format`, and `--json` as the short word for one of them.

    A command gets `as_json`; one that has more than two forms gets `form` instead. Where the result
    goes `to_file`, the suffix of that says the form if no option does.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def chosen(*words: Any, as_json: bool, form: str | None, **given: Any) -> Any:
            if as_json and form not in (None, "json"):
                raise UsageError(f"--json and --format {form} exclude each other")
            form = "json" if as_json else form
            if to_file:
                form = _by_suffix(given["output"], form, forms)
            form = form or forms[0]
            if len(forms) > 2:
                return command(*words, form=form, **given)
            return command(*words, as_json=form == "json", **given)

        default = f"{forms[0]}, or as the file of -o ends" if to_file else forms[0]
        return _apply(
            cast(F, chosen),
            (
                click.option(
                    "--format",
                    "form",
                    type=click.Choice(list(forms)),
                    help=f"{note}  [default: {default}]",
                ),
                click.option(
                    "--json",
                    "as_json",
                    is_flag=True,
                    help=f"Short for --format json; its schema is {schema}.",
                ),
            ),
        )

    return decorate


def form_of(name: str) -> str | None:
    """The form that the name of a file says by its suffix."""
    return _FORM_OF.get(Path(name).suffix.lower())


def _by_suffix(output: str | None, form: str | None, forms: Sequence[str]) -> str | None:
    """The form that the name of the file says; what it says in vain is told."""
    said = None if output is None else form_of(output)
    if output is not None and said is None and form is None and Path(output).suffix:
        _note_suffix(output, forms)
    if said is None or said == form or (said, form) == ("json", "perfetto"):  # which is JSON
        return form
    if form is None and said in forms:
        return said
    from qnnmem.cli.stderr import note

    note(f"note: {shorten(str(output), 200)} gets {form or forms[0]}, whatever its suffix says")
    return form


def _note_suffix(output: str, forms: Sequence[str]) -> None:
    """Says what a file gets whose suffix is no form."""
    from qnnmem.cli.stderr import note

    known = {form: suffix for suffix, form in reversed(_FORM_OF.items())}
    suffixes = ", ".join(known[form] for form in forms if form in known)
    suffix = Path(output).suffix
    name = shorten(output, 200)
    note(f"note: {name} gets {forms[0]}, {shorten(suffix, 20)} is no form; there are {suffixes}")


def result_options(schema: str, forms: Sequence[str] = ("text", "json")) -> Callable[[F], F]:
    """The options that say in which form and where a result goes."""
    return lambda command: form_options(schema, forms, to_file=True)(output_options(command))


def output_options(command: F) -> F:
    """The options that say where a result goes."""
    note = "Write to this file instead of the terminal."
    where = click.option("-o", "--output", type=OutputPath(), help=note)
    return _apply(command, (where, force_option))


def force_option(command: F) -> F:
    """Whether a file that is there may go."""
    note = "Replace the output file if it exists."
    return click.option("--force", is_flag=True, help=note)(command)


def verbose_option(command: F) -> F:
    """Whether the short answer is enough."""
    return click.option("-v", "--verbose", is_flag=True, help="Show the details, too.")(command)
