"""Reports on a terminal: line breaks, colour, and outputs without either."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnmem.cli.screen import BAD, GOOD, UNSURE, broken_line, fitted, shown, wish

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b["
WORDS = ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "TERM", "COLUMNS"]
BINARY = "examples/small_htp.bin"
QUICK = ("inspect", "examples/small_lpai.bin")  # the quickest report


def environment(**chosen: str) -> dict[str, str]:
    """Return the environment without variables about colour."""
    kept = {key: value for key, value in os.environ.items() if key not in WORDS}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", **chosen}


def terminal(*words: str, columns: int = 80, chosen: dict[str, str] | None = None) -> str:
    """Return what the program writes to a terminal of this width."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "qnnmem", *words]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**(chosen or {})),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux raises this when the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    child.wait()
    os.close(ours)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def piped(*words: str, **chosen: str) -> str:
    """Return what the program writes to a pipe."""
    command = [sys.executable, "-m", "qnnmem", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**chosen), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def plain(text: str) -> str:
    """Return the text without colour codes."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def test_a_terminal_gets_colour_and_short_lines() -> None:
    """On a terminal the verdict is green, headings are bold, and lines fit the width."""
    text = terminal("fit", BINARY, "-v")
    assert text.startswith(f"{ESCAPE}1;{GOOD}mfits SM8650: ")
    assert f"{ESCAPE}1mlimit  " in text
    assert f"{ESCAPE}2mlimit measured: " in text
    assert max(map(len, plain(text).split("\n"))) <= 80


def test_a_pipe_gets_whole_lines_without_colour() -> None:
    """A pipe gets no colour and no line breaks."""
    text = piped("fit", BINARY, "-v")
    assert ESCAPE not in text
    assert max(map(len, text.split("\n"))) > 100


@pytest.mark.parametrize(
    ("words", "chosen", "coloured"),
    [
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
        ([], {"CLICOLOR": "0"}, False),
        (["--color", "never"], {}, False),
        (["--color=never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "auto"], {}, True),
    ],
)
def test_a_terminal_with_a_wish(words: list[str], chosen: dict[str, str], coloured: bool) -> None:
    """--color wins over variables, NO_COLOR over FORCE_COLOR, and variables over the terminal."""
    assert (ESCAPE in terminal(*QUICK, *words, chosen=chosen)) == coloured


@pytest.mark.parametrize(
    ("words", "chosen", "coloured"),
    [
        (["--color", "always"], {}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        (["--json", "--color", "always"], {"FORCE_COLOR": "1"}, False),
        (["--format", "json"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_a_pipe_with_a_wish(words: list[str], chosen: dict[str, str], coloured: bool) -> None:
    """A pipe may request colour; JSON never has colour, and lines stay whole."""
    text = piped("explain", "1002", *words, **chosen)
    assert (ESCAPE in text) == coloured
    assert max(map(len, plain(text).split("\n"))) > 100


def test_the_option_may_stand_before_the_verb() -> None:
    """`--color` works before the verb, too; the option after the verb wins."""
    assert ESCAPE in piped("--color", "always", *QUICK)
    assert ESCAPE not in piped("--color", "always", *QUICK, "--color", "never")


def test_help_has_bold_titles_where_there_is_colour() -> None:
    """Help has bold titles under the same rules as a report."""
    assert terminal("--help").startswith(f"{ESCAPE}1mUsage: {ESCAPE}0m")
    assert ESCAPE not in terminal("--help", chosen={"NO_COLOR": "1"})
    assert ESCAPE not in piped("--help")


def test_json_on_a_terminal_is_left_alone() -> None:
    """JSON on a terminal equals JSON in a pipe."""
    assert terminal("explain", "1002", "--json") == piped("explain", "1002", "--json")


def test_a_file_gets_neither_colour_nor_breaks(tmp_path: Path) -> None:
    """An output file has neither colour nor line breaks."""
    file = tmp_path / "out.txt"
    terminal(*QUICK, "-o", str(file), "--color", "always")
    assert file.read_text("utf-8") == piped(*QUICK)


def test_a_sentence_ends_at_words_on_a_terminal() -> None:
    """Errors wrap between words on a terminal and are one line in a pipe."""
    words = ("provoke", "nonsense", "--soc", "SM8650", "-o", "x")
    broken = terminal(*words, columns=60)
    assert max(map(len, broken.split("\n"))) <= 60
    assert broken.split() == piped(*words).split()
    assert piped(*words).count("\n") == 1


@pytest.mark.parametrize("colour", [GOOD, BAD, UNSURE])
@pytest.mark.parametrize("window", [(0, 0, 0), (30, 30, 30), (255, 255, 255), (253, 246, 227)])
def test_colours_are_readable_on_light_and_dark(colour: str, window: tuple[int, ...]) -> None:
    """Each colour has a contrast of 3 to 1 on light and dark windows (WCAG 2.2, 1.4.3)."""
    number = int(colour.removeprefix("38;5;")) - 16
    steps = [0, 95, 135, 175, 215, 255]
    ink = (steps[number // 36], steps[number // 6 % 6], steps[number % 6])
    light, dark = sorted((luminance(ink), luminance(window)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(colour: tuple[int, ...]) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    parts = [one / 255 for one in colour]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


COMMAND = "qnnmem prepare model.onnx --dim N=1 --quantize int8 --calibration data -o model.bin"


@pytest.mark.parametrize(
    "line",
    [
        f"next: keep the binary: {COMMAND}",
        f"next: {COMMAND}",
        f"the model computes in floating point; quantize the model with {COMMAND}",
        f"it is a longer sentence that needs `{COMMAND}` to be repeated somewhere else, and more",
        f"  2. a remedy of many words that is to be tried with `{COMMAND}`",
    ],
)
@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_command_is_never_broken(line: str, width: int) -> None:
    """A command stays on one line at any width."""
    assert any(COMMAND in piece for piece in broken_line(line, width))


def test_a_step_is_a_command_without_options_too() -> None:
    """A command after `next:` is kept whole, even without options."""
    command = "qnnmem place " + " ".join(f"models/binary_{number}.bin" for number in range(9))
    assert broken_line(f"next: another order: {command}", 60)[-1] == f"  {command}"
    assert max(map(len, broken_line("qnnmem net-run " + "ends with 1 " * 9, 60))) <= 60


@pytest.mark.parametrize(
    ("line", "second"),
    [
        ("part      12  measured: " + "word " * 30, " " * 14 + "word word"),
        ("  1. " + "word " * 30, "     word"),
        ("note: " + "word " * 30, "      word"),
        ("folder/file.json:3:47: error: " + "word " * 30, "  word"),
        ("word " * 30, "word"),
    ],
)
def test_the_rest_of_a_line_stands_below_its_words(line: str, second: str) -> None:
    """Continuation lines align with the last column, the number, the label or the line."""
    assert broken_line(line, 60)[1].startswith(second)


@given(st.text(alphabet="ab `:.-qnem0\u00e9", max_size=300), st.integers(40, 120))
def test_breaking_loses_nothing(line: str, width: int) -> None:
    """Wrapping loses no character but spaces."""
    pieces = broken_line(line, width)
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")
    assert all(piece.strip() for piece in pieces) or not line.strip()


@given(st.text(max_size=400), st.booleans())
def test_colour_changes_no_text(text: str, first: bool) -> None:
    """A coloured report without its colour codes is the plain report."""
    bare = text.replace("\x1b", "")
    assert plain(shown(bare, None, colour=True, is_first=first)) == bare


@pytest.mark.parametrize(
    ("line", "colour"),
    [
        ("fits SM8650: 3 bytes to spare", GOOD),
        ("fits all 3 SoCs", GOOD),
        ("fits 1 of 3 SoCs, does not fit 2", UNSURE),
        ("fits 0 of 3 SoCs, does not fit 3", BAD),
        ("healthy: no known failure", GOOD),
        ("fine: a.json", GOOD),
        ("37 rules, 100 cases: all as expected", GOOD),
        ("does not fit SM8650: 3 bytes missing", BAD),
        ("graph stage: out of memory", BAD),
        ("4 errors, 1 warning in 2 files", BAD),
        ("1 error in 1 file", BAD),
        ("no batch fits SM8650: too large", BAD),
        ("cannot tell for SM8650: the library is missing", UNSURE),
        ("undecided: the graph stage failed", UNSURE),
        ("1 warning in 1 file", UNSURE),
    ],
)
def test_the_first_line_has_the_colour_of_its_answer(line: str, colour: str) -> None:
    """The first line is green for yes, red for no and amber for undecided."""
    assert shown(f"{line}\n", None, colour=True) == f"{ESCAPE}1;{colour}m{line}{ESCAPE}0m\n"


def test_pieces_of_a_line_are_put_together() -> None:
    """A report that is written in pieces wraps only at its lines."""

    class Window(io.StringIO):
        def isatty(self) -> bool:
            return True

    whole = "".join(fitted(["a verdict\nand ", "a line of words " * 9, "\n", "end"], Window()))
    lines = plain(whole).split("\n")
    assert (lines[0], lines[-1]) == ("a verdict", "end")
    assert max(map(len, lines)) <= 120


def test_the_option_decides_before_the_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """`always` and `never` override the environment; `auto` follows it."""
    for name in WORDS:
        monkeypatch.delenv(name, raising=False)
    assert wish() is None
    monkeypatch.setenv("NO_COLOR", "1")
    assert (wish("always"), wish("never"), wish("auto")) == (True, False, False)
