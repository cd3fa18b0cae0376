"""One model that is to be fixed: what is wanted of it, the work, and the files that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qnnmem.errors import UsageError
from qnnmem.text import quote
from qnnmem.units import Bytes

if TYPE_CHECKING:
    from qnnmem.cache import ResultCache
    from qnnmem.calibration import Sample
    from qnnmem.cli.fix_htp import HtpWish
    from qnnmem.cli.fix_output import FixFolder
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.proof.validate import Validation
    from qnnmem.fix.recipe import Recipe
    from qnnmem.fix.remedy import FixCase, JudgedChange
    from qnnmem.fix.run import FixResult
    from qnnmem.htp.compile import CompileOptions
    from qnnmem.loader.onnx.inputs import InputValue
    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.report.fix_next import Command

_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it
Budgets = tuple[tuple[str, Bytes], ...]


class FixTask(NamedTuple):
    """One model, what is wanted of it, and where the result goes; can be sent to a worker."""

    model: str
    backend: str
    wish: FixWish
    htp: HtpWish | None
    recipe: str | None
    output: str
    force: bool
    cache: str | None
    given: tuple[str, ...] = ()  # options that `prepare` takes, too
    typed: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()  # from a log to what is wanted
    first: tuple[str, ...] = ()  # remedies to begin with
    place: str = ""  # of the model, where its name is not enough to find it
    validate: bool = False
    stem: str = ""  # of the files, where that of the model is not enough
    always: bool = False  # write a model that did not have to be changed, too


class FixOutcome(NamedTuple):
    """A result, and what was made of it."""

    result: FixResult
    files: list[str]
    commands: Sequence[Command]
    validation: Validation | None = None

    @property
    def exit_code(self) -> int:
        """As the program leaves with it."""
        if self.result.interrupted:
            return _INTERRUPTED
        is_wrong = self.validation is not None and not self.validation.holds
        return self.result.exit_code or int(is_wrong)


def show_fixed(task: FixTask, as_json: bool) -> int:
    """Fix one model and print what came of it."""
    from qnnmem.cli.output import write
    from qnnmem.report import fix as report

    done = fix_file(task)
    render = report.render_json if as_json else report.render_text
    text = render(done.result, done.files, done.commands, task.chain, done.validation)
    write(text, None, task.force)
    return done.exit_code


def fix_file(task: FixTask) -> FixOutcome:
    """Fix one model, and write what it became."""
    from qnnmem.cli.fix_output import FixFolder, fix_folder
    from qnnmem.cli.progress import ProgressBar
    from qnnmem.fix.outputs import outputs_of
    from qnnmem.fix.parts.manifest import FIRST_PART, MANIFEST
    from qnnmem.report.fix_next import next_commands
    from qnnmem.temporary_folder import temporary_folder

    path = Path(task.place or task.model)
    stem = task.stem or path.stem
    place = FixFolder(Path(task.output), stem, task.force)
    names = [f"{stem}.onnx", FIRST_PART, MANIFEST, place.report.name, place.recipe.name]
    names += [f"{stem}.bin"] if task.htp else []
    _keep_source(path, [place.folder / name for name in names])
    with fix_folder(place, names), temporary_folder() as scratch:
        with ProgressBar(f"reading {path.name}") as bar:
            result = _fixed(path, task, bar, Path(scratch))
            found = _validated(result, bar) if task.validate else None
        if found is not None and not found.holds:
            return FixOutcome(result, [], (), found)
        contents = outputs_of(result, stem, always=task.always)
        made = [str(place.folder / name) for name in contents] or [task.model]
        commands = next_commands(result, made, task.given) or _allowing(result, task, contents)
        files = _written(result, place, task, contents, commands) if contents else []
    return FixOutcome(result, files, commands, found)


def _keep_source(model: Path, targets: Sequence[Path]) -> None:
    """Refuse a folder in which the changed model would take the place of the model itself."""
    if any(target.exists() and target.samefile(model) for target in targets if model.exists()):
        raise UsageError(f"{model} itself would be replaced; name another folder with -o")


def _allowing(result: FixResult, task: FixTask, contents: Mapping[str, bytes]) -> Sequence[Command]:
    """The same command with what loses least of what would fit allowed."""
    from qnnmem.report.fix_next import allow_command

    where = ["-o", task.output, *["--force"] * bool(contents or task.force)]
    return allow_command(result, task.model, task.typed, where)


def _validated(result: FixResult, bar: ProgressBar) -> Validation:
    """The result run once more, output by output."""
    from qnnmem.fix.proof.validate import validate

    bar.say("validating")
    return validate(result.case, result.best.change)


class FixWish(NamedTuple):
    """What the model is to fit, and how it is planned and compared."""

    budgets: tuple[Budgets, ...]
    dims: tuple[tuple[str, int], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    values: tuple[tuple[str, InputValue], ...]
    states: tuple[tuple[str, str], ...]
    io: str
    align: int | None
    bits: str | None
    keep: tuple[str, ...]
    allow: tuple[tuple[str, ...], ...]
    data: str | None
    seed: int
    time_limit: float


def _fixed(path: Path, task: FixTask, bar: ProgressBar, scratch: Path) -> FixResult:
    """The result of a search, or of a recipe."""
    from qnnmem.cli.fix_htp import HtpWork, fixed_for_htp
    from qnnmem.fix.from_log import ordered
    from qnnmem.fix.lpai import REMEDIES, fix_for_lpai
    from qnnmem.fix.recipe import read_recipe

    wish, recipe, htp = task.wish, task.recipe, task.htp
    said = None if recipe is None else read_recipe(Path(recipe))
    pair = None if said is None or recipe is None else (said, Path(recipe))
    if said is not None and said.backend != ("lpai" if htp is None else "htp"):
        raise UsageError(f"the recipe is for --backend {said.backend}")
    case = _case(path, wish, said, htp)
    if pair is not None:
        _check_allowed(case, *pair, task.backend)
    watch, memory = _Watcher(bar), memory_of(task.cache)
    if htp is not None:
        limits = [pair for budgets in wish.budgets for pair in budgets]
        work = HtpWork(scratch, memory, watch, bar.say, task.first)
        return fixed_for_htp(case, htp, limits, work, recipe=pair)
    bar.say("planning")
    budget = _limits(wish.budgets)
    if pair is None:
        remedies = ordered(REMEDIES, task.first)
        return fix_for_lpai(case, budget, watch=watch, remedies=remedies, memory=memory)
    return _repeated(case, budget, *pair)


def memory_of(cache: str | None) -> ResultCache | None:
    """Where what was found is kept; nowhere for a user who has no home."""
    from qnnmem.cache import NOWHERE, ResultCache, cache_folder

    folder = cache_folder() if cache is None else Path(cache)
    return None if folder == NOWHERE else ResultCache(folder, "fix", must_keep=cache is not None)


def _repeated(
    case: FixCase, budget: dict[str, Bytes] | None, recipe: Recipe, path: Path
) -> FixResult:
    """What a recipe brings for this model."""
    from qnnmem.fix.bench import CaseBench
    from qnnmem.fix.lossy.remedies import LOSSY_REMEDIES, judged_steps
    from qnnmem.fix.lpai import REMEDIES, REQUIRED, PlanJudge
    from qnnmem.fix.recipe import apply_recipe
    from qnnmem.fix.remedy import Change
    from qnnmem.fix.run import FixResult

    change = apply_recipe(case, recipe, path, (*REQUIRED, *REMEDIES, *LOSSY_REMEDIES))
    with CaseBench(case, PlanJudge(budget, case.seed)) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        judged = bench.with_levels(judged_steps(bench, change))
    if not judged.holds:
        raise UsageError("with this model the recipe gives other results; search anew without it")
    return FixResult(case, (judged,), has_limits=bool(budget), notes=change.notes)


def _check_allowed(case: FixCase, recipe: Recipe, path: Path, backend: str) -> None:
    """Refuse a recipe that changes results where nobody allows that."""
    from qnnmem.fix.lossy.remedies import lossy_words, needed_words

    known = set(lossy_words(backend)) - case.allow
    refused = [word for word in needed_words(recipe.steps) if word in known]
    if refused:
        raise UsageError(f"{path} changes results; --allow {','.join(refused)} lets it")


def _case(path: Path, wish: FixWish, recipe: Recipe | None, htp: HtpWish | None) -> FixCase:
    from time import monotonic

    from qnnmem.fix.remedy import FixCase
    from qnnmem.loader import kind_of
    from qnnmem.loader.onnx import read_shaped
    from qnnmem.planner import PoolOptions

    if kind_of(path) != "onnx":
        raise UsageError(f"{path} is no ONNX model; only those can be changed")
    shapes = dict(wish.shapes)
    if recipe is not None and not (wish.dims or wish.shapes):
        shapes = dict(recipe.shapes)
    model = read_shaped(path, dims=dict(wish.dims), shapes=shapes, values=dict(wish.values))
    bits = None if wish.bits is None else int(wish.bits)
    options: PoolOptions | CompileOptions
    if htp is None:
        options = PoolOptions(io=wish.io, align=wish.align, bits=bits, states=wish.states)
    else:
        shaping = {"dims": dict(wish.dims), "shapes": shapes, "values": dict(wish.values)}
        options = htp.compile_options(**shaping)
    samples = () if wish.data is None else _samples(Path(wish.data), model)
    return FixCase(
        path,
        model,
        options,
        keep=frozenset(wish.keep),
        allow=_allowed(wish.allow, "lpai" if htp is None else "htp"),
        samples=samples,
        seed=wish.seed,
        ends_at=monotonic() + wish.time_limit,
    )


def _samples(place: Path, model: ShapedModel) -> tuple[Sample, ...]:
    """Data of the user; each sample is read once, so that a damaged one is said before the work."""
    from qnnmem.calibration import find_samples, read_sample
    from qnnmem.fix.proof.prove import inputs_of
    from qnnmem.loader.onnx.passes.shape import write_typed

    inputs = inputs_of(write_typed(model))
    found = find_samples(place, inputs)
    for sample in found:
        read_sample(sample, inputs)
    return found


def _allowed(given: tuple[tuple[str, ...], ...], backend: str) -> frozenset[str]:
    """What may change results; a word that means nothing here is refused."""
    from qnnmem.fix.lossy.remedies import lossy_words

    words = [word for several in given for word in several]
    known = lossy_words(backend)
    for word in words:
        if word not in (*known, "all"):
            raise UsageError(
                f"--allow takes {', '.join(known)} or all for {backend}, not {quote(word)}"
            )
    return frozenset(known if "all" in words else words)


def _limits(given: tuple[Budgets, ...]) -> dict[str, Bytes] | None:
    """Budgets by pool; which pools there are, the planner says."""
    from qnnmem.planner.pools import as_limits

    found: dict[str, Bytes] = {}
    for name, size in (pair for budgets in given for pair in budgets):
        if name.lower() in found:
            raise UsageError("a pool has two budgets; give one")
        found[name.lower()] = size
    as_limits(found)
    return found or None


class _Watcher:
    """Shows what was tried as soon as it is known, where somebody watches."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar, self._begun = bar, False

    def __call__(self, change: JudgedChange) -> None:
        import sys

        from qnnmem.cli.stderr import note
        from qnnmem.report.fix import HEADER, row

        if sys.stderr.isatty():
            if not self._begun:
                note(HEADER)
            note(row(change))
        self._begun = True
        self._bar.say("looking for changes")


def _written(
    result: FixResult,
    place: FixFolder,
    task: FixTask,
    contents: Mapping[str, bytes],
    commands: Sequence[Command],
) -> list[str]:
    """The files of a change, all or none."""
    from qnnmem.fix.bench import runtime_words
    from qnnmem.fix.recipe import recipe_of
    from qnnmem.report.fix_report import RunFacts, render_report
    from qnnmem.results.schema import write_json

    facts = RunFacts(sha256_of(result.case.path), task.typed, runtime_words(), task.chain)
    report = render_report(result, facts, str(place.recipe), commands)
    recipe = write_json(recipe_of(result.case, result.best, task.backend))
    words = {
        place.report.name: report.encode("utf-8", "backslashreplace"),
        place.recipe.name: recipe.encode(),
    }
    return place.write({**contents, **words})


def sha256_of(path: Path) -> str:
    """Of a file."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
