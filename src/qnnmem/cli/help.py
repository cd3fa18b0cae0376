"""Help pages, and what every verb has: examples, `--color` and `--help-all`."""

from __future__ import annotations

from typing import Any

import click

from qnnmem.cli.examples import EXAMPLES
from qnnmem.cli.screen import wish
from qnnmem.cli.strict_group import StrictGroup

_TITLE = "Examples"
_ALL = "qnnmem.help_all"


class _Formatter(click.HelpFormatter):
    """Help with bold titles; click removes the codes where there is no colour."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the first line."""
        super().write_usage(prog, args, click.style(prefix or "Usage: ", bold=True))

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        self.write(f"{'':>{self.current_indent}}{click.style(f'{heading}:', bold=True)}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; examples become a section whose lines stay whole."""
        title, _, lines = text.partition("\n")
        if title != _TITLE:
            super().write_text(text)
            return
        self.dedent()  # click moves in what stands below the options
        self.write_heading(title)
        self.write("".join(f"  {line}\n" for line in lines.split("\n")))
        self.indent()


class HelpOption(click.Option):
    """An option that `--help` leaves out and `--help-all` lists, if it is an advanced one."""

    def __init__(self, *args: Any, is_advanced: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_advanced = is_advanced

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the two columns of the help page."""
        if self.is_advanced and not ctx.meta.get(_ALL):
            return None
        return super().get_help_record(ctx)


class Page(click.Context):
    """A command's context: its help has bold titles, its colour is what was asked for."""

    formatter_class = _Formatter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.color is None:
            self.color = wish()


class VerbGroup(StrictGroup):
    """A verb that has verbs of its own, listed with whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        rows = [(name, verb.get_short_help_str(1000)) for name, verb in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def dress(command: click.Command, words: str) -> click.Command:
    """Give a verb and its sub-verbs what all have in common."""
    if command.context_class is Page:
        return command  # it was looked up before
    command.context_class = Page
    if words in EXAMPLES:
        command.epilog = "\n".join([_TITLE, *EXAMPLES[words]])
    has_advanced = any(isinstance(one, HelpOption) and one.is_advanced for one in command.params)
    command.params.append(color_option(is_advanced=has_advanced))
    if has_advanced:
        command.params.append(_help_all_option())
    for parameter in command.params:
        if isinstance(parameter.type, click.IntRange) and parameter.metavar is None:
            parameter.metavar = "N"
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            dress(verb, f"{words} {name}")
    return command


def _help_all_option() -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show the rarer options, too, and exit.",
    )


def _show_all(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def color_option(*, is_advanced: bool = False) -> click.Option:
    """Return the option that switches colour on and off."""
    return HelpOption(
        ["--color"],
        is_advanced=is_advanced,
        type=click.Choice(["auto", "always", "never"]),
        is_eager=True,
        expose_value=False,
        callback=_choose,
        help="Colour: on a terminal, always or never.  [default: auto]",
    )


def _choose(context: click.Context, _option: click.Parameter, choice: str | None) -> None:
    if choice is not None:
        context.color = wish(choice)
