"""Verb `fix`: change one model until it fits, and write the result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnmem.atomic_file import check_replaceable, folder_for_output, write_together
from qnnmem.cache import NOWHERE, ResultCache, cache_folder
from qnnmem.calibration import find_samples, read_sample
from qnnmem.errors import CannotTell, MissingSoc, UsageError, Words
from qnnmem.fix.bench import CaseBench, runtime_words
from qnnmem.fix.fixed_model import fixed_model, outputs_of, tensor_notes
from qnnmem.fix.from_log import ordered
from qnnmem.fix.htp import fix_for_htp, operator_remedy, repeat_for_htp
from qnnmem.fix.library.trials import LibraryTrials
from qnnmem.fix.lossy.remedies import LOSSY_REMEDIES, judged_steps, lossy_words, needed_words
from qnnmem.fix.lpai import REQUIRED, PlanJudge, fix_for_lpai
from qnnmem.fix.parts.chain import FIRST_PART, MANIFEST
from qnnmem.fix.proof.prove import inputs_of, validate
from qnnmem.fix.recipe import apply_recipe, read_recipe, recipe_of
from qnnmem.fix.remedy import Change, FixCase
from qnnmem.fix.remedy_search import FixResult
from qnnmem.fix.tflite_form import tflite_form
from qnnmem.htp.compile import CompileOptions, HtpPrecision, check_options
from qnnmem.htp.fit import check_pools
from qnnmem.htp.worker import Worker
from qnnmem.loader import kind_of
from qnnmem.loader.onnx import read_shaped
from qnnmem.loader.onnx.passes.shape import write_typed
from qnnmem.options.fix import FixOptions
from qnnmem.options.option import refuse_foreign
from qnnmem.planner import PoolOptions
from qnnmem.planner.pools import as_limits
from qnnmem.provenance import Origin, Sourced
from qnnmem.report.fix import (
    HEADER,
    RunFacts,
    allow_command,
    next_commands,
    one_line,
    render_report,
    row,
)
from qnnmem.results.schema import encode
from qnnmem.targets.socs import find_soc
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import quote
from qnnmem.units import Bytes
from qnnmem.verbs.compiler import need_compiler

if TYPE_CHECKING:
    from qnnmem.calibration import Sample
    from qnnmem.fix.htp import HtpFixResult
    from qnnmem.fix.remedy import JudgedChange
    from qnnmem.fix.remedy_search import Watcher
    from qnnmem.loader.onnx.passes.shape import ShapedModel
    from qnnmem.report.fix import Command
    from qnnmem.results.fix import FixedModel, FixRecipe, Validation
    from qnnmem.targets.socs import Soc
    from qnnmem.verbs import ProgressListener, VerbCall

_NAMED = 40  # characters of a name in its temporary name
INTERRUPTED = 130  # 128 plus the number of SIGINT, as in shells


class FixTask(NamedTuple):
    """Task to fix one model: goal and output folder; can be sent to a worker."""

    model: str
    options: FixOptions
    prepare_options: tuple[str, ...] = ()  # typed options that `prepare` also accepts
    typed: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()  # steps from a log line to the budgets
    first: tuple[str, ...] = ()  # remedies to try first
    limit_request: Words = ()  # advice if a log shows a failure but no limit
    place: str = ""  # path of the model, if its name is not enough
    stem: str = ""  # stem of the output files, if not the model's
    always: bool = False  # also write a model that needed no change


class FixOutcome(NamedTuple):
    """Result of a fix, and the written files."""

    result: FixResult
    files: list[str]
    commands: Sequence[Command]
    validation: Validation | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the program."""
        if self.result.interrupted:
            return INTERRUPTED
        is_wrong = self.validation is not None and not self.validation.holds
        return self.result.exit_code or int(is_wrong)

    def as_result(self, *, chain: Sequence[str] = (), with_maps: bool = True) -> FixedModel:
        """Return the JSON result."""
        return fixed_model(
            self.result,
            self.files,
            next_step=one_line(self.commands),
            exit_code=self.exit_code,
            validation=self.validation,
            chain=chain,
            with_maps=with_maps,
        )


def check_fix(options: FixOptions) -> None:
    """Raise an error for options that the chosen backend lacks; for HTP, also for unknown SoCs."""
    refuse_foreign(options, options.backend)
    if options.is_htp:
        for soc in options.socs or (None,):  # before any file is read
            find_target(soc)


