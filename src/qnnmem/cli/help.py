"""Help pages, and what all verbs share: examples, `--color` and `--help-all`."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from qnnmem.cli.examples import EXAMPLES
from qnnmem.cli.screen import wish
from qnnmem.text import plain_or_quoted, quote

_SHOWN = 40  # characters of a value in a message
# `fix` accepts several shapes for a tensor; `sweep` reports a repeated --vary with its own message.
_MAY_REPEAT = {("fix", "--shape"), ("sweep", "--vary")}
_ALL = "qnnmem.help_all"
# An option is shared if its help text begins as listed. `--help` lists only the names of shared
# options; `--help-all` and the page of all commands explain them.
SHARED = {
    "--color": "When to use colour; auto: only on a terminal.",
    "--dim": "For a model: fix a named free dimension",
    "--force": "Replace the output file if it exists.",
    "--format": "Format of the result.",
    "--help": "Show this message and exit.",
    "--help-all": "Show every option and the exit codes",
    "--json": "Short for --format json; its schema is ",
    "--output": "Write to this file instead of the terminal.",
    "--shape": "For a model: fix a tensor's shape",
    "--value": "For a model: make an input constant",
    "--verbose": "Show more detail.",
}


class StrictGroup(click.Group):
    """Command group that refuses a repeated single-value option before the verb runs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb and its arguments; raise UsageError for a repeated option."""
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _check_once(command, _context(command, name, ctx), words)
        return name, command, words


def _context(command: click.Command, name: str | None, parent: click.Context) -> click.Context:
    settings = command.context_settings
    return command.context_class(command, info_name=name, parent=parent, **settings)


def _check_once(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    try:
        values, _rest, order = command.make_parser(ctx).parse_args(list(words))
    except click.UsageError:
        return  # reported when the verb reads them
    for option, times in Counter(order).items():
        if isinstance(option, click.Option) and times > 1 and _takes_one(option):
            name = max(option.opts, key=len)
            often = "twice" if times == 2 else f"{times} times"
            raise click.UsageError(f"{name} takes one value and was given {often}", ctx)
    for option in dict.fromkeys(order):
        if isinstance(option, click.Option) and _is_assignment(option, command.name):
            _check_names(option, ctx, values[option.name or ""])


def _is_assignment(option: click.Option, verb: str | None) -> bool:
    """Return True for an option such as `--dim NAME=N`, which gives each name only one value."""
    is_pair = option.multiple and re.fullmatch(r"[A-Z]+=.*", option.metavar or "") is not None
    return is_pair and not any((verb, word) in _MAY_REPEAT for word in option.opts)


def _check_names(option: click.Option, ctx: click.Context, words: Sequence[str]) -> None:
    """Raise UsageError if an option gives the same name two values."""
    values: dict[str, str] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.rpartition("="))
        if values.setdefault(name, value) != value:
            both = " and ".join(plain_or_quoted(value, _SHOWN) for value in (values[name], value))
            start = f"{max(option.opts, key=len)} gives {quote(name)} two values"
            raise click.UsageError(f"{start}, {both}", ctx)


def _takes_one(option: click.Option) -> bool:
    return not (option.multiple or option.is_flag or option.count)


class _Formatter(click.HelpFormatter):
    """Help formatter that writes bold titles; click removes the escape codes if colour is off."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line with a bold title."""
        super().write_usage(prog, args, click.style(prefix or "Usage: ", bold=True))

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        self.write(f"{'':>{self.current_indent}}{click.style(f'{heading}:', bold=True)}\n")


class HelpOption(click.Option):
    """Option that `--help-all` lists, and that `--help` lists unless it is advanced."""

    def __init__(self, *args: Any, is_advanced: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_advanced = is_advanced

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the two columns of the help page; None for an omitted option."""
        if self.is_advanced and not ctx.meta.get(_ALL):
            return None
        return super().get_help_record(ctx)


class Page(click.Context):
    """Context of a command, with bold titles in its help and the requested colour."""

    formatter_class = _Formatter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.color is None:
            self.color = wish()

    def get_help(self) -> str:
        """Return help that fits on one screen, or the whole page for --help-all."""
        if isinstance(self.command, click.Group) and not isinstance(self.command, VerbGroup):
            return super().get_help()  # the list of all verbs
        is_whole = bool(self.meta.get(_ALL))
        formatter, command = self.make_formatter(), self.command
        command.format_usage(self, formatter)
        text = inspect.cleandoc(command.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text if is_whole else text.partition("\n\n")[0])
        examples = EXAMPLES.get(self.command_path.partition(" ")[2])
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in examples))
        if isinstance(command, VerbGroup):
            command.format_commands(self, formatter)
        self._write_options(formatter, is_whole=is_whole)
        return formatter.getvalue().rstrip("\n")

    def _write_options(self, formatter: click.HelpFormatter, *, is_whole: bool) -> None:
        options = [p for p in self.command.get_params(self) if isinstance(p, click.Option)]
        own = [option for option in options if is_whole or not is_shared(option)]
        records = [record for option in own if (record := option.get_help_record(self))]
        if records:
            with formatter.section("Options"):
                formatter.write_dl(records)
        if not is_whole:
            shared = [max(option.opts, key=len) for option in options if is_shared(option)]
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Shared options: {', '.join(shared)}.")


def is_shared(option: click.Option) -> bool:
    """Return True if an option means the same in all commands."""
    name = max(option.opts, key=len)
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    if name == "--format" and set(choices) != {"text", "json"}:
        return False
    return name in SHARED and (option.help or "").startswith(SHARED[name])


class VerbGroup(StrictGroup):
    """Verb with sub-verbs; its help lists each sub-verb with a whole sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-verbs."""
        rows = [(name, verb.get_short_help_str(1000)) for name, verb in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def help_all_option() -> click.Option:
    """Return the option that shows the whole help page."""
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show every option and the exit codes, and exit.",
    )


def _show_all(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def color_option() -> click.Option:
    """Return the option that switches colour on and off."""
    return click.Option(
        ["--color"],
        type=click.Choice(["auto", "always", "never"]),
        is_eager=True,
        expose_value=False,
        callback=_choose,
        help="When to use colour; auto: only on a terminal.  [default: auto]",
    )


def _choose(context: click.Context, _option: click.Parameter, choice: str | None) -> None:
    if choice is not None:
        context.color = wish(choice)
