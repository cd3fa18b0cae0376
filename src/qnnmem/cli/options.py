"""What option texts mean: `name=value` pairs, shapes, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qnnmem.errors import UsageError
from qnnmem.text import shorten
from qnnmem.units import Bytes, parse_size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.inputs import InputValue

_MAX_DIM = 1 << 40
_FILES = (".npy", ".raw")  # what a value that is a file ends with, if it has no @
_INTEGER = r"[+-]?[0-9]{1,20}"
_FLOAT = r"(?i)[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(e[+-]?[0-9]{1,4})?"
_LOOKED_AT = 200  # characters of what may be meant otherwise; nobody types more
# How other tools write shapes: 1x3, 1,3, 1*3, [1, 3].
_SEPARATOR = r"[xX\u00d7*,]"
_BRACKETS = r"[\[(](.*?),?[\])]"
# `name:value` and `name value`, which are meant for `name=value`.
_COLON = r"(?P<name>[^\s=]+?)\s*[:\s]\s*(?P<value>[\w.,@\u00d7*\[\]()-]+)"
_SEVERAL = r"[\w.:/-]+=[\dxX]+(?:[,;\s]+[\w.:/-]*[A-Za-z_][\w.:/-]*=[\dxX]+)+"
_NEXT = r"[,;\s]+(?=[\w.:/-]*=)"
# What a result that is a file is written as, where nobody says so.
_FORM_OF = {
    **{".json": "json", ".csv": "csv", ".h": "c", ".hpp": "c", ".md": "markdown"},
    **{".sarif": "sarif", ".html": "html", ".svg": "svg", ".txt": "text", ".xml": "junit"},
    **{".png": "png", ".perfetto": "perfetto", ".pftrace": "perfetto"},
}

F = TypeVar("F", bound=Callable[..., Any])


def pair(text: str, form: str = "name=value", example: str = "") -> tuple[str, str]:
    """Both sides of `name=value`; the name may itself hold `=`, the last one splits."""
    left, _, right = text.rpartition("=")
    if not (left and right):
        raise UsageError(f"'{text}' is not of the form {form}{_meant(text, example)}")
    return left, right


def _meant(text: str, example: str) -> str:
    """The right form of what was most likely meant, else an example of it."""
    if not example:
        return ""
    option, _, _rest = example.partition(" ")
    found = re.fullmatch(_COLON, text.strip()[:_LOOKED_AT])
    if found is not None and ("shape" not in option or re.search(_SEPARATOR, found["value"])):
        return f"; did you mean {option} {found['name']}={found['value']}?"
    return f"; one word with =, e.g. {example}"


def _one_at_a_time(text: str, option: str) -> None:
    """Refuses `a=1,b=2`, which would be one odd name."""
    if len(text) <= _LOOKED_AT and re.fullmatch(_SEVERAL, text):
        words = " ".join(f"{option} {one.strip()}" for one in re.split(_NEXT, text))
        raise UsageError(f"one at a time: {words}")


def dimension(text: str) -> tuple[str, int]:
    """`batch=1`."""
    _one_at_a_time(text, "--dim")
    name, value = pair(text, "dimension=number", "--dim batch=1")
    return name, whole_number(value)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`input=1x3x224x224`, also `input=1,3,224,224` and `input=[1, 3, 224, 224]`; `t=scalar`."""
    _one_at_a_time(text, "--shape")
    name, value = pair(text, "tensor=1x3x224x224", "--shape x=1x3x224x224")
    if value.strip() in ("scalar", "[]", "()"):
        return name, ()
    bare = re.sub(_BRACKETS, r"\1", value.strip())
    try:
        return name, tuple(whole_number(part.strip()) for part in re.split(_SEPARATOR, bare))
    except UsageError as exc:
        raise UsageError(f"'{text}' is not of the form tensor=1x3x224x224: {exc}") from None


def state(text: str) -> tuple[str, str]:
    """`h_in=h_out`."""
    return pair(text, "input=output", "--state h_in=h_out")


def budget(text: str) -> tuple[str, Bytes]:
    """`scratch=256K`."""
    name, size = pair(text, "pool=size", "--budget scratch=256K")
    if "," in name:
        raise UsageError("one budget at a time: repeat --budget for another pool")
    return name, parse_size(size)


