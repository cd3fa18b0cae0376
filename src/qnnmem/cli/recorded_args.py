"""Record the typed arguments, for the follow-up commands in a result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qnnmem.errors import Setting
    from qnnmem.verbs import ProgressListener, VerbCall

_TYPED = "qnnmem.typed"
# Options about presentation: they never change the answer.
_SHOWN = {"form", "as_json", "output", "force", "verbose", "color"}


class RecordingCommand(click.Command):
    """Command that stores its arguments as text before they are parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments and record them."""
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, args)


def recorded_args(verb: str = "") -> tuple[str, ...]:
    """Return the typed options that affect the result and that `verb` also accepts.

    Each option is one word, `--option=value`. Without `verb`, all options of the running command
    are accepted.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None or _TYPED not in ctx.meta:
        return ()
    taken = _spellings(_command(verb) if verb else ctx.command)
    texts, _files, _order = ctx.command.make_parser(ctx).parse_args(list(ctx.meta[_TYPED]))
    words: list[str] = []
    for option in ctx.command.params:
        if not isinstance(option, click.Option) or option.name in _SHOWN:
            continue
        name = max(option.opts, key=len)
        if option.name in texts and name in taken:
            words += _words(name, option, texts[option.name])
    return tuple(words)


def _words(name: str, option: click.Option, texts: Any) -> list[str]:
    if option.is_flag:
        return [name]
    return [f"{name}={text}" for text in (texts if option.multiple else [texts])]


def _spellings(command: click.Command) -> set[str]:
    return {spelling for option in command.params for spelling in option.opts}


def _command(verb: str) -> click.Command:
    from qnnmem.cli.verbs import qnnmem

    return qnnmem.commands[verb]


def verb_call(listener: ProgressListener) -> VerbCall:
    """Return the running command as a VerbCall with this listener, the typed words and options."""
    from qnnmem.verbs import VerbCall

    context = click.get_current_context(silent=True)
    flags = None if context is None else frozenset(_spellings(context.command))
    return VerbCall(listener, tuple(sys.argv[1:]), flags)


def retry_command(words: Sequence[str], settings: Sequence[Setting]) -> str:
    """Return the typed command with these settings added or replaced."""
    from qnnmem.errors import Setting
    from qnnmem.flags import flag, flag_word
    from qnnmem.report.shell import shell_line

    flags = {flag(Setting(setting.name)) for setting in settings}
    new = list(dict.fromkeys(map(flag_word, settings)))
    replaced = {word.rpartition("=")[0] for word in new}
    kept = [word for word in _joined(words, flags) if word.rpartition("=")[0] not in replaced]
    # Words after two dashes are not options.
    end = kept.index("--") if "--" in kept else len(kept)
    return shell_line(["qnnmem", *kept[:end], *new, *kept[end:]])


def _joined(words: Sequence[str], flags: set[str]) -> Iterator[str]:
    """Yield the words of a command; each option in `flags` becomes one word with its value."""
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word in flags else None
        yield word if value is None else f"{word}={value}"
