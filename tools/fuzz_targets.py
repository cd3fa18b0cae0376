"""Every reader of qnnmem as a fuzz target: the seeds, the damage, the commands.

To add a target, put seeds into `tests/corpus/NAME`, write a `Target` and list it in `TARGETS`. A
command is a text: `FILE` is the damaged file, `OUT.x` an output file, `[a|b|]` a choice, and a
first word with `@` means a reader without its verb.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import damage
import damage_binaries
import fuzz_logs
import fuzz_onnx
from damage import ANY, Damage, stream
from fuzz_case import Case, Content, Link, Reader

from qnnmem.units import Align

_TESTS = Path(__file__).parents[1] / "tests"
CORPUS = _TESTS / "corpus"
BESIDE = CORPUS / "beside"  # valid files that commands need in addition to the damaged file
NAMES = ("a\x1b[31mb", "line\nbreak", "\u202eabc", "x" * 200, "\udcff", "a b", "-", "#{}", "<b>")
_PLAN_S = 0.05
_SOCS = (None, "SM8650", "SM7325", "SA8797")
_LPAI_CODES = (5004, 5005, 5008, 5011, 30010)
_CHOICE = re.compile(r"\[([^\]]*)\]")

Beside = Callable[[random.Random, bytes], Mapping[str, Content]]


def _alone(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    return {}


@dataclass(frozen=True)
class Target:
    """Fuzz target: the damage of its files, their names, the commands that read them."""

    name: str
    file: str
    damages: tuple[Damage, ...]
    commands: tuple[str, ...]
    weight: int
    beside: Beside = _alone
    folder: Path | None = None  # folder of the seeds; by default named like the target

    @cache  # noqa: B019  targets live as long as the program
    def seeds(self) -> tuple[bytes, ...]:
        """Return the valid files and the regressions of the corpus."""
        folder = self.folder or CORPUS / self.name
        return tuple(path.read_bytes() for path in sorted(folder.iterdir()))

    def case(self, seed: int, index: int) -> Case:
        """Return a case by its number; the same seed and number give the same case."""
        rng = stream(seed, index)
        kind, content = self.damaged(rng)
        return self.make(rng, index, kind, content, rng.choice(self.commands))

    def damaged(self, rng: random.Random) -> tuple[str, bytes]:
        """Return the kind of damage and a damaged file."""
        seeds = self.seeds()
        data, kind = rng.choice(seeds), rng.choice(self.damages)
        content = _damaged(rng, kind, data, seeds)
        if content and rng.random() < 0.15:
            content = rng.choice(ANY)(rng, content, seeds)
        return getattr(kind, "__name__", "damage"), content

    def make(self, rng: random.Random, index: int, kind: str, content: bytes, command: str) -> Case:
        """Return the case of a command on this content."""
        name = self.file
        if rng.random() < 0.03:
            name = rng.choice(NAMES) + Path(name).suffix
        files = {name: content, **self.beside(rng, content)}
        words, outputs = expand(rng, command, name)
        if "@" in words:  # the content is used as typed text, not as a file
            words = (
                *words[:-1],
                "--",
                *content.replace(b"\0", b"").decode("utf-8", "surrogateescape").split("\n")[:20],
            )
        if outputs and rng.random() < 0.05:
            files[outputs[0]] = b"older"
        stdin = content if "-" in words else b""
        return Case(self.name, index, kind, words, files, stdin, outputs)

    def corpus(self, every: bool = True) -> Iterator[Case]:
        """Yield a case for every unchanged file of the corpus, with every command or the first."""
        commands = list(dict.fromkeys(self.commands))
        for number, content in enumerate(self.seeds()):
            for place, command in enumerate(commands if every else commands[:1]):
                rng = stream(0, 1000 * number + place)
                yield self.make(rng, -1 - number, "corpus", content, command)


def _damaged(rng: random.Random, kind: Damage, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    try:
        return kind(rng, data, others)
    except Exception:  # a regression that no longer has its format: damage it as bytes
        return rng.choice(ANY)(rng, data, others)


def expand(rng: random.Random, command: str, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of a command, and its output files."""
    text = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), command)
    words = [file if word == "FILE" else word for word in text.split()]
    outputs = tuple(word for word in words if word.startswith("OUT"))
    return tuple(words), outputs


def sound(*names: str) -> Beside:
    """Return a function that adds these valid files to the damaged file."""
    return lambda rng, content: {name: (BESIDE / name).read_bytes() for name in names}


# --- Readers by themselves -----------------------------------------------------------------------


def _guard(path: Path) -> None:
    from qnnmem.loader.onnx import read_guarded

    read_guarded(path)