def fix_file(task: FixTask, call: VerbCall) -> FixOutcome:
    """Fix one model and write its files; return the result, the files and the next commands."""
    path = Path(task.place or task.model)
    stem = task.stem or path.stem
    place = FixFolder(Path(task.options.output), stem, task.options.force)
    names = [f"{stem}.onnx", FIRST_PART, MANIFEST, place.report.name, place.recipe.name]
    names += [f"{stem}.bin"] if task.options.is_htp else []
    _keep_source(path, [place.folder / name for name in names])
    with fix_folder(place, names), temporary_folder() as scratch:
        result = _fixed(path, task, call, Path(scratch))
        if task.limit_request and result.best.change.remedy == "none":
            why = "the model already fits, and the log does not state which limit was exceeded"
            raise CannotTell(why, cure=task.limit_request)
        notes = (*result.case.notes, *result.notes, *tensor_notes(result))
        result = replace(result, notes=notes)
        validation = _validated(result, call.listener) if task.options.validate else None
        if validation is not None and not validation.holds:
            return FixOutcome(result, [], (), validation)
        contents = outputs_of(result, stem, always=task.always)
        models = [str(place.folder / name) for name in contents] or [task.model]
        options = (*task.prepare_options, *_states_found(result, task.options))
        commands = next_commands(result, models, options) or _allowing(result, task, contents)
        files = _written(result, place, task, contents, commands) if contents else []
    return FixOutcome(result, files, commands, validation)


def _keep_source(model: Path, targets: Sequence[Path]) -> None:
    """Raise UsageError if an output file would overwrite the model itself."""
    if any(target.exists() and target.samefile(model) for target in targets if model.exists()):
        raise UsageError(f"{model} would be overwritten; choose another folder with -o")


def _allowing(result: FixResult, task: FixTask, contents: Mapping[str, bytes]) -> Sequence[Command]:
    """Return the current command, extended to allow the least lossy change that would fit."""
    where = ["-o", task.options.output, *["--force"] * bool(contents or task.options.force)]
    return allow_command(result, task.model, task.typed, where)


def _validated(result: FixResult, listener: ProgressListener) -> Validation:
    """Run the changed model again; return the comparison of every output."""
    listener.say("validating")
    return validate(result.case, result.best.change)


def _fixed(path: Path, task: FixTask, call: VerbCall, scratch: Path) -> FixResult:
    """Return the result of searching for a remedy, or of applying a recipe."""
    from qnnmem.fix.lpai import REMEDIES

    options = task.options
    source = None if options.recipe is None else Path(options.recipe)
    recipe = None if source is None else (read_recipe(source), source)
    if recipe is not None and recipe[0].backend != options.backend:
        raise UsageError(
            f"the recipe is for --backend {recipe[0].backend}, not for {options.backend}"
        )
    case = _case(path, options, None if recipe is None else recipe[0])
    if recipe is not None:
        _check_allowed(case, *recipe, options.backend)
    watch, memory = _Watcher(call.listener), memory_of(options.cache)
    if options.is_htp:
        work = HtpWork(scratch, memory, watch, call, task.first)
        return fixed_for_htp(case, options, work, recipe=recipe)
    call.listener.say("planning")
    budget = _by_pool(options.budgets) or None
    as_limits(budget or {})  # raises an error for an unknown pool
    if recipe is None:
        remedies = ordered(REMEDIES, task.first)
        return fix_for_lpai(case, budget, watch=watch, remedies=remedies, memory=memory)
    return _repeated(case, budget, *recipe)


def memory_of(cache: str | None) -> ResultCache | None:
    """Return the result cache; None if there is no home folder."""
    folder = cache_folder() if cache is None else Path(cache)
    return None if folder == NOWHERE else ResultCache(folder, "fix", must_keep=cache is not None)


def _repeated(
    case: FixCase, budget: dict[str, Bytes] | None, recipe: FixRecipe, path: Path
) -> FixResult:
    """Repeat a recipe on this model and judge the result."""
    from qnnmem.fix.lpai import REMEDIES

    change = apply_recipe(case, recipe.steps, path, (*REQUIRED, *REMEDIES, *LOSSY_REMEDIES))
    with CaseBench(case, PlanJudge(budget, case.seed)) as bench:
        bench.judged(Change("none", "as it is", case.model, case.options))
        judged = bench.with_levels(judged_steps(bench, change))
    if not judged.holds:
        raise UsageError(
            "nothing was written: the recipe changes the results of this model; run fix without "
            "the recipe"
        )
    return FixResult(case, (judged,), has_limits=bool(budget), notes=change.notes)


