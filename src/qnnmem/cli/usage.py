"""Usage errors as single sentences that say what to type instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from qnnmem.text import lazy_pattern, nearest, plain_or_quoted, quote, shorten

# By suffix: the likely verb if the user typed only a file.
_VERB_OF = {".log": "doctor", ".json": "lint", ".conf": "lint", ".bin": "inspect"}
_MODELS = (".onnx", ".tflite", ".dlc", ".eaix", ".csv")
_PROGRAM_VERBS = ("check-client", "watch")  # their arguments include a program with its own options
_CODE = lazy_pattern(r"-?(?:\d+|0x[\da-f]+)|QNN_\w+|AEE_\w+", re.I)
_GIVEN = lazy_pattern(r"'(?P<value>.*)' is not ", re.S)


def sentence(exc: click.ClickException) -> str:
    """Return the usage error in one line."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    if isinstance(exc, click.BadOptionUsage):
        name = max(exc.option_name.split(" / "), key=len)
        return f"{name} {'needs a value' if 'requires' in exc.message else 'takes no value'}"
    if context is not None and (words := _of_kind(exc, context)):
        return words
    # click puts each choice on its own line; join them to one sentence.
    return " ".join(exc.format_message().split())


def near(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest known word; empty if none is near."""
    bare = {option.lstrip("-"): option for option in known}
    closest = nearest(word.lstrip("-"), bare)
    return "" if closest is None else f"; did you mean {bare[closest]}?"


def _of_kind(exc: click.ClickException, context: click.Context) -> str:
    if isinstance(exc, click.MissingParameter) and exc.param is not None:
        return _missing(exc.param, context)
    if isinstance(exc, click.NoSuchOption):
        return _no_option(exc.option_name, context)
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        return _bad_value(exc, exc.param)
    name = getattr(exc, "command_name", None) or _quoted(exc.message, "No such command ")
    if name is not None:
        return _no_verb(name, context)
    return _too_many(exc.message, context)


def _missing(parameter: click.Parameter, context: click.Context) -> str:
    choices = _choices(parameter)
    if choices:
        return f"{_name(parameter)} is missing; it must be {choices}"
    return f"{_name(parameter)} is missing; {_ask(context, 'has examples')}"


def _no_option(name: str, context: click.Context) -> str:
    parameters = context.command.get_params(context)
    known = [spelling for parameter in parameters for spelling in parameter.opts]
    options = [spelling for spelling in known if spelling.startswith("-")]
    hint = near(name, options) or f"; {_ask(context, 'lists all')}"
    if context.info_name in _PROGRAM_VERBS:
        line = f"{context.command_path} -- PROGRAM {name}"
        hint += f"; write the program's own options after `--`: {line}"
    return f"{_there_is(context)} no option {plain_or_quoted(name)}{hint}"


def _bad_value(exc: click.BadParameter, parameter: click.Parameter) -> str:
    name, match = _name(parameter, short=True), _GIVEN.match(exc.message)
    value = None if match is None else match["value"]
    if isinstance(parameter.type, click.Choice) and value is not None:
        choices = [str(choice) for choice in parameter.type.choices]
        return f"{name} cannot be {quote(value)}; it must be {_list(choices)}{near(value, choices)}"
    if isinstance(parameter.type, click.IntRange):
        shown = exc.message.split(" is not ")[0].strip("'")
        return f"{name} cannot be {quote(shown)}; it must be {_range(parameter.type)}"
    return f"{name}: {' '.join(exc.message.split())}"


def _no_verb(name: str, context: click.Context) -> str:
    group = context.command
    if context.parent is None and Path(name).suffix.lower() in (*_VERB_OF, *_MODELS):
        verb = _VERB_OF.get(Path(name).suffix.lower(), "plan")
        return f"{quote(name)} is not a verb; the verb comes first: `qnnmem {verb} {_word(name)}`"
    if context.parent is None and _CODE.fullmatch(name):
        return f"{quote(name)} is not a verb; to learn what a code means: `qnnmem explain {name}`"
    known = [*group.commands, "--help", "--version"] if isinstance(group, click.Group) else []
    hint = near(name, known) or f"; {_ask(context, 'lists all')}"
    return f"{_there_is(context)} no verb {quote(name)}{hint}"


def _too_many(message: str, context: click.Context) -> str:
    extra = re.search(r"unexpected extra arguments? \((.*)\)", message, re.S)
    if extra is None:
        return ""
    parameters = context.command.get_params(context)
    words = " and ".join(_name(p) for p in parameters if isinstance(p, click.Argument))
    takes = f"takes only {words}" if words else "takes no arguments"
    return f"{context.info_name} {takes}; remove {quote(extra[1])}"


def _name(parameter: click.Parameter, *, short: bool = False) -> str:
    """Return the parameter in the format of the help: `--soc SOC` or `FILE`."""
    if isinstance(parameter, click.Argument):
        shown = parameter.metavar or (parameter.name or "").upper()
        return shown.strip("[].")
    name = max(parameter.opts, key=len)
    if short or (isinstance(parameter, click.Option) and parameter.is_flag) or _choices(parameter):
        return name
    return f"{name} {parameter.metavar or parameter.type.name.upper()}"


def _choices(parameter: click.Parameter) -> str:
    if not isinstance(parameter.type, click.Choice):
        return ""
    return _list([str(choice) for choice in parameter.type.choices])


def _range(kind: click.IntRange) -> str:
    if kind.max is None:
        return f"a whole number of at least {kind.min:,}"
    return f"a whole number from {kind.min:,} to {kind.max:,}"


def _list(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _there_is(context: click.Context) -> str:
    verb = context.command_path.partition(" ")[2]
    return f"{verb} has" if verb else "there is"


def _word(name: str) -> str:
    return shlex.quote(shorten(name, 200))


def _ask(context: click.Context, has: str) -> str:
    return f"`{context.command_path} --help` {has}"


def _quoted(message: str, before: str) -> str | None:
    match = re.match(rf"{before}'(.*?)'\.", message, re.S)
    return match[1] if match else None