def _plan(path: Path) -> None:
    """Load, plan, verify and render."""
    import qnnmem
    from qnnmem.planner.planned_file import PlannedFile
    from qnnmem.report.plan import render_text
    from qnnmem.results.schema import encode

    model = qnnmem.load(path)
    rng = random.Random(len(model.tensors))  # noqa: S311  repeatable on purpose
    options = qnnmem.PoolOptions(align=rng.choice((None, Align(1), Align(64))))
    if model.format != "csv":  # a list of buffers has no other option
        options = qnnmem.PoolOptions(
            io=rng.choice((qnnmem.Io.INSIDE, qnnmem.Io.OUTSIDE)),
            bits=rng.choice((None, 8, 16)),
            inplace=rng.random() < 0.3,
            reorder=rng.random() < 0.3,
        )
    result = qnnmem.plan(model, _PLAN_S, options=options)
    _require(qnnmem.verify(result.scratch) is None, "verification rejects the plan")
    report = PlannedFile(result, str(path))
    _require_printable(render_text(report))
    json.loads(encode(report.result))


def _bill(path: Path) -> None:
    """Read an HTP binary, make its bill for a SoC and render both."""
    from msgspec import to_builtins

    from qnnmem.htp.bill import bill_of
    from qnnmem.htp.binary.context import describe_context
    from qnnmem.htp.binary.read import read_context
    from qnnmem.report import bill as bill_report
    from qnnmem.results.schema import encode
    from qnnmem.targets.socs import find_soc

    context = read_context(path)
    soc = _SOCS[path.stat().st_size % len(_SOCS)]
    bill = bill_of(context, None if soc is None else find_soc(soc))
    json.dumps(to_builtins(describe_context(context)), allow_nan=False)
    json.loads(encode(bill))
    _require_printable(bill_report.render_text(bill))


def _inspect(path: Path) -> None:
    """Read an LPAI binary, render it and write it back."""
    from qnnmem.errors import QnnError
    from qnnmem.lpai.binary import check_device, pack, unpack
    from qnnmem.lpai.inspect import binary_info
    from qnnmem.report.inspect import render_lpai
    from qnnmem.results.schema import encode

    data = path.read_bytes()
    try:
        context = unpack(data, 30010 if len(data) % 3 else 5005)
        info = binary_info(context, len(data))
        json.loads(encode(info))
        _require_printable(render_lpai(info.qnnmem, "context"))
        _require(
            unpack(b"".join(pack(context))) == context, ("the rewritten binary has other content")
        )
        check_device(context, "v5_1", strict=len(data) % 4 == 0)
    except QnnError as exc:
        _require(exc.code in _LPAI_CODES, f"code {exc.code} is not one of {_LPAI_CODES}")
        raise


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _require_printable(text: str) -> None:
    _require(text.replace("\n", "").isprintable(), "a control character in the text report")


def _samples(path: Path) -> None:
    from qnnmem.calibration import Input, find_samples, read_sample

    inputs = [Input("x", "float32", (1, 16))]
    for sample in find_samples(path.parent, inputs)[:4]:
        read_sample(sample, inputs)


def _note(path: Path) -> None:
    from qnnmem.doctor.kb.knowledge import pack, read_folder

    pack(*read_folder(path, own=True), "")


READERS: Mapping[str, Reader] = {
    "@guard": _guard,
    "@load": _plan,
    "@context": _bill,
    "@binary": _inspect,
    "@samples": _samples,
    "@note": _note,
}


# --- Companion files -----------------------------------------------------------------------------


