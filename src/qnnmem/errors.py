"""Every error this package raises, in one tree.

QnnMemError                  exit code 2
├── UsageError               a request that contradicts the model or itself
│   ├── NotInTime            a time limit that ended before the answer was ready
│   ├── FloatModel           a floating-point model where LPAI's 8 or 16 bits are needed
│   └── MissingSoc           a model that must be compiled, and no SoC is chosen
├── LoadError                a file that cannot be read
│   ├── FreeDimensions       a model whose shapes are not all fixed
│   ├── NotCompiled          a model that holds no context binary
│   ├── OutOfTime            exit code 4: a model that takes longer to read than allowed
│   └── WrongSize            exit code 1: an input file whose size is not the tensor's
├── OutputError              a result that cannot be written
├── ProgramError             a prepared program that cannot be opened or run
├── QnnError                 exit code 1: a call that failed as in QNN, with the QNN error code
├── WorkerError              a remote worker of the HTP library that cannot serve a request
│   └── WorkerLost           the connection to a remote worker is lost
├── TcmFatal                 exit code 134: an error that crashes the whole system on a device
├── CannotTell               exit code 3: something needed for an answer is missing
│   └── NoCompiler           the real HTP library is not installed
└── Fault                    internal, always re-raised as a user-facing error
    ├── ChildFailed          a child process could not answer a request
    ├── Damaged              inconsistent bytes
    ├── WrongVersion         a binary of another format version
    ├── NotHtp               a context binary of another backend
    └── Refused              the QNN library answered with an error

An error says what happened, where, and what helps. A cure that is an argument of a call is a
`Setting`: Python code uses its name, the command line writes it as an option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from qnnmem.text import lazy_pattern, printable

if TYPE_CHECKING:
    from qnnmem.finding import Finding


# The command line starts with this module. A dataclass would take 2 ms of that.
class Setting(NamedTuple):
    """An argument by its Python name, with or without a value."""

    name: str
    value: str = ""

    def __str__(self) -> str:
        if self.value and self.name in _MAPPINGS:
            return in_python([self])
        return f"{self.name} {self.value}" if self.value else self.name


def in_python(settings: Sequence[Setting]) -> str:
    """Return settings as keyword arguments: `dims={'batch': 1, 'n': 2}`."""
    items: dict[str, list[str]] = {}
    for setting in settings:
        items.setdefault(setting.name, []).append(_item(setting))
    return ", ".join(f"{name}={{{', '.join(listed)}}}" for name, listed in items.items())


def _item(setting: Setting) -> str:
    """Return a setting as one item of a mapping."""
    key, _, value = setting.value.rpartition("=")
    if setting.name == "shapes":
        sizes = [] if value == "scalar" else value.split("x")
        value = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    elif setting.name == "states" or value.startswith("@"):
        value = repr(value.removeprefix("@"))
    elif setting.name == "values":
        value = {"true": "True", "false": "False"}.get(value, value)
        value = f"[{value.replace(',', ', ')}]" if "," in value else value
    return f"{key!r}: {value}"


# Settings that are mappings in Python and repeatable options on the command line.
_MAPPINGS = ("dims", "shapes", "values", "states")
Words: TypeAlias = str | tuple[str | Setting, ...]


def join_words(words: Words, word: Callable[[Setting], str] = str) -> str:
    """Join texts and settings into one text; `word` formats each setting."""
    parts = (words,) if isinstance(words, str) else words
    if word is str:
        parts = _joined_mappings(parts)
    return "".join(word(part) if isinstance(part, Setting) else part for part in parts)


def _joined_mappings(parts: Sequence[str | Setting]) -> tuple[str | Setting, ...]:
    """Return the parts of a message; settings next to each other become arguments of one call."""
    joined: list[str | Setting] = []
    run: list[Setting] = []
    for part in (*parts, ""):
        if isinstance(part, Setting) and part.value and part.name in _MAPPINGS:
            run.append(part)
        elif not (run and part == " "):
            if run:
                joined.append(in_python(run))
                run = []
            joined.append(part)
    return tuple(joined)


def chain_words(*texts: Words) -> tuple[str | Setting, ...]:
    """Return several texts joined into one; the settings inside stay unformatted."""
    parts = ((text,) if isinstance(text, str) else text for text in texts)
    return tuple(part for text in parts for part in text if part)


def spaced(settings: Sequence[Setting]) -> tuple[str | Setting, ...]:
    """Return settings separated by spaces."""
    return tuple(part for setting in settings for part in (" ", setting))[1:]


# If a message begins with one of these verbs, the place becomes its subject: `m.onnx is empty`.
_VERB = lazy_pattern(
    "(?:arranges|cannot|contains|describes|does|ends|has|have|holds|is|leaves|lacks|means|must"
    "|names|needs|reads|returns|says|states|stores|takes|unpacks|uses|would) "
)


def _after_place(place: str, what: str) -> str:
    """Return a place and a message as one sentence: `m.onnx is empty`, `m.csv: no buffers`."""
    between = " " if _VERB.match(what) else ": "
    return f"{place}{between}{what}" if place else what


class QnnMemError(Exception):
    """Base of all errors that this package raises on purpose; the text is one sentence."""

    exit_code = 2

    def __init__(self, what: Words, *, where: Path | str = "", cure: Words = "") -> None:
        self.what, self.where, self.cure = what, str(where), cure
        super().__init__(self.sentence())

    def sentence(self, word: Callable[[Setting], str] = str) -> str:
        """Return place, problem and cure as one sentence; `word` formats the settings in it."""
        return _after_place(printable(self.where), self._what_and_cure(word))

    def without_place(self, word: Callable[[Setting], str] = str) -> str:
        """Return the sentence without the place; a place that is the subject becomes `the file`."""
        return _after_place("the file", self._what_and_cure(word)).removeprefix("the file: ")

    def _what_and_cure(self, word: Callable[[Setting], str]) -> str:
        cure = f"; {join_words(self.cure, word)}" if self.cure else ""
        return f"{join_words(self.what, word)}{cure}"


class UsageError(QnnMemError):
    """A request contradicts the model or another part of the request."""


class NotInTime(UsageError):
    """An answer would take longer than allowed."""


class FloatModel(UsageError):
    """A model computes in floating point, which LPAI does not support."""

    def __init__(
        self, path: Path | str, what: str, *, quantizable: bool, obstacle: Words = ""
    ) -> None:
        self.path, self.quantizable = str(path), quantizable
        here = (Setting("quantize", "int8"), " quantizes it first")
        way = here if quantizable else obstacle or "quantize it before"
        self.settings = tuple(word for word in way if isinstance(word, Setting))
        desk = (", or add ", Setting("allow_float"), " for an experiment on the host")
        super().__init__(what, where=path, cure=chain_words(way, desk))


class MissingSoc(UsageError):
    """A model must be compiled, and no SoC is chosen."""

    settings = (Setting("soc", "SM8650"),)  # a common SoC

    def __init__(self, path: Path | str = "", what: Words = "must be compiled first") -> None:
        cure = chain_words("choose a SoC, e.g. ", self.settings)
        super().__init__(what, where=path, cure=cure)


class LoadError(QnnMemError):
    """A file cannot be read."""

    stage = ""  # pass of the ONNX loader that refused the file, if any

    def __init__(
        self,
        path: Path | str,
        reason: Words,
        *,
        cure: Words = "",
        settings: Sequence[Setting] = (),
    ) -> None:
        self.path = str(path)
        self.settings = tuple(settings)  # settings that let the same request continue
        super().__init__(reason, where=path, cure=cure)

    @property
    def reason(self) -> str:
        """Return the problem of the file and its cure, without the path."""
        return self.without_place()


class FreeDimensions(LoadError):
    """A model has open dimensions, but planning needs numbers."""

    def __init__(
        self,
        path: Path | str,
        free: Sequence[str],
        settings: Sequence[Setting] = (),
        *,
        untried: Words = "",
        others: Sequence[Words] = (),  # alternative combinations of settings
    ) -> None:
        self.free, self.untried = tuple(free), join_words(untried)
        how = "fix them; an untested guess is " if untried else "fix them, e.g. with "
        super().__init__(
            path,
            f"these dimensions are open: {', '.join(free)}",
            cure=chain_words(
                *(how, spaced(settings), *((": ", untried) if untried else ())),
                *(
                    word
                    for other in others
                    for word in ("; these values also worked together: ", other)
                ),
            )
            if settings
            else "",
            settings=settings,
        )


class NotCompiled(LoadError):
    """A model holds no context binary."""


class OutOfTime(LoadError):
    """Reading a model takes longer than allowed."""

    exit_code = 4


class WrongSize(LoadError):
    """An input file and its tensor differ in size; the message is that of qnn-net-run."""

    exit_code = 1

    def __init__(self, path: Path | str, size: int, expected: int) -> None:
        self.size, self.expected = size, expected
        super().__init__(path, f"file size in bytes ({size}), should be equal to: {expected}")

    def sentence(self, word: Callable[[Setting], str] = str) -> str:
        """Return the error text that qnn-net-run prints."""
        return f"Input file {super().sentence(word)}"


class OutputError(QnnMemError):
    """A result cannot be written to its destination."""


class ProgramError(QnnMemError):
    """A program cannot be opened or run."""


class QnnError(QnnMemError):
    """A call failed with a QNN error code; the finding holds the reason."""

    exit_code = 1

    def __init__(self, code: int, name: str, finding: Finding) -> None:
        self.code, self.finding = code, finding
        rule = f" [{finding.rule}]" if finding.rule else ""
        super().__init__(f"{name} ({code}){rule}: {finding.sentence}", cure=finding.cure)


class TcmFatal(QnnMemError):
    """There are more allocations than the TCM pool allows, which crashes a device."""

    exit_code = 134

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"TCM allocator limit of {limit} buffers exceeded")


class CannotTell(QnnMemError):
    """A library, a target or evidence needed for the answer is missing."""

    exit_code = 3


class NoCompiler(CannotTell):
    """The real HTP library is not installed, or does not exist for this platform."""

    def with_cure(self, more: Words) -> NoCompiler:
        """Return the error with an additional cure that needs no library."""
        return NoCompiler(self.what, where=self.where, cure=chain_words(self.cure, "; ", more))


class WorkerError(QnnMemError):
    """A remote worker of the HTP library cannot serve a request; the next request may work."""


class WorkerLost(WorkerError):
    """The connection to a remote worker is lost, and so is its current task."""


class Fault(QnnMemError):
    """Internal; always re-raised as a user-facing error."""


class ChildFailed(Fault):
    """A child process could not answer a request; the message says why."""


class ChildLost(ChildFailed):
    """A child process ended before it answered: it crashed, or ran out of memory or time."""


class Damaged(Fault):
    """Inconsistent bytes; `path` is a place such as `graphs[0].ops[3].inputs`."""

    def __init__(self, what: str, path: str = "") -> None:
        self.fault, self.path = what, path
        super().__init__(f"{path.lstrip('.')} {what}".strip())

    def inside(self, outer: str) -> Damaged:
        """Return the fault with its path extended by the enclosing place."""
        return Damaged(self.fault, f"{outer}{self.path}")


class WrongVersion(Fault):
    """A binary has another format version; the message is a clause about the binary."""


class NotHtp(Fault):
    """A context binary is valid but for another backend."""


class Refused(Fault):
    """The QNN library, or ONNX Runtime around this library, answered with an error."""

    def __init__(self, stage: str, sentence: str, code: int | None = None) -> None:
        self.stage, self.code = stage, code
        super().__init__(sentence)