def seconds(text: str) -> float:
    """`10` or `0.5`: at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:  # nan fails every comparison
        raise UsageError(f"'{text}' is not a number of seconds from 0 to 86400")
    return value


def whole_number(text: str) -> int:
    """A number from 0 to 2^40."""
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= _MAX_DIM):
        raise UsageError(f"'{text}' is not a number from 0 to {_MAX_DIM}")
    return int(text)


def value(text: str) -> tuple[str, InputValue]:
    """`sr=16000`, `ids=1,2,3`, `flag=true`, `mask=@mask.npy`."""
    name, given = pair(text, "input=value", "--value sr=16000")
    if given.startswith("@") or given.lower().endswith(_FILES):
        return name, Path(given.removeprefix("@"))
    bare = re.sub(_BRACKETS, r"\1", given.strip())
    numbers = tuple(_number(part.strip(), text) for part in bare.split(","))
    return name, numbers if "," in bare or bare != given.strip() else numbers[0]


def _number(word: str, text: str) -> bool | int | float:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if re.fullmatch(_INTEGER, word):
        return int(word)
    if re.fullmatch(_FLOAT, word):
        return float(word)
    raise UsageError(
        f"'{text}' gives no value; one is a number, numbers such as 1,2,3, true, false, or a file "
        "such as @mask.npy"
    )


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


def shape_options(command: F) -> F:
    """The options that fix what a model leaves open."""
    return _apply(
        command,
        (
            click.option(
                "--dim",
                "dims",
                multiple=True,
                type=dimension,
                metavar="NAME=N",
                help="Model: fix a named free dimension, e.g. batch=1.",
            ),
            click.option(
                "--shape",
                "shapes",
                multiple=True,
                type=shape,
                metavar="TENSOR=AxB",
                help="Model: fix a tensor's shape, e.g. x=1x3x224x224.",
            ),
            click.option(
                "--value",
                "values",
                multiple=True,
                type=value,
                metavar="INPUT=VALUE",
                help="Model: make an input a constant, e.g. sr=16000, ids=1,2,3, flag=true or "
                "mask=@mask.npy; branches that cannot be taken then are left out.",
            ),
        ),
    )


def model_options(command: F) -> F:
    """The options that say which model is meant: free sizes and what is state."""
    keep = click.option(
        "--state",
        "states",
        multiple=True,
        type=state,
        metavar="IN=OUT",
        help="Keep an output as an input of the next run, e.g. h_in=h_out, in persistent memory.",
    )
    return shape_options(keep(command))


def compile_options(command: F) -> F:
    """The options of a compile for HTP that every verb about models has."""
    return shape_options(
        _apply(
            command,
            (
                click.option(
                    "--precision",
                    type=click.Choice(["fp16", "int8", "w8a16"]),
                    default="fp16",
                    show_default=True,
                    help="Model: what floats become; int8 and w8a16 quantize on the way.",
                ),
                time_limit_option,
            ),
        )
    )


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


def time_limit_option(command: F) -> F:
    """How long the real library may take for one model, from reading it to loading the result."""
    note = "Seconds that one answer may take: reading, compiling and loading a model, running it."
    return seconds_option(600.0, note)(command)


def seed_option(note: str) -> Callable[[F], F]:
    """`--seed` of what is made up."""
    return click.option(
        "--seed", type=click.IntRange(0, 1 << 31), default=0, show_default=True, help=note
    )


def layout_options(align: str) -> Callable[[F], F]:
    """The options that say how the buffers of a model lie; `align` says what holds without one."""
    return lambda command: _apply(
        command,
        (
            click.option(
                "--io",
                type=click.Choice(["inside", "outside"]),
                default="inside",
                show_default=True,
                help="Inputs and outputs inside scratch or in the application's buffers.",
            ),
            click.option(
                "--align",
                type=click.IntRange(1, 1 << 20),
                help=f"Alignment of start and size in bytes.  [default: {align}]",
            ),
            click.option(
                "--bits",
                type=click.Choice(["8", "16"]),
                help="Width of floating-point elements once quantized.  [default: as in the model]",
            ),
        ),
    )


def plan_options(command: F) -> F:
    """All that says what is planned and how, for every verb that plans a model by the way."""
    return _apply(
        command,
        (
            model_options,
            layout_options("64; for a CSV as the file says"),
            click.option(
                "--inplace",
                is_flag=True,
                help="Let element-wise ops write over an input that dies there.",
            ),
            click.option(
                "--reorder",
                is_flag=True,
                help="Look for an operator order that needs less memory.",
            ),
            click.option(
                "--budget",
                "budgets",
                multiple=True,
                type=budget,
                metavar="POOL=SIZE",
                help="Bytes that scratch, persistent, io, constants or tcm may take, e.g. "
                "scratch=256K.",
            ),
            click.option(
                "--capacity",
                type=parse_size,
                metavar="SIZE",
                help="For a CSV: does everything fit this many bytes?",
            ),
            seconds_option(10.0, "Seconds to search for a lower plan."),
            seed_option("Varies the search; the same seed gives the same plan."),
        ),
    )


def made_for_option(command: F) -> F:
    """The SoC that a compiled or a plain model is billed for."""
    return click.option(
        "--soc",
        metavar="SOC",
        help="Name, id or marketing name as in `qnnmem socs`.  [default: the SoC it was made for]",
    )(command)


def vtcm_option(command: F) -> F:
    """How much VTCM a graph gets."""
    return click.option(
        "--vtcm-mb",
        type=click.IntRange(1, 64),
        metavar="N",
        help="Model: VTCM of the graph in MiB.  [default: all that the SoC has]",
    )(command)


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


def trust_option(command: F) -> F:
    """Whether native code may be executed."""
    return click.option(
        "--trust",
        is_flag=True,
        help="FILE may be a model library (.so) of QNN's tools: its code is executed, in a child "
        "process with limits, which are no sandbox.",
    )(command)


def cache_option(command: F) -> F:
    """Where finished results are kept."""
    return click.option(
        "--cache",
        type=click.Path(),
        metavar="DIR",
        help="Folder of finished results.  [default: qnnmem in the user's cache folder]",
    )(command)


def chosen_compile(
    dims: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    values: tuple[tuple[str, InputValue], ...],
    precision: str,
    time_limit: float,
    vtcm_mb: int | None = None,
) -> CompileOptions:
    """What the options of a compile for HTP say."""
    from qnnmem.htp.compile import CompileOptions, HtpPrecision

    return CompileOptions(
        precision=HtpPrecision(precision),
        vtcm_mb=vtcm_mb,
        dims=dict(dims),
        shapes=dict(shapes),
        values=dict(values),
        time_limit_s=time_limit,
    )
