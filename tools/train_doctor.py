"""Trains the doctor's cause model from the labelled texts of the tree, and evaluates it.

    python tools/train_doctor.py               write src/qnnmem/doctor/kb/cause_model.bin
    python tools/train_doctor.py --check       fail if the stored file differs
    python tools/train_doctor.py --evaluate    leave whole repositories out, print the table
    python tools/train_doctor.py --evaluate --only 1      the short form: an eighth

The file depends on the labelled texts alone: the same texts give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # sums in one order, so that the weights are the same

import msgspec  # noqa: E402 - after the number of threads
import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

sys.path.insert(0, str(ROOT / "tools"))

import fresh_logs  # noqa: E402
from doctor_cases import incidents, origin, read_cases  # noqa: E402
from generalise import Base, as_case  # noqa: E402

from qnnmem.doctor import cause_model as model  # noqa: E402
from qnnmem.doctor.kb.entry import is_memory  # noqa: E402
from qnnmem.doctor.kb.knowledge import Knowledge  # noqa: E402

DATA = ROOT / "tests" / "doctor"
STORED = ROOT / "src" / "qnnmem" / "doctor" / "kb" / "stored_logs"
TARGET = ROOT / "src" / "qnnmem" / "doctor" / "kb" / model.FILE
HEADS = model.HEADS
ROWS = 20_000  # n-grams that keep a row
LEAST_TEXTS = 2  # that hold an n-gram
FOLDS = 8
LEAST_KEY = 24  # letters of a line by which a copy is known
NOTES = "public repo notes"
OPEN = ("unknown", "mem_unknown", "benign_noise")  # causes that are none
# C of the logistic regressions.
STRENGTH = {"outcome": 8.0, "side": 8.0, "cause": 8.0, "stage": 4.0, "decides": 8.0}


class Text(NamedTuple):
    """A labelled text; what is not known of it is empty."""

    group: str  # repository, or the text itself where it comes from nowhere
    text: str
    outcome: str  # failing, healthy or foreign
    side: str  # memory or other
    causes: tuple[str, ...]  # any of them is right, the first is the label
    stage: str
    names_cause: bool  # whether its lines decide the cause
    origin: str  # log, message or foreign
    source: str = ""  # as templates name it


def read_texts() -> list[Text]:
    """Every labelled text of the tree, in a fixed order."""
    found = [*_logs(_rows(DATA / "fresh_logs.jsonl")), *_logs(_rows(STORED / "cases.jsonl"))]
    # A message that repeats a line of a log is left out with that log.
    groups = {key: one.group for one in found for key in _line_keys(one.text)}
    for row in _rows(STORED / "healthy.jsonl"):
        where = origin(row["source"])
        found.append(_text(where, "\n".join(row["lines"]), "healthy")._replace(source=where))
    for path in sorted((DATA / "healthy_runs").glob("*.log")):
        found.append(_text("our runs", path.read_text("utf-8", "replace"), "healthy"))
    for row in _rows(DATA / "messages.jsonl"):
        outcome = "healthy" if row["side"] == "healthy" else "failing"
        side = row["side"] if row["side"] in ("memory", "other") else ""
        causes = tuple(one for one in row["causes"] if one not in OPEN)
        known = bool(causes) and outcome == "failing"
        group = next(filter(None, map(groups.get, _line_keys(row["text"]))), row["text"])
        found.append(Text(group, row["text"], outcome, side, causes, "", known, "message"))
    for name in ("foreign_logs.jsonl", "made_foreign_logs.jsonl"):
        for row in _rows(DATA / name):
            found.append(_text(row.get("program", row["text"]), row["text"], "foreign", "foreign"))
    return found


def _text(group: str, text: str, outcome: str, where: str = "log") -> Text:
    return Text(group, text, outcome, "", (), "", False, where)


def _line_keys(text: str) -> Iterator[str]:
    """Lines as the model sees them, without numbers; short ones are no sign of a copy."""
    for line in text.splitlines():
        key = " ".join(word for word in model.words_of(model.normal(line)) if word.isalpha())
        if len(key) >= LEAST_KEY:
            yield key


def _logs(rows: Iterable[dict[str, Any]]) -> Iterator[Text]:
    for row in rows:
        text = "\n".join(row["lines"])
        where = source = origin(row["source"])
        if where == NOTES:  # gathered from many repositories, of which the file is known
            where = row["source"].split(" (")[0]
        if row["decidable"] == "healthy":
            yield _text(where, text, "healthy")._replace(source=source)
            continue
        causes = tuple(dict.fromkeys((row["cause"], *row.get("accept", ()))))
        sides = {is_memory(cause) for cause in causes if cause != "unknown"}
        told = row["decidable"] in ("cause", "memory_only") and len(sides) < 2
        side = ("memory" if row["is_memory"] else "other") if told else ""
        named = row["decidable"] == "cause" and row["cause"] not in OPEN
        yield Text(where, text, "failing", side, causes, row["stage"], named, "log", source)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def fold_of(text: Text, folds: int) -> int:
    """The fold of a text: all texts of a repository are in one."""
    return zlib.crc32(text.group.encode()) % folds


class Matrix:
    """N-gram counts of texts, made once."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.counts = [model.features(one.text) for one in texts]

    def vocabulary(self, chosen: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Buckets that enough of the chosen texts hold, and their stored idf."""
        seen: Counter[int] = Counter()
        for index in chosen:
            seen.update(self.counts[index].keys())
        kept = sorted(bucket for bucket, count in seen.items() if count >= LEAST_TEXTS)
        total = len(chosen)
        idf = [np.log((1 + total) / (1 + seen[bucket])) + 1 for bucket in kept]
        return kept, np.clip(np.rint(np.array(idf) * model.IDF_STEP), 1, 255)

    def weighed(self, chosen: Sequence[int], kept: Sequence[int], idf: np.ndarray) -> Any:
        """Texts as rows of shares; the squares of each row add up to one."""
        from scipy.sparse import csr_matrix

        column = {bucket: at for at, bucket in enumerate(kept)}
        data: list[np.ndarray] = []
        columns: list[np.ndarray] = []
        ends = [0]
        for index in chosen:
            pairs = [
                (column[bucket], times)
                for bucket, times in self.counts[index].items()
                if bucket in column
            ]
            at = np.array([one for one, _ in pairs], dtype=np.int32)
            times = np.array([times for _, times in pairs], dtype=float)
            value = (1 + np.log(times)) * idf[at] if len(at) else times
            norm = np.sqrt((value * value).sum()) or 1.0
            data.append(value / norm)
            columns.append(at)
            ends.append(ends[-1] + len(at))
        shape = (len(chosen), len(kept))
        return csr_matrix((np.concatenate(data), np.concatenate(columns), ends), shape=shape)


def label(text: Text, head: str) -> str:
    """The class of a text for a question; "" when it does not train that."""
    if head == "cause":
        return text.causes[0] if text.names_cause else ""
    if head == "decides":  # of messages it is known only where a cause is
        if text.outcome != "failing" or (text.origin == "message" and not text.names_cause):
            return ""
        return "cause" if text.names_cause else "open"
    return {"outcome": text.outcome, "side": text.side, "stage": text.stage}[head]


class Fitted(NamedTuple):
    """Weights of each head over the kept rows."""

    kept: list[int]
    idf: np.ndarray
    classes: dict[str, tuple[str, ...]]
    weights: dict[str, np.ndarray]
    biases: dict[str, np.ndarray]


def fit(texts: Sequence[Text], matrix: Matrix, chosen: Sequence[int], rows: int = ROWS) -> Fitted:
    """Fits all heads, keeps the rows that weigh most, and fits again on those."""
    kept, idf = matrix.vocabulary(chosen)
    full = _fit_heads(texts, matrix, chosen, kept, idf)
    if len(kept) > rows:
        most = np.max([np.abs(full.weights[head]).max(axis=0) * idf for head in HEADS], axis=0)
        order = np.argsort(-most, kind="stable")[:rows]
        places = np.sort(order)
        full = _fit_heads(texts, matrix, chosen, [kept[at] for at in places], idf[places])
    return full


def _fit_heads(
    texts: Sequence[Text], matrix: Matrix, chosen: Sequence[int], kept: list[int], idf: np.ndarray
) -> Fitted:
    from sklearn.linear_model import LogisticRegression

    every = matrix.weighed(chosen, kept, idf)
    classes: dict[str, tuple[str, ...]] = {}
    weights: dict[str, np.ndarray] = {}
    biases: dict[str, np.ndarray] = {}
    for head in HEADS:
        labels = [label(texts[index], head) for index in chosen]
        mine = [at for at, one in enumerate(labels) if one]
        fitted = LogisticRegression(
            C=STRENGTH[head], class_weight="balanced", max_iter=300, tol=1e-3
        ).fit(every[mine], [labels[at] for at in mine])
        classes[head] = tuple(str(one) for one in fitted.classes_)
        weights[head], biases[head] = fitted.coef_, fitted.intercept_
        if len(fitted.classes_) == len(("one", "other")):  # one row of weights stands for both
            weights[head] = np.concatenate((-fitted.coef_, fitted.coef_)) / 2
            biases[head] = np.concatenate((-fitted.intercept_, fitted.intercept_)) / 2
    return Fitted(kept, idf, classes, weights, biases)


def packed(fitted: Fitted, temperatures: dict[str, float], thresholds: dict[str, float]) -> bytes:
    """The model as it is stored."""
    stacked = np.concatenate([fitted.weights[head] for head in HEADS]).T
    scale = float(np.abs(stacked).max()) / 127
    rounded = np.clip(np.rint(stacked / scale), -127, 127).astype(np.int16) + 128
    heads = {
        head: model.Head(
            fitted.classes[head],
            tuple(round(float(one), 4) for one in fitted.biases[head]),
            round(temperatures[head], 3),
        )
        for head in HEADS
    }
    header = model.ModelHeader(model.SCHEMA, len(fitted.kept), round(scale, 9), heads, thresholds)
    places = b"".join(bucket.to_bytes(3, "little") for bucket in fitted.kept)
    body = places + bytes(fitted.idf.astype(np.uint8)) + bytes(rounded.astype(np.uint8))
    return msgspec.json.encode(header) + b"\n" + body


def left_out(
    texts: Sequence[Text], matrix: Matrix, folds: int, asked: Iterable[int] | None = None
) -> Iterator[tuple[list[int], model.CauseModel]]:
    """For each fold the texts in it, and the model that has seen none of their repositories."""
    for fold in range(folds) if asked is None else asked:
        inside = [at for at, one in enumerate(texts) if fold_of(one, folds) == fold]
        rest = [at for at, one in enumerate(texts) if fold_of(one, folds) != fold]
        plain = packed(fit(texts, matrix, rest), dict.fromkeys(HEADS, 1.0), {})
        yield inside, model.CauseModel(plain)


Guesses = dict[int, model.Guess]


def guesses_left_out(texts: Sequence[Text], matrix: Matrix, folds: int) -> Guesses:
    """What the model makes of each text when its repository is left out."""
    return {
        at: fold_model.guess(texts[at].text)
        for inside, fold_model in left_out(texts, matrix, folds)
        for at in inside
    }


def answers(guess: model.Guess, head: str) -> dict[str, float]:
    """The probabilities of one head."""
    every = {
        "outcome": guess.outcomes,
        "side": guess.sides,
        "cause": guess.causes,
        "stage": guess.stages,
        "decides": guess.decides,
    }
    return every[head]


def right_classes(text: Text, head: str) -> tuple[str, ...]:
    """Classes that are right for a text; none when it does not tell."""
    first = label(text, head)
    return (text.causes if head == "cause" else (first,)) if first else ()


def temperatures(texts: Sequence[Text], found: Guesses) -> dict[str, float]:
    """By head, what makes the probabilities as sure as they are right: least log loss."""
    steps = np.exp(np.linspace(np.log(0.2), np.log(3.0), 60))
    chosen: dict[str, float] = {}
    for head in HEADS:
        rows, hits = [], []
        for at, guess in found.items():
            if right := right_classes(texts[at], head):
                odds = answers(guess, head)
                rows.append(np.log(np.maximum(list(odds.values()), 1e-12)))
                hits.append([name in right for name in odds])
        logs, mask = np.array(rows), np.array(hits)
        losses = []
        for step in steps:
            scaled = np.exp(logs / step)
            share = (scaled * mask).sum(axis=1) / scaled.sum(axis=1)
            losses.append(-np.log(np.maximum(share, 1e-12)).mean())
        chosen[head] = float(steps[int(np.argmin(losses))])
    return chosen


# The share of answers above a threshold that must be right when their repository is left out.
PRECISION = {"cause_low": 0.93, "cause_medium": 0.97, "side": 0.97}
SHARE_OF_FAILURES = {"foreign": 0.01, "healthy": 0.01}  # that may be called so
GOOD_RUNS_ALARMED = 0.03  # the share of good runs that the model may take for failures


def thresholds(texts: Sequence[Text], found: Guesses, heat: dict[str, float]) -> dict[str, float]:
    """From where on an answer is believed.

    A cause that is named where the lines decide none is wrong unless the label has it.
    """
    chosen: dict[str, float] = {}
    failing = [at for at in found if texts[at].origin == "log" and texts[at].outcome == "failing"]
    causes, sides = [], []
    for at in failing:
        made = calibrated(found[at], heat)
        causes.append((made.odds, made.cause in texts[at].causes))
        if texts[at].side:
            right = (made.memory > 1 / 2) == (texts[at].side == "memory")
            sides.append((max(made.memory, 1 - made.memory), right))
    for name, least in PRECISION.items():
        chosen[name] = _least(sides if name == "side" else causes, least)
    for name, most in SHARE_OF_FAILURES.items():
        shares = [calibrated(found[at], heat).outcomes[name] for at in failing]
        chosen[name] = round(float(np.quantile(shares, 1 - most)), 3)
    good = [at for at in found if texts[at].origin == "log" and texts[at].outcome == "healthy"]
    alarms = [calibrated(found[at], heat).outcomes["failing"] for at in good]
    chosen["failing"] = round(float(np.quantile(alarms, 1 - GOOD_RUNS_ALARMED)), 3)
    return chosen


def calibrated(made: model.Guess, heat: dict[str, float]) -> model.Guess:
    """A guess as the calibrated model would make it."""
    every = {head: heated(answers(made, head), heat[head]) for head in HEADS}
    return model.guess_of(every, made.words)


def heated(odds: dict[str, float], heat: float) -> dict[str, float]:
    """Probabilities at another temperature."""
    scaled = {name: max(odd, 1e-12) ** (1 / heat) for name, odd in odds.items()}
    whole = sum(scaled.values())
    return {name: odd / whole for name, odd in scaled.items()}


def _least(pairs: Sequence[tuple[float, bool]], precision: float) -> float:
    """The lowest probability above which this share is right."""
    order = sorted(pairs, reverse=True)
    right, chosen = 0, 1.0
    for count, (odd, hit) in enumerate(order, 1):
        right += hit
        if right / count >= precision:
            chosen = odd
    return round(chosen, 3)


def train(texts: Sequence[Text], matrix: Matrix, found: Guesses) -> bytes:
    """The model of all texts, calibrated by what it makes of texts that it has not seen."""
    heat = temperatures(texts, found)
    return packed(fit(texts, matrix, range(len(texts))), heat, thresholds(texts, found, heat))


def share(part: int, whole: int) -> str:
    """A part of a whole, with its percentage."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "-"


class Answer(NamedTuple):
    """What was made of one text, whoever answered."""

    alarmed: bool  # a failure is told
    causes: tuple[str, ...]  # that are named
    ranked: tuple[str, ...]  # the first three that come into question
    memory: bool | None
    high: bool  # with high confidence


def of_model(made: model.Guess) -> Answer:
    """The answer of the model alone."""
    failing = next(iter(made.outcomes)) == "failing"
    return Answer(failing, (made.cause,), tuple(made.causes)[:3], made.memory > 1 / 2, False)


def of_doctor(text: Text, knowledge: Knowledge) -> Answer:
    """The answer of the doctor."""
    found = incidents(f"{text.text}\n".encode("utf-8", "replace"), knowledge)
    told = [one for one in found if one.verdict != "undecided"]
    named = tuple(dict.fromkeys(one.cause for one in told if one.verdict == "cause"))
    ranked = [one.cause for one in found[0].candidates[:3]] if found else []
    sides = {one.is_memory for one in told}
    memory = sides.pop() is True if len(sides) == 1 else None
    alarmed = bool(found) if text.outcome == "failing" else bool(told)
    high = any(one.confidence == "high" for one in told)
    return Answer(alarmed, named, (*named, *ranked), memory, high)


Row = tuple[int, int]


def counted(texts: Sequence[Text], found: dict[int, Answer]) -> dict[str, Row]:
    """How many answers are right, by question."""
    logs = [at for at in found if texts[at].origin == "log"]
    named = [at for at in logs if texts[at].names_cause]
    sided = [at for at in logs if texts[at].side]
    failing = [at for at in logs if texts[at].outcome == "failing"]
    sure = [at for at in failing if found[at].high]

    def right(at: int) -> bool:
        return bool(found[at].causes) and {*found[at].causes} <= {*texts[at].causes}

    def among(at: int) -> bool:
        return bool({*found[at].ranked} & {*texts[at].causes})

    def same_side(at: int) -> bool:
        return found[at].memory is (texts[at].side == "memory")

    wrong = sum(bool({*found[at].causes} - {*texts[at].causes}) for at in named)
    opened = [at for at in failing if not texts[at].names_cause]
    claimed = [at for at in opened if found[at].causes]
    rows = {
        "cause": (sum(map(right, named)), len(named)),
        "another cause": (wrong, len(named)),
        "among the first three": (sum(map(among, named)), len(named)),
        "side": (sum(map(same_side, sided)), len(sided)),
        "high confidence right": (sum(map(right, sure)), len(sure)),
        "no cause named where the lines decide none": (
            len(opened) - sum(not right(at) for at in claimed),
            len(opened),
        ),
    }
    for name in ("healthy", "foreign"):
        mine = [at for at in found if texts[at].outcome == name and texts[at].origin != "message"]
        rows[f"{name} quiet"] = (sum(not found[at].alarmed for at in mine), len(mine))
    lost = sum(not found[at].alarmed for at in failing)
    rows["failures called healthy or foreign"] = (lost, len(failing))
    return rows


COLUMNS = ("doctor", "model", "both")


def of_both(doctor: Answer, made: model.Guess, limits: dict[str, float]) -> Answer:
    """The doctor's answer, with what the model adds where the doctor names no cause.

    It adds nothing where the doctor sees no failure, or where it is not sure of one itself.
    """
    ranked = tuple(dict.fromkeys((*doctor.causes, *made.causes)))[:3]
    if doctor.causes or not doctor.alarmed or made.outcomes["failing"] < limits["failing"]:
        return doctor._replace(ranked=(*doctor.ranked, *ranked)[:3])
    memory = doctor.memory
    if made.odds >= limits["cause_low"] and memory in (None, is_memory(made.cause)):
        return doctor._replace(causes=(made.cause,), ranked=ranked, memory=is_memory(made.cause))
    if memory is None and max(made.memory, 1 - made.memory) >= limits["side"]:
        memory = made.memory > 1 / 2
    return doctor._replace(ranked=ranked, memory=memory)


def evaluate(
    texts: Sequence[Text], matrix: Matrix, folds: int, asked: Sequence[int]
) -> dict[str, dict[str, Row]]:
    """The doctor as it is, the model alone, and both; each without the repository of the text.

    The doctor's word rules cannot be left out: they know the logs that they were written from.
    """
    base = Base((*read_cases(), *map(as_case, fresh_logs.read_rows())))
    stored = model.cause_model().header
    heat = {head: one.temperature for head, one in stored.heads.items()}
    found: dict[str, dict[int, Answer]] = {name: {} for name in COLUMNS}
    for fold in asked:
        rest = [at for at, one in enumerate(texts) if fold_of(one, folds) != fold]
        mine = [
            at
            for at, one in enumerate(texts)
            if fold_of(one, folds) == fold and one.origin != "message"
        ]
        left = model.CauseModel(packed(fit(texts, matrix, rest), heat, stored.thresholds))
        known = {one: base.without(one) for one in sorted({texts[at].source for at in mine})}
        for at in mine:
            made = left.guess(texts[at].text)
            doctor = of_doctor(texts[at], known[texts[at].source])
            answers_of = (doctor, of_model(made), of_both(doctor, made, stored.thresholds))
            for name, answer in zip(COLUMNS, answers_of, strict=True):
                found[name][at] = answer
    return {name: counted(texts, found[name]) for name in COLUMNS}


def table(counts: dict[str, dict[str, Row]]) -> Iterator[str]:
    """The evaluation as Markdown."""
    yield "| repository left out | " + " | ".join(counts) + " |"
    yield "|---" + "|--:" * len(counts) + "|"
    for name in next(iter(counts.values())):
        cells = (share(*counts[column][name]) for column in counts)
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> int:
    """Trains, checks or evaluates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored file")
    parser.add_argument("--evaluate", action="store_true", help="leave repositories out")
    parser.add_argument("--folds", type=int, default=FOLDS, help="parts that are left out in turn")
    parser.add_argument("--only", type=int, default=FOLDS, help="evaluate this many parts")
    given = parser.parse_args()
    texts = read_texts()
    matrix = Matrix(texts)
    if given.evaluate:
        asked = range(given.folds)[: given.only]
        print("\n".join(table(evaluate(texts, matrix, given.folds, asked))))
        return 0
    found = guesses_left_out(texts, matrix, given.folds)
    made = train(texts, matrix, found)
    same = TARGET.exists() and TARGET.read_bytes() == made
    if given.check:
        print("the stored model is current" if same else "the stored model differs")
        return 0 if same else 1
    TARGET.write_bytes(made)
    print(f"Wrote {TARGET.relative_to(ROOT)}: {len(made):,} bytes")
    print(model.CauseModel(made).thresholds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
