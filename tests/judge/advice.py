"""Commands that the program recommends: extracted from its output and run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
from command_line import Answer, every_verb

from qnnmem.cli import outcome
from qnnmem.errors import QnnMemError, Setting, Words
from qnnmem.flags import flag_word

SOURCE = Path(outcome.__file__).parents[1]
PLACEHOLDER = re.compile(r"=?(VALUE|AxB|MODEL|NAME|ID|VERB|FILE)\b|=N?x?N(x|$)|\.\.\.|…")


@dataclass(frozen=True)
class Advice:
    """A recommended command, with the sentence that promises its effect."""

    kind: str  # next, try, cure or named
    why: str
    words: tuple[str, ...]
    source: Answer

    @property
    def template(self) -> tuple[str, str, str]:
        """The verb, the kind and the sentence, without names and numbers."""
        bare = re.sub(r"'[^']*'|\S*[/.]\S*|[\d,]*\d[\d,]*", "N", self.why)
        options = " ".join(sorted(word for word in self.words if word.startswith("-")))
        return self.source.words[0], self.kind, f"{bare} | {self.words[0]} {options}"


def advice_in(answer: Answer) -> Iterator[Advice]:
    """Yield each runnable command that an answer recommends."""
    for line in answer.out.splitlines():
        found = re.match(r"next: (?:(.*?): )?(?=qnnmem )(.*)", line)
        if found:
            for command in found[2].split(" && "):
                yield _advice("next", found[1] or "", command, answer)
    for line in answer.err.splitlines():
        if line.startswith("try: "):
            yield _advice("try", answer.sentence, line.removeprefix("try: "), answer)
    for command in re.findall(r"`(qnnmem [^`]+)`", answer.err):
        if not PLACEHOLDER.search(command):
            yield _advice("named", answer.sentence, _about(command, answer), answer)
    yield from _cures(answer)


def _advice(kind: str, why: str, command: str, answer: Answer) -> Advice:
    program, *words = shlex.split(command)
    assert program == "qnnmem", command
    return Advice(kind, why, tuple(words), answer)


def _about(command: str, answer: Answer) -> str:
    """Return a named verb with the file of the command that failed."""
    verb = command.split()[1]
    needs_file = any(
        isinstance(one, click.Argument) and one.required for one in every_verb()[verb].params
    )
    files = [word for word in answer.words[1:] if Path(word).is_file()]
    if len(command.split()) > 2 or not needs_file:
        return command
    return shlex.join(["qnnmem", verb, *files[:1]]) if files else "qnnmem --help"


def _cures(answer: Answer) -> Iterator[Advice]:
    """Yield the failed command once for each option that its error recommends."""
    error = answer.error
    if not isinstance(error, QnnMemError):
        return
    options = {
        name: one
        for one in every_verb()[answer.words[0]].params
        for name in (*one.opts, *one.secondary_opts)
    }
    for before, setting in _settings(error):
        word = flag_word(setting)
        option = word.partition("=")[0]
        assert option in options or " " in before, f"{option} is no option: {answer.text}"
        if option not in options or PLACEHOLDER.search(word):
            continue
        takes_none = getattr(options[option], "is_flag", False)
        if before.rstrip().endswith(("without", "remove")):
            kept = tuple(one for one in answer.words if one.partition("=")[0] != option)
            if kept != answer.words:
                yield Advice("cure", f"without {option}: {answer.sentence}", kept, answer)
        elif takes_none or setting.value:
            kept = _without(answer.words, option)
            yield Advice("cure", f"{word}: {answer.sentence}", (*kept, word), answer)


def _without(words: Sequence[str], option: str) -> tuple[str, ...]:
    if option in ("--dim", "--shape", "--value", "--state", "--budget"):
        return tuple(words)  # these options may repeat
    found, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            found.append(word)
    return tuple(found)


def _settings(error: QnnMemError) -> Iterator[tuple[str, Setting]]:
    """Yield each setting that an error recommends, with the text before it."""
    for words, is_cure in ((error.cure, True), (error.what, False)):
        parts: Words = words if isinstance(words, tuple) else (words,)
        before = ""
        for part in parts:
            if isinstance(part, Setting):
                if is_cure or before.endswith(("e.g. ", "try ", "with ")):
                    yield before, part
            else:
                before = part


# --- what the source can print ----------------------------------------------------------------


def templates() -> dict[str, str]:
    """Return each reason for a recommended command in the source, with its file."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "next_line(" not in text and '"next: ' not in text:
            continue
        tree = ast.parse(text)
        scope = _Scope(tree)
        for node in ast.walk(tree):
            for template in scope.reasons(node):
                found[template] = path.relative_to(SOURCE).as_posix()
    return found


class _Scope:
    """Names and functions of a module, to resolve a reason to its text."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        self.values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.values.setdefault(target.id, []).append(node.value)

    def reasons(self, node: ast.AST) -> Iterator[str]:
        """Yield the texts of a reason, with `{}` for values that are known only at run time."""
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next_line":
            if not (isinstance(node.args[0], ast.Constant) and not node.args[0].value):
                yield from self.texts(node.args[0])
        elif isinstance(node, ast.JoinedStr):
            for text in self.texts(node):
                if text.startswith("next: ") and not text.startswith("next: {}"):
                    yield text.removeprefix("next: ").partition(": ")[0]
        elif isinstance(node, ast.FunctionDef) and "Command" in ast.unparse(
            node.returns or ast.Constant("")
        ):
            for inner in ast.walk(node):
                pair = isinstance(inner, ast.Tuple) and len(inner.elts) == 2
                if pair and isinstance(inner.elts[1], ast.Name | ast.List | ast.Call):  # type: ignore[attr-defined]
                    yield from self.texts(inner.elts[0])  # type: ignore[attr-defined]

    def texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return each text that an expression can have."""
        if depth > 4:
            return []
        if isinstance(node, ast.Constant):
            return [str(node.value)] if isinstance(node.value, str) else []
        if isinstance(node, ast.IfExp):
            return [*self.texts(node.body, depth + 1), *self.texts(node.orelse, depth + 1)]
        if isinstance(node, ast.JoinedStr):
            parts = [self._part(part, depth) for part in node.values]
            return ["".join(choice) for choice in product(*parts)]
        if isinstance(node, ast.Name):
            return [
                t for value in self.values.get(node.id, []) for t in self.texts(value, depth + 1)
            ]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = self.functions.get(node.func.id)
            returns = [] if function is None else ast.walk(function)
            return [
                text
                for one in returns
                if isinstance(one, ast.Return) and one.value is not None
                for text in self.texts(one.value, depth + 1)
            ]
        return []

    def _part(self, node: ast.expr, depth: int) -> list[str]:
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        assert isinstance(node, ast.FormattedValue)
        is_name = isinstance(node.value, ast.Name)
        return (self.texts(node.value, depth + 1) if is_name else []) or ["{}"]


def named_options() -> dict[str, str]:
    """Return each text in the source that names an option as a setting, with its file."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "Setting(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple) and any(map(_option, node.elts)):
                parts = [_option(one) or _literal(one) for one in node.elts]
                template = "".join(parts)
                if re.search(r"[a-z]{3}", re.sub(r"--[\w-]+|{}", "", template)):
                    found[template] = path.relative_to(SOURCE).as_posix()
    return found


def _option(node: ast.expr) -> str:
    """Return the option that a `Setting` in the source stands for; empty for other nodes."""
    if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Setting"):
        return ""
    name = node.args[0]
    if not isinstance(name, ast.Constant):
        return "--{}"
    word = flag_word(Setting(str(name.value)))
    return f"{word} {{}}" if len(node.args) > 1 else word


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
    return "{}"


def matches(template: str, why: str) -> bool:
    """True if a template can produce this printed reason."""
    pattern = ".*".join(map(re.escape, template.split("{}")))
    return re.fullmatch(pattern, why) is not None


def unreached(found: Mapping[str, str], whys: Sequence[str]) -> dict[str, str]:
    """Return the templates that no printed reason matches."""
    return {
        template: where
        for template, where in found.items()
        if not any(matches(template, why) for why in whys)
    }
