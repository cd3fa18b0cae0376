"""All verbs of the command line; each is imported on first use."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Iterator
from importlib import import_module

import click

from qnnmem.cli.help import Page, StrictGroup, color_option
from qnnmem.version import __version__

# Sections of `qnnmem --help`.
SECTIONS = {
    "Plan a model's memory": {
        "plan": "Plan a model's memory; show where each byte goes.",
        "prepare": "Make a context binary with every offset fixed.",
        "context-binary-generator": "Make a context binary with the SDK tool's flags.",
        "inspect": "Show what a context binary contains.",
        "fix": "Change a model until it fits; results stay equal.",
        "check": "Check a project's models against its budgets.",
    },
    "LPAI, without a device": {
        "net-run": "Run a context binary as qnn-net-run does.",
        "check-client": "Find which LPAI rules a C or C++ program breaks.",
        "config": "Write a correct pair of LPAI config files.",
        "lint": "Find errors in LPAI config files.",
        "lpai": "List and test LPAI rules; write a C client.",
    },
    "HTP, with the real library": {
        "fit": "Does a model fit a SoC, and by how many bytes?",
        "footprint": "Show a model's weights, IO, spill/fill and VTCM.",
        "qmem": "Compare raw and memhandle inputs and outputs.",
        "sweep": "Compile with many settings; find which still fit.",
        "validate": "Compare a model on the CPU and on HTP.",
        "place": "Which context binaries can be loaded together?",
        "llm": "Will a language model fit, and in how many shards?",
        "socs": "List SoCs with their VTCM and compile limit.",
        "htp-worker": "Let another machine use this one's HTP library.",
    },
    "Failures": {
        "doctor": "Find a logged failure's cause and memory shortage.",
        "watch": "Watch any QNN program; make its calls fail.",
        "explain": "Explain what an error code means in practice.",
        "kb": "Show what the doctor knows; add your own entries.",
        "provoke": "Make the real library fail, and save its log.",
    },
    "Results": {
        "report": "Write results as one HTML page.",
        "serve": "Open a workbench in the browser, on this machine.",
        "diff": "Compare two results or models, number by number.",
    },
    "Shell": {
        "completion": "Let your shell complete commands, options and files.",
    },
}
VERBS = tuple(name for section in SECTIONS.values() for name in section)
# Verbs that share a module; `qnnmem.options` uses the same module names.
_MODULES = {
    "prepare": ("inspect",),
    "gate": ("check", "diff"),
    "config": ("lint",),
    "programs": ("check-client", "watch"),
    "sdk_tools": ("net-run", "context-binary-generator"),
    "htp": (
        "fit",
        "footprint",
        "qmem",
        "sweep",
        "validate",
        "place",
        "llm",
        "socs",
        "provoke",
        "htp-worker",
    ),
    "kb": ("explain",),
    "page": ("report", "serve"),
}
_MODULE_OF = {verb: module for module, verbs in _MODULES.items() for verb in verbs}


class Verbs(UserDict[str, click.Command]):
    """All verbs by name; the module of a verb is imported when the verb is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in VERBS:
            raise KeyError(name)
        from qnnmem.cli.options import dress

        module = import_module(f"qnnmem.cli.{_MODULE_OF.get(name, name)}")
        return dress(getattr(module, name.replace("-", "_")))

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class VerbList(StrictGroup):
    """Command group that lists the verbs by purpose, without importing them."""

    context_class = Page

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of the list."""
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in verbs.items()])


@click.group(
    cls=VerbList,
    commands=Verbs(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="`qnnmem VERB --help` has examples for each verb.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def qnnmem() -> None:
    """Plan, measure and debug the memory of neural networks on Qualcomm QNN.

    Exit codes: 0 fits, 1 does not fit, 2 bad usage or unreadable input, 3 cannot tell, 4 not
    finished within the time limit.
    """


qnnmem.params.append(color_option())
# A request for help, not a mistake; click 8.1 prints the help itself.
_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)


def run() -> int:
    """Run the command line with click; return the exit code."""
    if "_QNNMEM_COMPLETE" in os.environ:
        import_module("qnnmem.cli.completion")  # completes more than click does
    try:
        result = qnnmem.main(prog_name="qnnmem", standalone_mode=False)
    except _NO_ARGUMENTS as exc:
        click.echo(exc.format_message(), color=exc.ctx.color if exc.ctx else None)
        return 0
    except click.Abort as exc:
        raise KeyboardInterrupt from exc
    return result if isinstance(result, int) else 0
