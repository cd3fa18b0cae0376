"""The survey of real models pastes what is suggested, keeps what it learned and says it whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import pytest
import survey
import survey_page


def entry(name: str = "tiny", suffix: str = ".onnx") -> models.Entry:
    """An entry of a package that does not exist."""
    return models.Entry(
        id=name,
        source="pypi",
        package="qnnmem-no-such-package",
        version="1.0",
        path=f"pkg/{name}{suffix}",
        bytes=12_345,
        sha256="0" * 64,
        licence="MIT",
    )


class Answers:
    """Stands in for the program: gives prepared answers and remembers what was asked."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, words: tuple[str, ...], _folder: Path) -> survey.Done:
        """Answer by the verb, `json` for a plan as JSON and `bare` for one without options."""
        self.asked.append(tuple(words))
        key = "json" if words[-1] == "json" else words[0].replace("-", "_")
        if key == "plan" and len(words) == 2:
            key = "bare"
        code, out, err = self.answers.get(key, (0, "", ""))
        return survey.Done(tuple(words), code, 0.1, out, err)


PLAN = json.dumps(
    {
        "scratch_bytes": 2048,
        "persistent_bytes": 64,
        "constant_bytes": 10,
        "lower_bound_bytes": 1024,
        "optimal": False,
    }
)


@pytest.mark.parametrize(
    ("message", "given", "expected"),
    [
        ("fix them, e.g. with --dim batch=1 --dim seq=128", (), "--dim batch=1 --dim seq=128"),
        ("e.g. --dim batch=1, or --dim batch=2", (), "--dim batch=1"),
        ("fix it with --shape 'input 1=1x3'.", (), "--shape input 1=1x3"),
        ("try: qnnmem plan m.onnx --dim=batch=1 '--dim=?=48'", (), "--dim batch=1 --dim ?=48"),
        ("it runs with --dim b=1 try: qnnmem plan m.onnx --dim=b=1", (), "--dim b=1"),
        ("e.g. with --dim batch=1", ("--dim", "batch=1"), ""),
        ("state its largest shape with --shape y=AxB", (), ""),
        ("give --value sr=16000; --shape x=1x512", ("--shape", "x=1x1"), "--value sr=16000"),
        ("no suggestion at all", (), ""),
    ],
)
def test_suggestion_is_taken_out_of_the_sentence(
    message: str, given: tuple[str, ...], expected: str
) -> None:
    """New options only, each name once, and no placeholder."""
    assert " ".join(survey.suggested(message, given)) == expected


def test_recommended_commands_are_those_that_can_be_pasted() -> None:
    """A command with a placeholder is no command, and the same one counts once."""
    text = (
        "next: qnnmem plan a.onnx --bits 8\nlook at it   qnnmem inspect a.bin\n"
        "run `qnnmem plan a.onnx --bits 8` or `qnnmem prepare a.onnx --calibration DIR -o a.bin`"
    )
    assert survey.recommended(text) == [
        ("plan", "a.onnx", "--bits", "8"),
        ("inspect", "a.bin"),
    ]


def test_suggestion_is_pasted_and_kept_for_every_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the first plan asks for goes into every command after it."""
    answers = Answers(
        bare=(2, "", "qnnmem: m.onnx: free; e.g. with --dim batch=1"),
        json=(0, PLAN, ""),
        prepare=(0, "off by up to 3.5% of it\nrun it   qnnmem net-run m.bin", ""),
    )
    monkeypatch.setattr(survey, "qnnmem", answers)
    row = survey.Survey(Path("m.onnx"), tmp_path, []).first_contact()
    assert row["given"] == "--dim batch=1"
    assert row["plan"]["scratch_bytes"] == 2048
    assert [row[width]["error_percent"] for width in survey_page.WIDTHS] == [3.5, 3.5]
    assert [words[0] for words in answers.asked] == [
        *("plan", "plan", "plan"),
        *("prepare", "net-run", "prepare", "net-run"),
    ]
    assert all("batch=1" in words for words in answers.asked[1:] if words[0] != "net-run")


def test_model_with_integers_is_prepared_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A refusal to quantize again is answered by leaving that out, once."""
    done = iter([(2, "", "m.onnx: is quantized in part already"), (0, "", "")])
    answers = Answers(json=(0, PLAN, ""))

    def answer(words: tuple[str, ...], folder: Path) -> survey.Done:
        if words[0] == "prepare":
            answers.answers["prepare"] = next(done)
        return answers(words, folder)

    monkeypatch.setattr(survey, "qnnmem", answer)
    row = survey.Survey(Path("m.onnx"), tmp_path, []).first_contact()
    assert row["as it is"]["refusal"] == ""
    assert not {"int8", "int16"} & set(row)
    assert "--quantize" not in [words for words in answers.asked if words[0] == "prepare"][-1]