def _check_allowed(case: FixCase, recipe: FixRecipe, path: Path, backend: str) -> None:
    """Raise UsageError for a recipe that changes results without `--allow`."""
    known = set(lossy_words(backend)) - case.allow
    refused = [word for word in needed_words(recipe.steps) if word in known]
    if refused:
        raise UsageError(
            f"the recipe {path} changes results; to permit this, add --allow {','.join(refused)}"
        )


def _case(path: Path, wish: FixOptions, recipe: FixRecipe | None) -> FixCase:
    kind, states = kind_of(path), wish.states
    notes: tuple[str, ...] = ()
    if kind != "onnx" and (kind != "tflite" or wish.is_htp):
        known = "an ONNX model" if wish.is_htp else "an ONNX or TFLite model"
        raise UsageError(f"{path} is not {known}; other files cannot be changed")
    shapes = dict(wish.shapes)
    if recipe is not None and not (wish.dims or wish.shapes):
        shapes = dict(recipe.shapes)
    if kind == "tflite":
        if wish.values:
            raise UsageError(f"{path} is not an ONNX model; --value is only for ONNX models")
        form = tflite_form(path, shapes=shapes, dims=dict(wish.dims))
        model, states, notes = form.model, (*states, *form.states), (form.note,)
    else:
        model = read_shaped(path, dims=dict(wish.dims), shapes=shapes, values=dict(wish.values))
    options: PoolOptions | CompileOptions
    if wish.is_htp:
        options = htp_compile(wish, {**wish.sizes, "shapes": shapes})
    else:
        options = PoolOptions(io=wish.io, align=wish.align, bits=wish.bits, states=states)
    samples = () if wish.data is None else _samples(Path(wish.data), model)
    return FixCase(
        path,
        model,
        options,
        keep=frozenset(wish.keep),
        allow=_allowed(wish.allow, wish.backend),
        samples=samples,
        seed=wish.seed,
        ends_at=monotonic() + wish.time_limit,
        notes=notes,
    )


def _states_found(result: FixResult, options: FixOptions) -> tuple[str, ...]:
    """For the next commands, return `--state` options for states that only the model declares."""
    planned = getattr(result.case.options, "states", ())
    return tuple(
        word
        for pair in planned
        if pair not in options.states
        for word in ("--state", "=".join(pair))
    )


def _samples(place: Path, model: ShapedModel) -> tuple[Sample, ...]:
    """Return the user's samples; each is read once, so that a damaged sample fails early."""
    inputs = inputs_of(write_typed(model))
    samples = find_samples(place, inputs)
    for sample in samples:
        read_sample(sample, inputs)
    return samples


def _allowed(words: tuple[str, ...], backend: str) -> frozenset[str]:
    """Return the allowed lossy remedies; raise UsageError for an unknown word."""
    known = lossy_words(backend)
    for word in words:
        if word not in (*known, "all"):
            raise UsageError(
                f"--allow takes {', '.join(known)} or all for {backend}, not {quote(word)}"
            )
    return frozenset(known if "all" in words else words)


def _by_pool(budgets: Sequence[tuple[str, Bytes]]) -> dict[str, Bytes]:
    """Return the budgets by pool; raise UsageError if a pool has two budgets."""
    limits = {name.lower(): size for name, size in budgets}
    if len(limits) < len(budgets):
        raise UsageError("a pool has two budgets; set only one")
    return limits