def _weights(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    """Return targets for external data: a file, links, a hard link."""
    return {
        fuzz_onnx.BESIDE: bytes(rng.choice((0, 16, 64, 4096))),
        "link.data": Link(fuzz_onnx.BESIDE),
        "away.data": Link("/etc/passwd"),
        "hard.data": Link(fuzz_onnx.BESIDE, hard=True),
    }


def _pointed(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    """Return the LPAI file of a tool file: valid, the damaged file itself, or a link."""
    good = (BESIDE / "eaiParams_direct.conf").read_bytes()
    pointed: Content = rng.choice((good, good, content, Link("tool.json"), Link("/dev/zero")))
    return {"eaiParams_direct.conf": pointed, **sound("run.bin", "list.txt", "x.raw")(rng, content)}


def _tool(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    """Return the tool file of a damaged LPAI file."""
    return sound("tool.json", "quantized.onnx")(rng, content)


def _note_folder(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    """Return a log with the lines of the note, so that its templates are matched."""
    rows = re.findall(rb'text = "([^"\n]*)"|```text\n(.*?)\n```', content, re.DOTALL)
    told = b"\n".join(one or other for one, other in rows)
    return {"run.log": told + b"\n" + fuzz_logs.line(rng).encode("utf-8", "replace") + b"\n"}


def _log_folder(rng: random.Random, content: bytes) -> Mapping[str, Content]:
    other = fuzz_logs.add_lines(rng, b"healthy\n", ())
    return {"logs/a.log": content, "logs/b.001.log": other, "logs/b.002.log": content[:99]}


# --- The targets ---------------------------------------------------------------------------------

_TEXT = damage.TEXT
_RUN = "net-run --backend libQnnLpai.so"
_PLAN = "--time-limit 1 [--format json|--format csv||] [--io outside|] [--inplace|] [--reorder|]"
_HTP = (
    "inspect FILE [--json|--json -o OUT.json|-o OUT.txt|]",
    "footprint FILE [--soc SM8650|--soc SM7325|] [--json|]",
    "fit FILE [--soc SM8650|--all-socs|] [--budget pd=1M|] [--json|]",
    "qmem FILE [--json|]",
    "place FILE FILE [--soc SM8650|] [--json|]",
    "doctor run.log --binary FILE [--json|]",
    "plan FILE",
    f"{_RUN} --retrieve_context FILE --input_list list.txt --output_dir OUT",
)

TARGETS: tuple[Target, ...] = (
    Target(
        "onnx",
        "model.onnx",
        (*damage.BY_FORMAT["onnx"], *(fuzz_onnx.craft,) * 12),
        (
            *("@guard FILE",) * 20,
            f"plan FILE {_PLAN} [--bits 8|--bits 16||] [--dim N=2|--shape x=1x4||]",
            "plan FILE --time-limit 1 --format json -o OUT.json [--force|] [--state h_in=h_out|]",
            "prepare FILE --time-limit 1 [--float|--quantize int8|--quantize int16] -o OUT.bin",
            "footprint FILE --soc SM8650 --time-limit 2",
            "doctor run.log --model FILE",
        ),
        30,
        lambda rng, data: {**_weights(rng, data), **sound("run.log")(rng, data)},
    ),
    Target(
        "tflite",
        "model.tflite",
        damage.BY_FORMAT["tflite"],
        (
            *("@load FILE",) * 3,
            f"plan FILE {_PLAN}",
            "plan FILE --time-limit 1 -o OUT.txt",
            "prepare FILE --time-limit 1 -o OUT.bin",
            "inspect FILE",
        ),
        10,
    ),
    Target(
        "eaix",
        "report.eaix",
        damage.BY_FORMAT["eaix"],
        (
            *("@load FILE",) * 3,
            f"plan FILE {_PLAN}",
            "plan FILE --time-limit 1 --format json -o OUT.json [--force|]",
            "prepare FILE --time-limit 1 -o OUT.bin",
        ),
        10,
    ),
    Target(
        "csv",
        "buffers.csv",
        damage.BY_FORMAT["csv"],
        (
            *("@load FILE",) * 2,
            "plan FILE --time-limit 1 [--format json|--format csv|] [--align 64|] [--capacity 1K|]",
            "plan FILE --time-limit 1 --format json -o OUT.json [--force|]",
            "prepare FILE --time-limit 1 -o OUT.bin",
        ),
        10,
    ),
    Target(
        "lpai",
        "context.bin",
        (*damage_binaries.RAW, *damage_binaries.SEALED * 2),
        (
            *("@binary FILE",) * 6,
            *("inspect FILE [--json|--json -o OUT.json|-o OUT.txt|]",) * 3,
            f"{_RUN} --retrieve_context FILE --input_list list.txt --output_dir OUT [--use_mmap|]",
            "doctor run.log --binary FILE",
            "footprint FILE",
            "place FILE FILE",
        ),
        20,
        sound("list.txt", "x.raw", "run.log"),
    ),
    Target(
        "htp",
        "context.bin",
        damage_binaries.HTP,
        (*("@context FILE",) * 8, *_HTP),
        15,
        sound("list.txt", "x.raw", "run.log"),
    ),
    Target(
        "epcontext",
        "context.onnx",
        (*ANY, *(damage.change_proto,) * 4, fuzz_onnx.craft),
        (*("@context FILE",) * 6, *_HTP[:6]),
        8,
        lambda rng, data: {
            "beside.bin": (BESIDE / "htp.bin").read_bytes(),
            "link.bin": Link(rng.choice(("beside.bin", "/etc/passwd", "link.bin", "/dev/zero"))),
            **sound("run.log")(rng, data),
        },
    ),
    Target("pte", "model.pte", damage_binaries.HTP, (*("inspect FILE [--json|]",) * 4, *_HTP), 12),
    Target(
        "litert", "model.tflite", damage_binaries.HTP, (*("inspect FILE [--json|]",) * 4, *_HTP), 8
    ),
    Target(
        "litertlm",
        "model.litertlm",
        damage_binaries.HTP,
        (*("inspect FILE [--json|]",) * 4, *_HTP),
        4,
    ),
    Target("app", "app.zip", damage_binaries.HTP, (*("inspect FILE [--json|]",) * 4, *_HTP), 12),
    Target(
        "genie",
        "genie_config.json",
        (*ANY, *damage.BY_FORMAT["eaix"]),
        (*("inspect FILE [--json|]", "inspect . [--json|]") * 2, *_HTP[1:5], "place . FILE"),
        6,
        lambda rng, data: {
            "a.bin": (BESIDE / "htp.bin").read_bytes(),
            "b.bin": Link(rng.choice(("a.bin", "/etc/passwd", "b.bin", "/dev/zero"))),
            "htp.json": rng.choice((b'{"devices": [{"soc_model": 69, "dsp_arch": "v79"}]}', data)),
        },
    ),
    Target(
        "config",
        "tool.json",
        damage.BY_FORMAT["eaix"],
        (
            *("lint FILE [--json|--json -o OUT.json|] [--strict|]",) * 4,
            "lint FILE FILE eaiParams_direct.conf",
            f"{_RUN} --retrieve_context run.bin --input_list list.txt"
            " --config_file FILE --output_dir OUT",
        ),
        10,
        _pointed,
    ),
    Target(
        "lpai_config",
        "eaiParams_direct.conf",
        damage.BY_FORMAT["eaix"],
        (
            *("lint tool.json [--json|] [--strict|]", "lint FILE [--json|]") * 3,
            "prepare quantized.onnx --config FILE --time-limit 1 -o OUT.bin",
        ),
        8,
        _tool,
    ),
    Target(
        "inputs",
        "list.txt",
        (*ANY, *_TEXT),
        (
            f"{_RUN} --retrieve_context run.bin --input_list FILE --output_dir OUT"
            " [--num_inferences 3|--shared_buffer|--use_native_input_files||]",
        ),
        3,
        sound("run.bin", "x.raw"),
    ),
    Target(
        "raw",
        "x.raw",
        ANY,
        (f"{_RUN} --retrieve_context run.bin --input_list list.txt --output_dir OUT",),
        1,
        sound("run.bin", "list.txt"),
    ),
    Target(
        "calibration",
        "samples/x.npy",
        (*ANY, *_TEXT),
        (
            *("@samples FILE",) * 30,
            "prepare float.onnx --quantize int8 --calibration samples --time-limit 1 -o OUT.bin",
        ),
        8,
        sound("float.onnx"),
    ),
    Target("calibration_zip", "samples/x.npz", ANY, ("@samples FILE",), 4),
    Target(
        "calibration_list",
        "samples/input_list.txt",
        (*ANY, *_TEXT),
        ("@samples FILE",),
        3,
        lambda rng, data: {"samples/x.raw": (BESIDE / "x.raw").read_bytes()},
    ),
    Target(
        "notes",
        "note.md",
        fuzz_logs.NOTE,
        (
            *("@note FILE",) * 3,
            "kb check --kb FILE [--json|]",
            "kb list --kb FILE [--json|]",
            "kb show own --kb FILE",
            *("doctor run.log --kb FILE [--format json|--format markdown|--format sarif|]",) * 2,
        ),
        16,
        _note_folder,
    ),
    Target(
        "lines",
        "common.toml",
        fuzz_logs.NOTE,
        ("@note FILE", "kb check --kb FILE", "doctor run.log --kb FILE"),
        3,
        _note_folder,
    ),
    Target(
        "logs",
        "run.log",
        fuzz_logs.LOG,
        (
            *("doctor FILE --format [text|json|markdown|sarif]",) * 6,
            "doctor FILE --format json -o OUT.json [--force|]",
            "doctor FILE --group-by [cause|stage|entry|device|build|file] [--json|]",
            "doctor - --format [text|json|markdown|sarif]",
            "doctor logs [--json|--group-by cause||--jobs 2]",
        ),
        25,
        _log_folder,
    ),
    Target(
        "packed",
        "run.log",
        fuzz_logs.PACKED,
        (*("doctor FILE --format [text|json|markdown|sarif]",) * 4, "doctor - [--json|]"),
        10,
    ),
    # Read by the vendor's reader in a child process, so a case takes a second.
    Target("dlc", "model.dlc", ANY, ("plan FILE --time-limit 1",), 1, folder=_TESTS / "loader/dlc"),
    Target("words", "words.txt", (*ANY, *_TEXT), ("explain @", "socs @", "kb show @"), 6),
)
