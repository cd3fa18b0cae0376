"""Mistakes in arguments: one sentence each, with the likely intention."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from command_line import every_verb, exit_code, run, sentence

from qnnmem.cli.verbs import qnnmem

VERBS = every_verb()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pln", "there is no verb 'pln'; did you mean plan?"),
        ("frobnicate", "there is no verb 'frobnicate'; `qnnmem --help` lists all"),
        ("help", "there is no verb 'help'; did you mean --help?"),
        ("kb sho", "kb has no verb 'sho'; did you mean show?"),
        ("lpai rulez", "lpai has no verb 'rulez'; did you mean rules?"),
        ("m.onnx", "'m.onnx' is not a verb; the verb comes first: `qnnmem plan m.onnx`"),
        ("a.log", "'a.log' is not a verb; the verb comes first: `qnnmem doctor a.log`"),
        ("1002", "'1002' is not a verb; to learn what a code means: `qnnmem explain 1002`"),
        ("--foo", "there is no option --foo; `qnnmem --help` lists all"),
        ("fit x --bugdet pd=1", "fit has no option --bugdet; did you mean --budget?"),
        ("kb list --cuase x", "kb list has no option --cuase; did you mean --cause?"),
        ("fit", "FILE is missing; `qnnmem fit --help` has examples"),
        ("doctor --json", "PATH is missing; `qnnmem doctor --help` has examples"),
        ("kb show", "ID is missing; `qnnmem kb show --help` has examples"),
        ("sweep x", "--vary NAME=A,B is missing; `qnnmem sweep --help` has examples"),
        ("config --backend moon -o x", "--backend cannot be 'moon'; it must be lpai"),
        (
            "provoke --soc SM8650",
            "KIND is missing; it must be graph-limit, op-over-vtcm, pd-full, host-memory or "
            "bad-binary",
        ),
        (
            "provoke pd-ful --soc SM8650 -o x",
            "KIND cannot be 'pd-ful'; it must be graph-limit, op-over-vtcm, pd-full, host-memory "
            "or bad-binary; did you mean pd-full?",
        ),
        (
            "fit x --precision fp32",
            "--precision cannot be 'fp32'; it must be fp16, int8 or w8a16",
        ),
        ("fit x --try 99", "--try cannot be '99'; it must be a whole number from 0 to 20"),
        ("fit x --try many", "--try cannot be 'many'; it must be a whole number from 0 to 20"),
        ("fit x --soc", "--soc needs a value"),
        ("fit x --load=3", "--load takes no value"),
        ("footprint x y", "footprint takes only FILE; remove 'y'"),
        ("socs a b c", "socs takes only NAME; remove 'b c'"),
        ("lpai choices x", "choices takes no arguments; remove 'x'"),
        ("fit x --color blue", "--color cannot be 'blue'; it must be auto, always or never"),
        ("fit x --json --format text", "--json and --format text cannot be combined"),
        ("footprint x --soc SM8650 --soc=SM8750", "--soc takes one value and was given twice"),
        ("plan x -o a -o b --output c", "--output takes one value and was given 3 times"),
        (
            "sweep x --soc 57 --vary soc=SM8650,SM8750",
            "a sweep covers one SoC; for several, use `qnnmem fit MODEL --soc SM8650 --soc SM8750`",
        ),
        ("plan x --dim N=1 --dim N=2", "--dim gives 'N' two values, 1 and 2"),
        ("fit x --shape x=1x4 --shape=x=2x4", "--shape gives 'x' two values, 1x4 and 2x4"),
        ("report x --value a=1 --value b=1 --value a=2", "--value gives 'a' two values, 1 and 2"),
        ("fix x --state h=a --state h=b -o y", "--state gives 'h' two values, a and b"),
        ("kb list --cause a --cause b", "--cause takes one value and was given twice"),
        ("prepare x --soc 57 -o y --soc 57", "--soc takes one value and was given twice"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, said: str) -> None:
    """A mistake gives exit code 2 and one sentence that says what to type."""
    done = run(*words.split())
    assert (sentence(done), exit_code(done), done.stdout) == (said, 2, "")


def test_a_strange_word_is_quoted() -> None:
    """A mistyped word is quoted in one printable line of less than 400 characters."""
    for word in ("a\nb", "\x1b[31mred", "x" * 5000, "--\u202ered", "--a\nb"):
        said = sentence(run(word))
        assert said.isprintable()
        assert len(said) < 400


@pytest.mark.parametrize("words", sorted(VERBS.keys() - {"explain"}))  # explain reads -12 as a code
def test_every_verb_answers_its_own_mistakes(words: str) -> None:
    """An unknown option is reported with its verb."""
    said = sentence(run(*words.split(), "--no-such-option-at-all"))
    missing = f"{words} has no option --no-such-option-at-all; "
    rest = said.removeprefix(f"{missing}`qnnmem {words} --help` lists all")
    command = f"qnnmem {words} -- PROGRAM --no-such-option-at-all"
    program = f"; write the program's own options after `--`: {command}"
    assert rest == (program if words in {"watch", "check-client"} else "")


def test_every_choice_is_named_when_it_is_wrong() -> None:
    """An invalid choice is refused with a list of all valid choices, for every verb."""
    for words, command in VERBS.items():
        for option in command.params:
            choices = getattr(option.type, "choices", ())
            if not choices or not option.opts[0].startswith("--"):
                continue
            said = sentence(run(*words.split(), option.opts[0], "no-such-choice"))
            assert said.startswith(f"{option.opts[-1]} cannot be 'no-such-choice'; it must be "), (
                words
            )
            assert all(str(choice) in said for choice in choices)


def test_files_must_be_named() -> None:
    """A verb without FILE exits with 2, so that an empty script variable does not pass."""
    for name in ("plan", "fit", "lint", "doctor", "prepare", "place", "inspect", "footprint"):
        assert name in VERBS
        done = subprocess.run(
            [sys.executable, "-m", "qnnmem", name], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_long_value_is_quoted_and_cut_in_the_message() -> None:
    """A value over 40 characters is quoted and shortened in the message."""

    def said(value: str) -> str:
        return sentence(run("plan", "x", "--dim", f"N={value}", "--dim", "N=2"))

    assert f"values, {'1' * 40} and 2" in said("1" * 40)
    assert f"values, '{'1' * 41}' and 2" in said("1" * 41)
    assert "1" * 999 not in said("1" * 999)


def test_a_list_may_repeat_what_looks_like_a_name() -> None:
    """`--kb a=1 --kb a=2` is accepted, as the values of --kb are paths without names."""
    said = sentence(run("doctor", "x", "--kb", "a=1", "--kb", "a=2"))
    assert "two values" not in said


def test_completion_refuses_no_repeated_option() -> None:
    """Completion accepts a repeated option, as the line is unfinished."""
    context = click.Context(qnnmem, resilient_parsing=True)
    words = ["plan", "x", "--align", "1", "--align", "2"]
    name, command, rest = qnnmem.resolve_command(context, words)
    assert (name, rest) == ("plan", words[1:])
    assert command is not None
    assert qnnmem.resolve_command(context, ["no-such-verb"])[1] is None
    with pytest.raises(click.UsageError, match="was given twice"):
        qnnmem.resolve_command(click.Context(qnnmem), words)
