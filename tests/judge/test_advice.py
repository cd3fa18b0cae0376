"""Each recommended command runs and does what its sentence promises."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import Answer, ask
from judge.advice import (
    Advice,
    advice_in,
    matches,
    named_options,
    templates,
    unreached,
)
from judge.judged_plan import numbers
from judge.situations import library_situations, situations, write_files

# Reasons that the situations here do not reach, each with the cause.
LIBRARY = "needs the real library, see library_situations"
PLACES = "needs the real library; which of the four is printed depends on what fits together"
NOT_REACHED = {
    "in folder {}": "a command of the vendor's tool, which is not here",
    "explain a rule": "check-client runs a compiled client; tests/client does",
    "keep the binary": LIBRARY,
    "show the bill of this file, without the library": LIBRARY,
    "change the model until it fits": LIBRARY,
    "compile it": LIBRARY,
    "compile with these settings": LIBRARY,
    "prepare the model for memhandle": LIBRARY,
    "check whether the contexts fit together": PLACES,
    "check whether the context fits alone": PLACES,
    "check whether the contexts fit together, turn {} of {}": PLACES,
    "check whether the context fits alone, turn {} of {}": PLACES,
}
PYTHON = "for callers from Python; the command line refuses such words before"
# Modules whose sentences name an option, but that the situations here do not print.
NOT_SEEN = {
    "doctor/fleet/executors.py": PYTHON,
    "doctor/follow.py": "a log that is followed does not end",
    "doctor/host/devices.py": "needs adb and a device",
    "htp/measure.py": LIBRARY,
    "htp/compile/compiled.py": LIBRARY,
    "htp/fit.py": LIBRARY,
    "verbs/fix.py": LIBRARY,
    "verbs/fix_log.py": "needs a log; tests/cli/test_fix_log.py has some",
    "htp/qmem/table.py": LIBRARY,
    "htp/llm/compare.py": "needs an exported language model that is not known; tests/htp has some",
    "deadline.py": "needs a model that takes long",
    "htp/compile/__init__.py": LIBRARY,
    "htp/compile_cache.py": "needs an account without a home",
    "lpai/net_run/device_child.py": "needs a run that dies; tests/lpai has some",
    "lpai/prepare_options.py": PYTHON,
    "planner/pools.py": PYTHON,
}
# Placeholder files: no command can read them.
HOLLOW = ("model.dlc", "libQnnLpai.so", "htp.bin")
STEPS = 4  # at most four refusals in sequence, each with its cure


@dataclass
class Followed:
    """Printed answers, their advice and the faults found by following the advice."""

    answers: list[Answer] = field(default_factory=list)
    advice: dict[tuple[str, str, str], Advice] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Return a file of each kind, and run the commands in the folder of these files."""
    here, made = Path.cwd(), tmp_path_factory.mktemp("advice")
    os.chdir(made)
    yield write_files(made)
    os.chdir(here)


@pytest.fixture(scope="module")
def followed(files: list[Path]) -> Followed:
    """Return the results of all commands that need no library."""
    return follow_all(situations(files))


def follow_all(commands: Iterable[tuple[str, ...]]) -> Followed:
    """Run each command, and follow each distinct piece of advice once."""
    found = Followed()
    for words in commands:
        answer = ask(*words)
        found.answers.append(answer)
        assert answer.code != 70, answer.text
        for advice in advice_in(answer):
            hollow = any(word in HOLLOW for word in advice.words)
            if not hollow and found.advice.setdefault(advice.template, advice) is advice:
                with only_files_of_before():
                    fault = follow(advice)
                if fault:
                    found.faults.append(f"{fault}\n{answer.text}")
    return found


class only_files_of_before:
    """Remove the files that a command wrote, so the next command finds the folder unchanged."""

    def __enter__(self) -> None:
        self.before = set(Path().rglob("*"))

    def __exit__(self, *_: object) -> None:
        for path in sorted(set(Path().rglob("*")) - self.before):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def follow(advice: Advice) -> str:
    """Run a recommended command and return the promise that it breaks; empty if it keeps all."""
    answer = ask(*advice.words)
    broken = {"next": broken_next, "named": broken_next}.get(advice.kind, broken_cure)
    fault = broken(advice, answer)
    return f"{fault}\n{answer.text}\nwas recommended by" if fault else ""


