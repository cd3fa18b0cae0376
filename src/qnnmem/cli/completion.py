"""`qnnmem completion`: the script that lets a shell complete verbs, options, SoCs and files.

click provides the script and its protocol: the shell runs the program whenever the user asks for a
completion. This module adds names that click does not know (SoCs, knowledge base entries, LPAI
rules), and proposes only files that the verb reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

_VARIABLE = "_QNNMEM_COMPLETE"  # the name that click expects
_MOST = 200  # more names would be no help
# Suffixes of the files that each verb reads. Other verbs, and all options, accept any file.
_MODEL = (".onnx", ".tflite", ".dlc", ".eaix", ".csv")
_BINARY = (".bin", ".onnx")
_ENDINGS = {
    **dict.fromkeys(("plan", "prepare"), _MODEL),
    **dict.fromkeys(("inspect", "fit", "footprint", "qmem", "place"), _BINARY),
    "sweep": (".onnx",),
    "lint": (".json", ".conf"),
}
_PLAIN = re.compile(r"[\w./+@%~-]+")  # characters without a meaning for any shell


@click.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(shell: str) -> int:
    """Print a script that completes `qnnmem` commands in a shell.

    \b
    bash   echo 'eval "$(qnnmem completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(qnnmem completion zsh)"' >> ~/.zshrc    (below compinit)
    fish   qnnmem completion fish > ~/.config/fish/completions/qnnmem.fish

    Exit codes: 0 printed, 2 no such shell.
    """  # noqa: D301  click wants the character itself
    from qnnmem.cli.output import write
    from qnnmem.cli.verbs import qnnmem

    kind = next(shell_class for shell_class in _SHELLS if shell_class.name == shell)
    # BashComplete itself would start bash to check its version.
    script = ShellComplete.source(kind(qnnmem, {}, "qnnmem", _VARIABLE))
    write(script.strip() + "\n", None, force=False)
    return 0


class _Answers(ShellComplete):
    """Completions of a word, including SoCs, entries and rules, which click does not know."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return the completions of the typed word."""
        words = [word for word in args if word != "="]  # bash splits `--soc=SM8650` into words
        option, equal, value = incomplete.partition("=")
        if not (equal and option.startswith("--")):
            return self._answers(words, incomplete.removeprefix("="))
        # Shells other than bash keep `--option=value` as one word and replace the whole word.
        items = self._answers([*words, option], value)
        return [CompletionItem(f"{option}={item.value}") for item in items if item.type == "plain"]

    def _answers(self, words: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        completions = super().get_completions(words, incomplete)
        verb = next((word for word in words if not word.startswith("-")), "")
        last = words[-1] if words else ""
        if completions and completions[0].type == "file":
            # An option accepts any file; the verb's arguments have known suffixes.
            endings = () if last.startswith("-") else _ENDINGS.get(verb, ())
            return _files(incomplete, endings)
        if completions or incomplete.startswith("-"):
            return completions
        start = incomplete.lower()
        names = _names(verb, words, last)
        return [CompletionItem(name) for name in names if name.lower().startswith(start)]


def _names(verb: str, words: list[str], last: str) -> Iterable[str]:
    """Return the SoC, entry or rule names that can follow the typed words."""
    if last == "--soc" or verb == last == "socs":
        from qnnmem.targets.socs import socs

        return [soc.name for soc in socs() if soc.has_htp]
    if words[-2:] == ["kb", "show"]:
        from qnnmem.doctor.kb.knowledge import BUILT_IN, read_folder

        return [entry.id for entry in read_folder(BUILT_IN)[1]]
    if words[-2:] == ["lpai", "rules"]:
        from qnnmem.contract.rules import rules

        return rules()
    return ()


def _files(incomplete: str, endings: tuple[str, ...]) -> list[CompletionItem[Any]]:
    """Return matching folders and files, or an item that makes the shell list files."""
    shells_own = [CompletionItem(incomplete, type="file")]
    if not endings:
        return shells_own
    names = sorted(_listed(incomplete, endings))
    # Leave these cases to the shell: it quotes names, and adds no space after a completed folder.
    is_folder = len(names) == 1 and names[0].endswith("/")
    if not names or is_folder or len(names) > _MOST or not all(map(_PLAIN.fullmatch, names)):
        return shells_own
    return [CompletionItem(name) for name in names]


def _listed(incomplete: str, endings: tuple[str, ...]) -> Iterator[str]:
    folder, slash, name = incomplete.rpartition("/")
    try:
        entries = list(os.scandir(Path(folder + slash).expanduser()))
    except (OSError, RuntimeError):  # the folder or the home directory does not exist
        return
    for entry in entries:
        if not entry.name.startswith(name) or (entry.name.startswith(".") and not name):
            continue
        if entry.is_dir():
            yield f"{folder}{slash}{entry.name}/"
        elif entry.name.lower().endswith(endings):
            yield f"{folder}{slash}{entry.name}"


class _Bash(_Answers, BashComplete):
    """Completions in bash's format."""


class _Zsh(_Answers, ZshComplete):
    """Completions in zsh's format."""


class _Fish(_Answers, FishComplete):
    """Completions in fish's format."""


_SHELLS: tuple[type[ShellComplete], ...] = (_Bash, _Zsh, _Fish)
for _shell in _SHELLS:
    add_completion_class(_shell)
