"""Train the doctor's cause model from the labelled texts of the tree, and evaluate it.

    python tools/train_doctor.py               write src/qnnmem/doctor/kb/cause_model.bin
    python tools/train_doctor.py --check       fail if the stored file differs
    python tools/train_doctor.py --evaluate    test on repositories left out of the training
    python tools/train_doctor.py --evaluate --only 1      the same for one of eight folds
    python tools/train_doctor.py --evaluate --kept DIR    store fitted models in DIR, reuse them

The file depends on the labelled texts alone: the same texts give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # a fixed order of sums, so the weights are reproducible

import msgspec  # noqa: E402 - after the number of threads
import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from doctor_cases import read_cases  # noqa: E402
from labelled_texts import (  # noqa: E402
    DATA,
    Answer,
    Row,
    Text,
    as_read,
    counted,
    fold_of,
    is_doubtful,
    of_doctor,
    read_texts,
    rows_of,
)
from left_out import Base, as_case  # noqa: E402

from qnnmem.doctor import cause_model as model  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "benchmarks" / "unseen-logs.md"
TARGET = ROOT / "src" / "qnnmem" / "doctor" / "kb" / model.FILE
HEADS = model.HEADS
ROWS = 20_000  # n-grams in the model
LEAST_TEXTS = 2  # an n-gram must be in this many texts
FOLDS = 8
# Parameter C of each head's logistic regression; larger values mean weaker regularisation.
STRENGTH = {"outcome": 8.0, "side": 8.0, "cause": 8.0, "stage": 4.0, "decides": 8.0, "tells": 8.0}


class Matrix:
    """N-gram counts of texts, computed only once."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.counts = [model.features(as_read(one.text)) for one in texts]

    def vocabulary(self, chosen: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Return the hash buckets that at least `LEAST_TEXTS` texts contain, and their idf.

        The idf has the integer steps of the stored model.
        """
        seen: Counter[int] = Counter()
        for index in chosen:
            seen.update(self.counts[index].keys())
        kept = sorted(bucket for bucket, count in seen.items() if count >= LEAST_TEXTS)
        total = len(chosen)
        idf = [np.log((1 + total) / (1 + seen[bucket])) + 1 for bucket in kept]
        return kept, np.clip(np.rint(np.array(idf) * model.IDF_STEP), 1, 255)

    def weighed(self, chosen: Sequence[int], kept: Sequence[int], idf: np.ndarray) -> Any:
        """Return a sparse matrix of TF-IDF weights, with a row of length 1 for each text."""
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
    """Return the class of a text for a head; "" if the text does not train that head."""
    if head == "cause":
        return text.causes[0] if text.names_cause else ""
    if head == "decides":  # a message is known only by its cause
        if text.outcome != "failing" or (text.origin == "message" and not text.names_cause):
            return ""
        return "cause" if text.names_cause else "open"
    if head == "tells":
        return ("side" if text.side else "open") if text.outcome == "failing" else ""
    if head == "outcome":  # the doctor does not ask what a log without a mark of QNN shows
        return text.outcome if text.origin != "nameless" else ""
    return {"side": text.side, "stage": text.stage}[head]


class Fitted(NamedTuple):
    """Weights of each head for the selected n-grams."""

    kept: list[int]
    idf: np.ndarray
    classes: dict[str, tuple[str, ...]]
    weights: dict[str, np.ndarray]
    biases: dict[str, np.ndarray]


def fit(texts: Sequence[Text], matrix: Matrix, chosen: Sequence[int], rows: int = ROWS) -> Fitted:
    """Fit all heads to the `rows` n-grams that best distinguish the classes."""
    kept, idf = matrix.vocabulary(chosen)
    if len(kept) > rows:
        most = _tells_apart(texts, chosen, matrix.weighed(chosen, kept, idf))
        places = np.sort(np.argsort(-most, kind="stable")[:rows])
        kept, idf = [kept[at] for at in places], idf[places]
    return _fit_heads(texts, matrix, chosen, kept, idf)


def _tells_apart(texts: Sequence[Text], chosen: Sequence[int], every: Any) -> np.ndarray:
    """Return how well each n-gram distinguishes any class from the average of all texts."""
    most = np.zeros(every.shape[1])
    spread = np.sqrt(np.asarray(every.multiply(every).mean(axis=0)).ravel()) + 1e-9
    for head in HEADS:
        labels = np.array([label(texts[index], head) for index in chosen])
        mean = np.asarray(every[labels != ""].mean(axis=0)).ravel()
        for one in sorted({*labels} - {""}):
            rows = every[labels == one]
            apart = np.abs(np.asarray(rows.mean(axis=0)).ravel() - mean)
            most = np.maximum(most, apart * np.sqrt(rows.shape[0]) / spread)
    return most


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
        if len(fitted.classes_) == len(("one", "other")):  # one row of weights serves both classes
            weights[head] = np.concatenate((-fitted.coef_, fitted.coef_)) / 2
            biases[head] = np.concatenate((-fitted.intercept_, fitted.intercept_)) / 2
    return Fitted(kept, idf, classes, weights, biases)


def packed(fitted: Fitted) -> bytes:
    """Return the model in the format of its file, not calibrated and without thresholds."""
    stacked = np.concatenate([fitted.weights[head] for head in HEADS]).T
    scale = float(np.abs(stacked).max()) / 127
    rounded = np.clip(np.rint(stacked / scale), -127, 127).astype(np.int16) + 128
    heads = {
        head: model.Head(
            fitted.classes[head], tuple(round(float(one), 4) for one in fitted.biases[head]), 1.0
        )
        for head in HEADS
    }
    header = model.ModelHeader(model.SCHEMA, len(fitted.kept), round(scale, 9), heads, {})
    places = b"".join(bucket.to_bytes(3, "little") for bucket in fitted.kept)
    body = places + bytes(fitted.idf.astype(np.uint8)) + bytes(rounded.astype(np.uint8))
    return msgspec.json.encode(header) + b"\n" + body


Guesses = dict[int, model.Guess]


class Fits:
    """Models fitted without some of the folds; `folder` stores them for later runs."""

    def __init__(
        self,
        texts: Sequence[Text],
        matrix: Matrix,
        folds: int,
        rows: int = ROWS,
        folder: Path | None = None,
    ) -> None:
        self.texts = texts
        self.inside: dict[int, list[int]] = {}
        for at, one in enumerate(texts):
            self.inside.setdefault(fold_of(one, folds), []).append(at)
        self._matrix, self._rows, self._folder = matrix, rows, folder
        known = repr((texts, matrix.counts, STRENGTH, rows)).encode() if folder else b""
        self._key = f"{zlib.crc32(known):08x}"
        self._fitted: dict[tuple[int, ...], bytes] = {}

    def without(self, *left: int) -> bytes:
        """Return the packed, uncalibrated model fitted to all folds except `left`."""
        left = tuple(sorted(left))
        if left not in self._fitted:
            self._fitted[left] = self._kept(f"model{left}", lambda: self._fit(left))
        return self._fitted[left]

    def unseen(self, *left: int) -> Guesses:
        """Return guesses for the texts of all folds except `left`.

        The model that guesses for a fold was fitted without that fold and without `left`.
        """
        data = self._kept(f"guesses{left}", lambda: msgspec.msgpack.encode(self._guesses(left)))
        return msgspec.msgpack.decode(data, type=Guesses)

    def _fit(self, left: Sequence[int]) -> bytes:
        rest = sorted(at for fold, mine in self.inside.items() if fold not in left for at in mine)
        return packed(fit(self.texts, self._matrix, rest, self._rows))

    def _guesses(self, left: tuple[int, ...]) -> Guesses:
        found: Guesses = {}
        for fold in sorted(self.inside.keys() - {*left}):
            made = model.CauseModel(self.without(*left, fold))
            found.update((at, made.guess(as_read(self.texts[at].text))) for at in self.inside[fold])
        return found

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        if self._folder is None:
            return make()
        path = self._folder / f"{name}-{self._key}"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make())
        return path.read_bytes()


def answers(guess: model.Guess, head: str) -> dict[str, float]:
    """Return the probabilities of one head."""
    every = {
        "outcome": guess.outcomes,
        "side": guess.sides,
        "cause": guess.causes,
        "stage": guess.stages,
        "decides": guess.decides,
        "tells": guess.tells,
    }
    return every[head]


def right_classes(text: Text, head: str) -> tuple[str, ...]:
    """Return the right classes for a text; empty if its label does not state any."""
    first = label(text, head)
    return (text.causes if head == "cause" else (first,)) if first else ()


def temperatures(texts: Sequence[Text], found: Guesses) -> dict[str, float]:
    """Return for each head the temperature with the lowest log loss."""
    steps = np.exp(np.linspace(np.log(0.2), np.log(3.0), 60))
    chosen: dict[str, float] = {}
    for head in HEADS:
        rows, hits = [], []
        names = sorted({name for guess in found.values() for name in answers(guess, head)})
        for at, guess in found.items():
            odds = answers(guess, head)  # a rare class may be left out
            if right := odds.keys() & right_classes(texts[at], head):
                rows.append(np.log(np.maximum([odds.get(name, 0.0) for name in names], 1e-12)))
                hits.append([name in right for name in names])
        logs, mask = np.array(rows), np.array(hits)
        losses = []
        for step in steps:
            scaled = np.exp(logs / step)
            share = (scaled * mask).sum(axis=1) / scaled.sum(axis=1)
            losses.append(-np.log(np.maximum(share, 1e-12)).mean())
        chosen[head] = float(steps[int(np.argmin(losses))])
    return chosen


# Required precision of the answers above a threshold.
PRECISION = {"cause_medium": 0.95, "stage": 0.8, "leaning": 0.97}
LOST = {"healthy": 0.06, "decides": 0.12}  # failures called healthy, causes called open
STRANGERS_QUIET = 0.5  # minimum share of foreign logs with chip words that get no answer
# Maximum share of good runs for which the model may name a failure, a cause or a side.
GOOD_RUNS = {"failing": 0.08, "cause_low": 0.23, "side": 0.15}


def thresholds(texts: Sequence[Text], found: Guesses, heat: dict[str, float]) -> dict[str, float]:
    """Return the thresholds from which the doctor accepts an answer of the model.

    Where the lines decide no cause, a guessed cause counts as wrong unless the label lists it.
    """
    chosen: dict[str, float] = {}
    sure = {at: calibrated(found[at], heat) for at in found}
    logs = [at for at in sorted(found) if texts[at].origin == "log"]
    failing = [at for at in logs if texts[at].outcome == "failing"]
    causes, leanings, stages = [], [], []
    for at in failing:
        made, text = sure[at], texts[at]
        causes.append((made.odds, made.cause in text.causes))
        stages.append((made.stage_odds, made.stage == text.stage))
        if text.side:
            hit = (made.memory > 1 / 2) == (text.side == "memory")
            leanings.append((max(made.memory, 1 - made.memory), hit))
    chosen["cause_medium"] = _least(causes, PRECISION["cause_medium"])
    telling = [sure[at].decides["cause"] for at in failing if texts[at].names_cause]
    chosen["decides"] = _quantile(telling, LOST["decides"])
    chosen["leaning"] = _least(leanings, PRECISION["leaning"])
    chosen["stage"] = _least(stages, PRECISION["stage"])
    calm = [sure[at].outcomes["healthy"] for at in failing]
    chosen["healthy"] = _quantile(calm, 1 - LOST["healthy"])
    good = [
        sure[at]
        for at in sorted(found)
        if texts[at].outcome == "healthy" and texts[at].origin != "message"
    ]
    odds = {
        "failing": [made.outcomes["failing"] for made in good],
        "cause_low": [made.odds for made in good],
        "side": [made.side_odds for made in good],
    }
    for name, least in GOOD_RUNS.items():
        chosen[name] = _quantile(odds[name], 1 - least)
    strangers = [
        sure[at].outcomes["foreign"]
        for at in sorted(found)
        if texts[at].outcome == "foreign" and is_doubtful(texts[at].text)
    ]
    chosen["foreign"] = _quantile(strangers, 1 - STRANGERS_QUIET)
    return chosen


def _quantile(odds: Sequence[float], share: float) -> float:
    return round(float(np.quantile(odds, share)), 3)


def calibrated(made: model.Guess, heat: dict[str, float]) -> model.Guess:
    """Return a guess with the probabilities of every head at these temperatures."""
    every = {head: heated(answers(made, head), heat[head]) for head in HEADS}
    return model.guess_of(every, made.words)


def heated(odds: dict[str, float], heat: float) -> dict[str, float]:
    """Return the probabilities at another temperature."""
    scaled = {name: max(odd, 1e-12) ** (1 / heat) for name, odd in odds.items()}
    whole = sum(scaled.values())
    return {name: odd / whole for name, odd in scaled.items()}


def _least(pairs: Sequence[tuple[float, bool]], precision: float) -> float:
    """Return the lowest threshold above which this share of the answers is right."""
    order = sorted(pairs, reverse=True)
    right, chosen = 0, 1.0
    for count, (odd, hit) in enumerate(order, 1):
        right += hit
        if right / count >= precision:
            chosen = odd
    return round(chosen, 3)


def chosen_by(texts: Sequence[Text], found: Guesses) -> tuple[dict[str, float], dict[str, float]]:
    """Return temperatures and thresholds chosen from guesses for unseen texts."""
    heat = temperatures(texts, found)
    return heat, thresholds(texts, found, heat)


def ready(made: bytes, heat: dict[str, float], limits: dict[str, float]) -> bytes:
    """Return a packed model with these temperatures and thresholds."""
    head, _, body = made.partition(b"\n")
    header = msgspec.json.decode(head, type=model.ModelHeader)
    heads = {
        name: msgspec.structs.replace(one, temperature=round(heat[name], 3))
        for name, one in header.heads.items()
    }
    header = msgspec.structs.replace(header, heads=heads, thresholds=limits)
    return msgspec.json.encode(header) + b"\n" + body


def train(fits: Fits) -> bytes:
    """Return the model of all texts, calibrated with guesses of models that left each text out."""
    return ready(fits.without(), *chosen_by(fits.texts, fits.unseen()))


def share(part: int, whole: int) -> str:
    """Return a part of a whole, with its percentage."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "-"


def of_model(made: model.Guess) -> Answer:
    """Return the answer of the model alone."""
    failing = next(iter(made.outcomes)) == "failing"
    return Answer(failing, (made.cause,), tuple(made.ranked)[:3], made.memory > 1 / 2, False)


COLUMNS = ("model", "templates", "together")
OFF = 9.0  # above any probability: the model adds nothing
HOT = 1e6  # temperature at which all causes are equal, so none is ranked


@contextmanager
def answering_with(made: model.CauseModel) -> Iterator[None]:
    """Make the doctor use this model inside the block."""
    usual = model.cause_model
    model.cause_model = lambda: made  # type: ignore[assignment]
    model.guess.cache_clear()
    try:
        yield
    finally:
        model.cause_model = usual
        model.guess.cache_clear()


def evaluate(fits: Fits, asked: Iterable[int]) -> dict[str, dict[int, Answer]]:
    """Return the answers of the model alone, of the doctor without it, and of both together.

    No answer uses the repository of its text. The model, its temperatures and its thresholds come
    from the other folds; templates that only this source supports are left out. The words of
    `kb/words.toml` cannot be left out: they belong to English and to QNN as a whole.
    """
    texts = fits.texts
    base = Base((*read_cases(), *map(as_case, rows_of(DATA / "fresh_logs.jsonl"))))
    found: dict[str, dict[int, Answer]] = {name: {} for name in COLUMNS}
    for fold in asked:
        fitted, (heat, limits) = fits.without(fold), chosen_by(texts, fits.unseen(fold))
        models = {
            "templates": model.CauseModel(
                ready(fitted, dict.fromkeys(heat, HOT), dict.fromkeys(limits, OFF))
            ),
            "together": model.CauseModel(ready(fitted, heat, limits)),
        }
        mine = [at for at in fits.inside[fold] if texts[at].origin != "message"]
        for source in sorted({texts[at].source for at in mine}):
            knowledge = base.without(source)
            for at in (at for at in mine if texts[at].source == source):
                found["model"][at] = of_model(models["together"].guess(as_read(texts[at].text)))
                for name, one in models.items():
                    with answering_with(one):
                        found[name][at] = of_doctor(texts[at], knowledge)
    return found


def table(counts: dict[str, dict[str, Row]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the evaluation."""
    yield "| row | " + " | ".join(counts) + " |"
    yield "|---" + "|--:" * len(counts) + "|"
    for name in next(iter(counts.values())):
        cells = (share(*counts[column][name]) for column in counts)
        yield f"| {name} | " + " | ".join(cells) + " |"


def report(texts: Sequence[Text], found: dict[str, dict[int, Answer]]) -> Iterator[str]:
    """Yield the lines of all tables of an evaluation."""
    yield from table({name: counted(texts, found[name]) for name in COLUMNS})
    yield ""
    yield from worst(texts, found["together"])


WORST = 8  # kinds of confusion that are listed


def worst(texts: Sequence[Text], found: dict[int, Answer]) -> Iterator[str]:
    """Yield a table of the most frequent confusions of causes."""
    pairs: Counter[tuple[str, str]] = Counter()
    for at, answer in found.items():
        if texts[at].names_cause:
            wrong = [cause for cause in answer.causes if cause not in texts[at].causes]
            said = wrong[0] if wrong else "" if answer.causes else "no cause"
            if said:
                pairs[texts[at].causes[0], said] += 1
    yield "The most frequent errors in logs that show the cause:"
    yield ""
    yield "| labelled cause | the doctor names | logs |"
    yield "|---|---|--:|"
    for (cause, said), count in sorted(pairs.items(), key=lambda one: (-one[1], one[0]))[:WORST]:
        yield f"| `{cause}` | {said if ' ' in said else f'`{said}`'} | {count} |"


def write_page(texts: Sequence[Text], found: dict[str, dict[int, Answer]]) -> None:
    """Write the tables between the marks of the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    made = "\n".join(report(texts, found))
    PAGE.write_text(f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{after}", "utf-8")


MARKS = ("<!-- written by tools/train_doctor.py --evaluate -->", "<!-- end -->")


def main() -> int:
    """Train, check or evaluate the model; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored file")
    parser.add_argument(
        "--evaluate", action="store_true", help=("test on repositories left out of the training")
    )
    parser.add_argument(
        "--folds", type=int, default=FOLDS, help=("number of folds, each left out in turn")
    )
    parser.add_argument("--only", type=int, default=FOLDS, help="number of folds to evaluate")
    parser.add_argument("--kept", type=Path, help=("folder that stores fitted models between runs"))
    given = parser.parse_args()
    texts = read_texts()
    fits = Fits(texts, Matrix(texts), given.folds, folder=given.kept)
    if given.evaluate:
        found = evaluate(fits, range(given.folds)[: given.only])
        print("\n".join(report(texts, found)))
        if given.only >= given.folds:
            write_page(texts, found)
        return 0
    made = train(fits)
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
