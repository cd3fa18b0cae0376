"""Tries the command line on real models as somebody who meets it for the first time would.

    python tools/survey.py                     every listed model, one after the other; hours
    python tools/survey.py --jobs 2 yunet      one model
    python tools/survey.py --page              the page, from what has been tried so far

Nothing is told that the program does not ask for: `qnnmem plan FILE`, and where it refuses and
suggests options, the same again with these pasted. With them the model is prepared as int8 and as
int16 and run. Every other command that the program recommends on the way is pasted, too.

Each command is a process of its own with limits of time and memory. What became of a model is kept
in `.cache/survey/<id>.json`, so that a survey which was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import survey_page

RESULTS = models.ROOT / ".cache" / "survey"
PAGE = models.ROOT / "docs" / "reference" / "benchmarks" / "real-models.md"

_SECONDS = 120
_MEMORY = 12 << 30
# A suggestion may uncover the next question: an input's shape, then its value.
_PASTES = 4
_NAME = r"--(dim|shape|value)"
_OPTION = re.compile(rf"""'{_NAME}=([^']*)'|{_NAME}[ =]((?:'[^']*'|"[^"]*"|[^\s,;'"])+)""")
# `--shape x=AxB` asks for what the program cannot know; pasted, it would only be a wrong number.
_ANSWER = re.compile(r"--value .*|--(?:dim|shape) .*=[\dx]+", re.DOTALL)
_COMMAND = re.compile(r"qnnmem ((?:plan|prepare|inspect|footprint|lint|net-run) [^`\n]+)")
_QUANTIZED = re.compile(r"quantized .*already")
_ERROR = re.compile(r"(?:difference from the float model[^\n]*?|off by up to )(\d+(?:\.\d+)?) ?%")
# A recommended command with such a word needs something that only the user has.
_PLACEHOLDER = re.compile(r"[A-Z]{3,}|--calibration(=.*)?")


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one command."""

    words: tuple[str, ...]
    code: int | None  # None: ended by the time limit
    seconds: float
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """Why it failed, in the program's own words; empty if it did not."""
        if self.code == 0:
            return ""
        if self.code is None:
            return f"not done after {_SECONDS} s"
        lines = [line for line in self.err.splitlines() if line.strip()]
        return " ".join(lines).removeprefix("qnnmem: ") or f"exit code {self.code}"