class _Watcher:
    """Prints each tried remedy immediately if standard error is a terminal."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener, self._begun = listener, False

    def __call__(self, change: JudgedChange) -> None:
        import sys

        if sys.stderr.isatty():
            if not self._begun:
                self._listener.note(HEADER)
            self._listener.note(row(change))
        self._begun = True
        self._listener.say("looking for changes")


def _written(
    result: FixResult,
    place: FixFolder,
    task: FixTask,
    contents: Mapping[str, bytes],
    commands: Sequence[Command],
) -> list[str]:
    """Write the files of a change, all or none; return their names."""
    facts = RunFacts(sha256_of(result.case.path), task.typed, runtime_words(), task.chain)
    report = render_report(result, facts, str(place.recipe), commands)
    recipe = encode(recipe_of(result))
    words = {
        place.report.name: report.encode("utf-8", "backslashreplace"),
        place.recipe.name: recipe.encode(),
    }
    return place.write({**contents, **words})


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_target(soc: str | None) -> Soc:
    """Return the SoC with this name; raise MissingSoc if no name is given."""
    if soc is None:
        raise MissingSoc(what="--backend htp needs --soc: the limits depend on the SoC")
    return find_soc(soc)


def htp_compile(options: FixOptions, sizes: Mapping[str, Any]) -> CompileOptions:
    """Return the compile options; `sizes` are open dimensions and input values."""
    compile_options = CompileOptions(
        precision=HtpPrecision(options.precision or "fp16"),
        vtcm_mb=options.vtcm_mb,
        opt_level=options.opt_level,
        **sizes,
    )
    check_options(find_target(options.soc), compile_options)
    return compile_options


class HtpWork(NamedTuple):
    """Working folder, cache and listeners of a fix for HTP."""

    folder: Path
    memory: ResultCache | None
    watch: Watcher
    call: VerbCall
    first: tuple[str, ...] = ()  # remedies to try first


def fixed_for_htp(
    case: FixCase,
    options: FixOptions,
    work: HtpWork,
    *,
    recipe: tuple[FixRecipe, Path] | None = None,
) -> HtpFixResult:
    """Return the result of searching for a remedy, or of applying a recipe."""
    from qnnmem.fix.htp import REMEDIES

    budgets, soc = _by_pool(options.budgets), find_target(options.soc)
    limits = {pool: Sourced(size, Origin.GIVEN, "--budget") for pool, size in budgets.items()}
    check_pools(limits)
    need_compiler(case.path, (soc,), htp_compile(options, {}), work.call)
    beside = tuple(map(Path, options.beside))
    say = work.call.listener.say
    with Worker(warm=True) as worker:
        trials = LibraryTrials(soc, worker, work.folder, limits, work.memory, progress=say)
        if recipe is None:
            remedies = ordered(REMEDIES, work.first)
            return fix_for_htp(case, trials, beside=beside, watch=work.watch, remedies=remedies)
        repeated, path = recipe
        known = (operator_remedy(soc, case), *REMEDIES, *LOSSY_REMEDIES)
        return repeat_for_htp(
            case, trials, lambda own: apply_recipe(own, repeated.steps, path, known), beside
        )


@dataclass(frozen=True, slots=True)
class FixFolder:
    """Output folder of one model: all its files come from one complete run.

    The recipe is written last: if it exists, all files exist. If only a temporary file of the
    recipe exists, a run was killed; the next run keeps the files that already have the right
    content.
    """

    folder: Path
    stem: str
    force: bool = False

    @property
    def recipe(self) -> Path:
        """Path of the recipe, which is written last."""
        return self.folder / f"{self.stem}.recipe.json"

    @property
    def report(self) -> Path:
        """Path of the report for people."""
        return self.folder / f"{self.stem}.report.md"

    @property
    def is_unfinished(self) -> bool:
        """True if a run was killed while it wrote to this folder."""
        return bool(self._left(self.recipe.name)) and not os.path.lexists(self.recipe)

    def write(self, contents: Mapping[str, bytes]) -> list[str]:
        """Write files in this order, all or none; keep equal files of a run that was killed."""
        named = {self.folder / name: content for name, content in contents.items()}
        goes_on = self.is_unfinished
        stale = [left for name in contents for left in self._left(name)]
        new = {
            path: content
            for path, content in named.items()
            if not (goes_on and _is_same(path, content))
        }
        write_together(new, force=self.force)
        for left in stale:
            with suppress(OSError):
                left.unlink()
        return [str(path) for path in named]

    def _left(self, name: str) -> list[Path]:
        """Return the hidden temporary files that a killed run left behind for a file name."""
        shape = re.compile(re.escape(f".{name[:_NAMED]}.") + "[0-9a-f]{16}")
        try:
            return [path for path in self.folder.iterdir() if shape.fullmatch(path.name)]
        except OSError:
            return []


def _is_same(path: Path, content: bytes) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size != len(content):
            return False
        return path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def fix_folder(place: FixFolder, names: Sequence[str]) -> Iterator[None]:
    """Create the output folder for a `with` block; raise an error if `names` cannot be written."""
    with folder_for_output(place.folder):
        if not place.is_unfinished:
            for name in names:
                check_replaceable(place.folder / name, force=place.force)
        yield