def test_refused_model_is_tried_no_further(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a plan nothing is prepared."""
    answers = Answers(bare=(2, "", "qnnmem: m.onnx: is not an ONNX model\n"))
    monkeypatch.setattr(survey, "qnnmem", answers)
    row = survey.Survey(Path("m.onnx"), tmp_path, []).first_contact()
    assert row["plan"]["refusal"] == "m.onnx: is not an ONNX model"
    assert len(answers.asked) == 1


def test_survey_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that has been tried is not tried again, and a result is kept whole or not at all."""
    answers = Answers(json=(0, PLAN, ""))
    monkeypatch.setattr(survey, "qnnmem", answers)
    model = tmp_path / "tiny.onnx"
    model.write_bytes(b"model")
    monkeypatch.setattr(models, "fetch", lambda *_: model)
    results = tmp_path / "results"
    first = survey.survey(entry(), tmp_path, results)
    asked = len(answers.asked)
    assert survey.survey(entry(), tmp_path, results) == first
    assert len(answers.asked) == asked
    assert [path.name for path in results.iterdir()] == ["tiny.json"]


def test_model_that_cannot_be_had_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others are tried, and the reason is told."""

    def fetch(wanted: models.Entry, _cache: Path) -> Path:
        if wanted.id == "gone":
            raise models.FetchError("gone: no network")
        return tmp_path

    monkeypatch.setattr(models, "fetch", fetch)
    monkeypatch.setattr(survey, "qnnmem", Answers(json=(0, PLAN, "")))
    both = [entry("gone"), entry("here")]
    found = survey.surveys(both, tmp_path, tmp_path / "results", jobs=2)
    kinds = {key.id: type(value) for key, value in found}
    assert kinds == {"gone": models.FetchError, "here": dict}


def test_time_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that does not end is ended and says so."""
    monkeypatch.setattr(survey, "_SECONDS", 0.01)
    done = survey.qnnmem(("--version",), tmp_path)
    assert done.code is None
    assert done.refusal.startswith("not done after")


def rows() -> list[tuple[models.Entry, dict[str, Any]]]:
    """One model that runs as int8, one layout, one that is refused."""
    planned = {**json.loads(PLAN), "refusal": "", "seconds": 1.0}
    made = {"float": False, "layout": False, "refusal": "", "error_percent": 1.234}
    good = {
        "given": "--dim batch=1",
        "plan": planned,
        "int8": {**made, "run": {"refusal": "", "seconds": 1}},
        "int16": {**made, "refusal": "good.onnx: operator 'X' | has no <integer> form"},
        "pasted": [{"words": "inspect a.bin", "code": 0, "refusal": ""}],
    }
    layout = {
        "given": "",
        "plan": {**planned, "optimal": True, "placeholder": True},
        "as it is": {**made, "float": True, "layout": True, "error_percent": None},
    }
    refused = {"given": "", "plan": {"refusal": f"bad.onnx: {'word ' * 90}", "seconds": 1.0}}
    return [(entry("good"), good), (entry("flat", ".tflite"), layout), (entry("bad"), refused)]


def test_page_has_a_row_for_each_model_and_every_refusal() -> None:
    """Numbers, what was given, and reasons that fit a line and break no table."""
    text = survey_page.page(rows(), 120)
    (good,) = [line for line in text.splitlines() if line.startswith("| good ")]
    assert "`--dim batch=1`" in good
    assert "2,048 ≥ 1,024" in good
    assert "1.23 %, runs" in good
    assert good.endswith("| refused |")
    (flat,) = [line for line in text.splitlines() if line.startswith("| flat ")]
    assert flat.endswith("| 2,048 for a placeholder | 64 | layout, float |  |  |")
    assert "- **good**, prepare int16: operator 'X' \\| has no &lt;integer> form" in text
    (bad,) = [line for line in text.splitlines() if line.startswith("- **bad**, plan: ")]
    assert bad.endswith(" …")
    assert len(bad) < 350
    assert "3 models from 1 packages, 2 ONNX and 1 TFLite" in text
    assert "2 planned, 1 of these minimal for their order; 1 needed options, 1 of these" in text