def broken_cure(advice: Advice, answer: Answer) -> str:
    """Return the fault of a cure that does not pass the refusal; a new refusal needs a cure."""
    seen = {advice.source.sentence}
    for _ in range(STEPS):
        if answer.sentence in seen - {""}:
            return "the same refusal again"
        if answer.code != 2:
            return "" if answer.code in (0, 1, 3) else f"exit code {answer.code}"
        seen.add(answer.sentence)
        ways = [one for one in advice_in(answer) if one.kind in ("try", "cure")]
        if not ways:
            return "a refusal without a way on"
        answer = ask(*ways[-1].words)
    return "refusal after refusal"


def broken_next(advice: Advice, answer: Answer) -> str:
    """Return the fault of a next command that fails or misses its promised bytes or verdict."""
    if answer.code not in (0, 1, advice.source.code):
        return f"exit code {answer.code}"
    why = advice.why
    if "which then fits" in why and answer.code != 0:
        return "it does not fit"
    if found := re.search(r"saves ([\d,]+) bytes? of (\w+)", why):
        saved, pool = int(found[1].replace(",", "")), found[2]
        if need(advice.source, pool) - need(answer, pool) != saved:
            return f"it does not save {saved:,} bytes"
    if (found := re.search(r"still ([\d,]+) over the limit", why)) and (
        answer.code != 1 or f"{found[1]} more than" not in answer.out
    ):
        return f"it is not {found[1]} over"
    if why == "allow the change with the smallest difference" and answer.code != 0:
        return "it does not fit"
    if why == "what to change" and answer.code == 1 and "next: " not in answer.out:
        return "it says of nothing that it can be changed"
    if why == "write a C header with every offset" and "#" not in answer.out[:2000]:
        return "it is no header"
    written = [b for a, b in pairwise(answer.words) if a == "-o"]
    if answer.words[0] == "prepare" and not all(Path(name).is_file() for name in written):
        return "their places in scratch"
    return ""


def need(answer: Answer, pool: str) -> int:
    """Return the bytes that a plan with a budget reports for a pool."""
    says = {"TCM": r"constants and IO", "IO": r"io"}.get(pool, pool)
    line = next(
        line for line in answer.out.splitlines() if re.match(rf"[a-z ]+: {says} (take|need)", line)
    )
    return numbers(line)[0]


def test_every_recommended_command_keeps_its_promise(followed: Followed) -> None:
    """Each command after `next:`, `try:` or in a cure does what its sentence promises."""
    assert not followed.faults, "\n\n".join(followed.faults)
    assert len(followed.advice) > 60


def test_every_reason_of_the_source_is_reached(followed: Followed) -> None:
    """Each reason in the source is printed by some situation or is listed with a cause."""
    whys = [one.why for one in followed.advice.values() if one.kind == "next"]
    left = unreached(templates(), whys)
    assert {template: left[template] for template in left.keys() - NOT_REACHED.keys()} == {}
    assert NOT_REACHED.keys() & templates().keys() - left.keys() == set(), "reached after all"


@pytest.mark.htp
@pytest.mark.usefixtures("files")
def test_every_command_for_the_library_keeps_its_promise() -> None:
    """Each command recommended with the real library does what its sentence promises."""
    pytest.importorskip("onnxruntime_qnn")
    done = follow_all(library_situations())
    assert not done.faults, "\n\n".join(done.faults)
    whys = [one.why for one in done.advice.values() if one.kind == "next"]
    wanted = [template for template in templates() if NOT_REACHED.get(template) == LIBRARY]
    assert [one for one in wanted if not any(matches(one, why) for why in whys)] == []


def test_every_sentence_with_an_option_is_seen(followed: Followed) -> None:
    """Each sentence that names an option is printed by some situation, or its module is listed."""
    text = "\n".join(one.text for one in followed.answers)
    left = {
        template
        for template, where in named_options().items()
        if where not in NOT_SEEN
        and not re.search(".*".join(map(re.escape, template.split("{}"))), text)
    }
    assert left == set()