def qnnmem(words: Sequence[str], folder: Path) -> Done:
    """Run one command in `folder` within the limits."""
    start = time.monotonic()
    child = subprocess.Popen(  # noqa: S603 - the program under test, words made here
        [sys.executable, "-m", "qnnmem", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(models.ROOT / "src"), "COLUMNS": "500"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(child.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        out, err = child.communicate(timeout=_SECONDS)
        code: int | None = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        code = None
    return Done(tuple(words), code, round(time.monotonic() - start, 1), out, err)


def suggested(message: str, given: Sequence[str]) -> tuple[str, ...]:
    """Options that a refusal suggests and that were not given yet."""
    names = {_target(given[i : i + 2]) for i in range(0, len(given), 2)}
    new: dict[str, tuple[str, str]] = {}
    for quoted, value, name, words in _OPTION.findall(message):
        said = value if quoted else "".join(shlex.split(words.rstrip(".")))
        pair = (f"--{quoted or name}", said)
        if _target(pair) not in names and _ANSWER.fullmatch(" ".join(pair)):
            new.setdefault(_target(pair), pair)
    return tuple(word for pair in new.values() for word in pair)


def _target(pair: Sequence[str]) -> str:
    """What an option is about: `--dim batch` of `--dim batch=1`."""
    return " ".join(pair).rpartition("=")[0]


def recommended(text: str) -> list[tuple[str, ...]]:
    """Commands in an answer that can be pasted as they stand."""
    commands = [tuple(shlex.split(words)) for words in _COMMAND.findall(text)]
    plain = [words for words in commands if not any(map(_PLACEHOLDER.fullmatch, words))]
    return list(dict.fromkeys(plain))


@dataclass(frozen=True, slots=True)
class Survey:
    """One model on its way through the commands, in a folder of its own."""

    path: Path
    folder: Path
    log: list[Done]

    def run(self, *words: str) -> Done:
        """One command, remembered."""
        done = qnnmem(words, self.folder)
        self.log.append(done)
        return done

    def first_contact(self) -> dict[str, Any]:
        """Everything the page says about the model, and every command that was run."""
        given, plan = self._plan()
        placeholder = any(done.out.startswith("for a placeholder") for done in self.log)
        row: dict[str, Any] = {
            "given": shlex.join(given),
            "plan": {**_planned(plan), "placeholder": placeholder},
        }
        if plan.code == 0:
            row.update(self._prepare_all(given))
            row["pasted"] = self._paste()
        row["commands"] = [
            {"words": shlex.join(done.words), "code": done.code, "seconds": done.seconds}
            for done in self.log
        ]
        return row

    def _plan(self) -> tuple[tuple[str, ...], Done]:
        """The plan, with the options that the program asked for."""
        given: tuple[str, ...] = ()
        for _ in range(_PASTES):
            done = self.run("plan", str(self.path), *given)
            more = suggested(done.refusal, given)
            if not more:
                break
            given += more
        if done.code == 0:
            done = self.run("plan", str(self.path), *given, "--format", "json")
        return given, done

    def _prepare_all(self, given: Sequence[str]) -> dict[str, Any]:
        """What became of the model in each width; as it is where it cannot be quantized here."""
        if self.path.suffix == ".tflite":
            return {survey_page.AS_IT_IS: self._prepare(given)}
        made = {}
        for width in survey_page.WIDTHS:
            made[width] = self._prepare(given, "--quantize", width)
            if _QUANTIZED.search(made[width]["refusal"]):
                return {survey_page.AS_IT_IS: self._prepare(given)}
        return made

    def _prepare(self, given: Sequence[str], *how: str) -> dict[str, Any]:
        """Prepare the model and run that; what has no integers is a layout of floats at least."""
        words = ["prepare", str(self.path), *given, *how]
        binary = f"{'_'.join(how).strip('-') or 'model'}.bin"
        done = self.run(*words, "-o", binary)
        if done.code == 2 and not how and "--float" in done.refusal:
            done = self.run(*words, "--float", "-o", binary)
        error = _ERROR.search(done.out + done.err)
        made: dict[str, Any] = {
            "float": "--float" in done.words,
            "layout": "execution cannot" in done.out,
            "error_percent": float(error[1]) if error else None,
            "refusal": done.refusal,
            "seconds": done.seconds,
        }
        for command in recommended(done.out):
            if command[0] == "net-run":
                ran = self.run(*command)
                made["run"] = {"refusal": ran.refusal, "seconds": ran.seconds}
        return made

    def _paste(self) -> list[dict[str, Any]]:
        """Run what the answers recommend, as it stands, unless it has been run."""
        known = {done.words for done in self.log}
        texts = [done.out + done.err for done in self.log if done.code == 0]
        commands = dict.fromkeys(words for text in texts for words in recommended(text))
        new = [self.run(*words) for words in commands if words not in known]
        return [
            {"words": shlex.join(done.words), "code": done.code, "refusal": done.refusal}
            for done in new
        ]


def _planned(done: Done) -> dict[str, Any]:
    """The numbers of a plan, or why there is none."""
    if done.code != 0:
        return {"seconds": done.seconds, "refusal": done.refusal}
    wanted = ("scratch_bytes", "persistent_bytes", "constant_bytes", "lower_bound_bytes", "optimal")
    answer = json.loads(done.out)
    return {"seconds": done.seconds, "refusal": "", **{key: answer[key] for key in wanted}}


def survey(entry: models.Entry, cache: Path, results: Path) -> dict[str, Any]:
    """What became of one model, from the folder of results if it has been tried."""
    kept = results / f"{entry.id}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_bytes()))
    path = models.fetch(entry, cache)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        beside = folder / path.name
        beside.symlink_to(path)
        row = {"id": entry.id, **Survey(Path(path.name), folder, []).first_contact()}
    results.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(".partial")
    partial.write_text(json.dumps(row, indent=1), encoding="utf-8")
    partial.replace(kept)
    return row


def surveys(
    entries: Iterable[models.Entry], cache: Path, results: Path, jobs: int
) -> Iterator[tuple[models.Entry, dict[str, Any] | models.FetchError]]:
    """Every model with what became of it, or why it cannot be had."""

    def one(entry: models.Entry) -> tuple[models.Entry, dict[str, Any] | models.FetchError]:
        try:
            return entry, survey(entry, cache, results)
        except models.FetchError as error:
            return entry, error

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, entries)


def _page(entries: Iterable[models.Entry], results: Path) -> str:
    """The page about those models that have been tried."""
    tried = ((entry, results / f"{entry.id}.json") for entry in entries)
    rows = [(entry, json.loads(kept.read_bytes())) for entry, kept in tried if kept.is_file()]
    return survey_page.page(rows, _SECONDS)


def _summary(row: dict[str, Any]) -> str:
    """One line for whoever watches."""
    steps = {"plan": row["plan"], **{way: row[way] for way in survey_page.WAYS if way in row}}
    return ", ".join(f"{name} {step['refusal'] or 'done'}" for name, step in steps.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="survey.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="models to try; all if none is named")
    parser.add_argument("--jobs", type=int, default=1, help="models tried at a time")
    parser.add_argument("--again", action="store_true", help="try again what has been tried")
    parser.add_argument("--page", action="store_true", help="write the page, and try nothing")
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder for the models")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder for what became of each"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what is asked for; 0 when every model could be had."""
    options = _parser().parse_args(arguments)
    entries = [e for e in models.read_entries() if not options.ids or e.id in options.ids]
    if options.page:
        PAGE.write_text(_page(entries, options.results), encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(models.ROOT)}")
        return 0
    if options.again:
        for entry in entries:
            (options.results / f"{entry.id}.json").unlink(missing_ok=True)
    missing = 0
    for entry, row in surveys(entries, options.cache, options.results, options.jobs):
        if isinstance(row, models.FetchError):
            missing += 1
            print(row, file=sys.stderr, flush=True)
        else:
            print(f"{entry.id}: {_summary(row)}", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
