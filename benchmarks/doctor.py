"""Measure `qnnmem doctor` against ripgrep and write benchmarks/results/doctor.md.

    python benchmarks/doctor.py            logs of 256 MiB, some minutes
    python benchmarks/doctor.py --full     logs of 1 GiB
    python benchmarks/doctor.py --quick    logs of 32 MiB, writes no page
    python benchmarks/doctor.py --noise    noise and the 5 KB log; rewrites their part of the page

Both commands search the same logs for the same messages, in alternation. The result is the ratio of
their CPU times (user and system, children included), usually the best of three rounds. ripgrep only
counts lines. The doctor's time covers the whole command, from its start to the printed JSON.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeAlias

from doctor_kb import expression, families, write_base
from doctor_measure import WITH_ENGINE, Bench, Spent
from doctor_noise import noises

HERE = Path(__file__).resolve().parent
PAGE = HERE / "results" / "doctor.md"
DOCTOR = (Path(sys.executable).parent / "qnnmem", "doctor", "--format", "json")
BARE = (sys.executable, "-c", "pass")
NO_RIPGREP = (
    "`rg` is not on the PATH, so there is nothing to compare with; install ripgrep 15 with "
    "the npm package @vscode/ripgrep-linux-x64 (bin/rg), with `cargo install ripgrep`, or "
    "from a release"
)
DENSITIES = {"0.01 %": (0.0001, 1.0), "1 %": (0.01, 0.5), "5 %": (0.05, 0.25)}
NOISE = "## Noise and the 5 KB log"
KIND_MIB = 96  # MiB of each kind of noise
SMALL_LOG = (
    "qnn_htp_device_create failed",
    "qnn_backend_initialize failed",
    "Error code: QNN_STATUS_MEMORY_ALLOCATION_FAILED",
    "Failed to initialize HTP backend",
)


class Row(NamedTuple):
    """Row of the table: name, goal, measured value, whether the goal is met."""

    name: str
    bar: str
    measured: str
    met: bool


class Setting(NamedTuple):
    """Setup shared by all measurements."""

    bench: Bench
    rg: str
    size: int  # MiB of a log
    others: list[Path]  # additional logs to measure
    logs: dict[str, Path]  # by share of failure lines

    def base(self, templates: int) -> Path:
        """Return the folder of a knowledge base with this many templates."""
        folder = self.bench.folder / f"base-{templates}"
        if not folder.exists():
            write_base(folder, families(templates))
            texts = [text for kind in families(templates) for text in kind.texts]
            _write_patterns(folder.with_suffix(".patterns"), texts)
            _write_patterns(folder.with_suffix(".equal"), [*_built_in_texts(), *texts])
        return folder

    def doctor(self, log: Path, templates: int = 300) -> list[str | Path]:
        """Return the doctor command to measure."""
        return [*DOCTOR, "--kb", self.base(templates), log]

    def ripgrep(
        self, log: Path, *options: str, templates: int = 300, equal: bool = False
    ) -> list[str | Path]:
        """Return ripgrep's command for generated messages; if `equal`, for built-in ones too."""
        patterns = self.base(templates).with_suffix(".equal" if equal else ".patterns")
        fixed = ("-j1", "-a", "--no-unicode", "--no-config", "-c", "-f")
        return [self.rg, *options, *fixed, patterns, log]


Part: TypeAlias = "Callable[[Setting], Iterator[Row]]"


def main() -> int:
    """Measure everything and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--full", action="store_true", help="logs of 1 GiB")
    parser.add_argument("--quick", action="store_true", help="logs of 32 MiB; write no page")
    parser.add_argument(
        "--noise",
        action="store_true",
        help="measure only noise and the short log, and rewrite their rows, also with --quick",
    )
    parser.add_argument(
        "--log",
        type=Path,
        action="append",
        default=[],
        help=("also measure this log as a kind of noise"),
    )
    parser.add_argument("--folder", type=Path, help="folder for the logs; it is not deleted")
    given = parser.parse_args()
    rg = shutil.which("rg")
    if rg is None:
        print(NO_RIPGREP, file=sys.stderr)
        return 0
    size = 1024 if given.full else 32 if given.quick else 256
    with tempfile.TemporaryDirectory() as folder:
        chosen = given.folder or Path(folder)
        chosen.mkdir(parents=True, exist_ok=True)
        setting = make(Bench(chosen), rg, size, given.log, kinds_alone=given.noise)
        rows = [*measure(setting, (kinds, small) if given.noise else PARTS)]
        text = "\n".join(with_noise(setting, rows) if given.noise else page(setting, rows))
    print(text)
    if given.noise or not given.quick:
        PAGE.write_text(text + "\n", encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def make(
    bench: Bench, rg: str, size: int, others: list[Path], *, kinds_alone: bool = False
) -> Setting:
    """Make the logs that several measurements share."""
    logs: dict[str, Path] = {}
    if kinds_alone:
        return Setting(bench, rg, size, others, logs)
    for name, (density, _) in DENSITIES.items():
        print(f"making a log with {name} failure lines", file=sys.stderr, flush=True)
        path = bench.folder / f"log-{size}-{density}.log"
        if not Path(f"{path}.truth.json").exists():
            bench.log(path.name, "--size", f"{size}M", "--density", density)
        logs[name] = path
    logs["0.01 %, 64 MiB"] = bench.log("little.log", "--size", "64M")
    return Setting(bench, rg, size, others, logs)


def measure(setting: Setting, parts: Sequence[Part]) -> Iterator[Row]:
    """Yield one row for each goal, and print it immediately."""
    for part in parts:
        for row in part(setting):
            print(f"{row.name}: {row.measured} ({row.bar})", file=sys.stderr, flush=True)
            yield row


def kinds(setting: Setting) -> Iterator[Row]:
    """Measure noise of many kinds with the built-in base, the slowest first."""
    patterns = setting.bench.folder / "built-in.patterns"
    _write_patterns(patterns, _built_in_texts())
    fixed = ("-i", "-j1", "-a", "--no-unicode", "--no-config", "-c", "-f", patterns)
    rows = []
    for name, log in noises(
        setting.bench, min(setting.size, KIND_MIB) << 20, setting.others
    ).items():
        best = setting.bench.race({"rg": [setting.rg, *fixed, log], "us": [*DOCTOR, log]})
        ours, theirs = best["us"].cpu, best["rg"].cpu
        rows.append((theirs / ours, _times(f"noise: {name}", theirs, ours, 1.0)))
    yield from (row for _, row in sorted(rows))


def densities(setting: Setting) -> Iterator[Row]:
    """Compare the doctor with ripgrep, which searches for as many patterns or for fewer."""
    for name, (_, bar) in DENSITIES.items():
        log = setting.logs[name]
        runs = {
            "equal": setting.ripgrep(log, "-i", equal=True),
            "one case": setting.ripgrep(log, equal=True),
            "fewer": setting.ripgrep(log),
            "us": setting.doctor(log),
        }
        best = setting.bench.race(runs, rounds=15)  # shared machines vary in speed
        ours, count = best["us"].cpu, len(_built_in_texts()) + 300
        title = f"{name} failure lines, {count:,} templates against"
        yield _times(f"{title} {count:,} patterns", best["equal"].cpu, ours, bar)
        yield _times(f"{title} {count:,} patterns, case-sensitive", best["one case"].cpu, ours)
        yield _times(f"{title} 300 patterns, case-sensitive", best["fewer"].cpu, ours)


@cache
def _built_in_texts() -> tuple[str, ...]:
    """Return the templates of the built-in knowledge base, from a separate process."""
    code = "from qnnmem.doctor.kb.knowledge import built_in; print(*built_in().texts, sep='\\0')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return tuple(done.stdout.rstrip("\n").split("\0"))


def _write_patterns(path: Path, texts: Sequence[str]) -> None:
    path.write_text("\n".join(map(expression, texts)) + "\n", encoding="utf-8")


def many_templates(setting: Setting) -> Iterator[Row]:
    """Measure the same log with a larger knowledge base."""
    log = setting.logs["0.01 %"]
    runs = {str(count): setting.doctor(log, count) for count in (300, 1000)}
    runs["rg"] = setting.ripgrep(log, templates=1000)
    best = setting.bench.race(runs)
    ratio = best["300"].cpu / best["1000"].cpu
    measured = f"{ratio:.2f} ({best['300'].cpu:.2f} and {best['1000'].cpu:.2f} s)"
    yield Row(
        "speed with 1000 templates, relative to 300", "at least 0.65", measured, ratio >= 0.65
    )
    yield Row(
        "1000 templates, 0.01 % failure lines",
        "none",
        f"{best['rg'].cpu / best['1000'].cpu:.2f} times ripgrep",
        True,
    )


def engines(setting: Setting) -> Iterator[Row]:
    """Measure each engine on a smaller log."""
    log = setting.logs["0.01 %, 64 MiB"]
    for engine, bar in (("hyperscan", None), ("re2", 0.7), ("plain", 0.08)):
        ours: list[str | Path] = [sys.executable, "-c", WITH_ENGINE, engine]
        ours += [setting.base(300), log]
        best = setting.bench.race({"rg": setting.ripgrep(log), "us": ours}, rounds=2)
        yield _times(f"engine {engine}, 0.01 %, 64 MiB", best["rg"].cpu, best["us"].cpu, bar)


def packed(setting: Setting) -> Iterator[Row]:
    """Measure compressed logs."""
    log = setting.logs["0.01 %"]
    for kind, program, bar in (("gz", "gzip", 2.5), ("zst", "zstd", 1.3)):
        if shutil.which(program) is None:
            continue  # ripgrep needs this program
        path = Path(f"{log}.{kind}")
        if not path.exists():
            make = "import sys; from pathlib import Path; from doctor_log import pack; "
            code = f"{make}pack(Path(sys.argv[1]), sys.argv[2])"
            command = [sys.executable, "-c", code, str(log), kind]
            subprocess.run(command, check=True, cwd=HERE)  # noqa: S603 - this program
        runs = {"rg": setting.ripgrep(path, "-z"), "us": setting.doctor(path)}
        best = setting.bench.race(runs)
        yield _times(f".{kind} against rg -z", best["rg"].cpu, best["us"].cpu, bar)


def small(setting: Setting) -> Iterator[Row]:
    """Measure a short pasted log with the built-in knowledge base."""
    log = setting.bench.log("small.log", "--size", "4K", "--density", 0)
    with log.open("a", encoding="utf-8") as file:
        file.writelines(f"01-01 12:00:00.000  7000  7001 E Qnn : {x}\n" for x in SMALL_LOG)
    best = setting.bench.race({"bare": BARE, "us": [*DOCTOR, log]}, rounds=15)
    ratio = best["us"].cpu / best["bare"].cpu
    slowest = max(setting.bench.run([*DOCTOR, log]).wall for _ in range(15))
    shown = f"{ratio:.2f} ({best['us'].cpu * 1e3:.0f} and {best['bare'].cpu * 1e3:.0f} ms)"
    yield Row("5 KB log to `python -c pass`, CPU", "at most 8", shown, ratio <= 8)
    name = "5 KB log, slowest of 15 runs, wall"
    yield Row(name, "at most 0.3 s", f"{slowest:.2f} s", slowest <= 0.3)


def first_byte(setting: Setting) -> Iterator[Row]:
    """Measure the start with a log just large enough for the engine."""
    log = setting.bench.log("start.log", "--size", "2M", "--density", 0)
    setting.bench.run([*DOCTOR, log])
    best = setting.bench.race({"bare": BARE, "us": [*DOCTOR, log]}, rounds=9)
    took = (best["us"].cpu - best["bare"].cpu) * 1e3
    name = "2 MiB log, second run, CPU over bare Python"
    yield Row(name, "at most 120 ms", f"{took:.0f} ms", took <= 120)


def _four(setting: Setting) -> Path:
    """Return the path of the log with 0.01 % failure lines, concatenated four times."""
    four = setting.bench.folder / f"four-{setting.size}.log"
    if not four.exists():
        with four.open("wb") as target:
            for _ in range(4):
                with setting.logs["0.01 %"].open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
    return four


def jobs(setting: Setting) -> Iterator[Row]:
    """Measure the speed-up of two readers over one reader on a large log, in wall time."""
    command = setting.doctor(_four(setting))
    runs = {str(count): [*command, "--jobs", str(count)] for count in (1, 2)}
    best: dict[str, Spent] = {}
    for _ in range(3):
        for name, run in runs.items():
            spent = setting.bench.run(run)
            best[name] = min(best.get(name, spent), spent, key=lambda one: one.wall)
    one, two = best["1"], best["2"]
    name = f"speed of `--jobs 2` relative to one reader, {4 * setting.size} MiB, wall"
    shown = f"{one.wall / two.wall:.2f} ({two.wall:.2f} and {one.wall:.2f} s; "
    shown += f"processor {two.cpu:.2f} and {one.cpu:.2f} s)"
    yield Row(name, "at least 1.7", shown, one.wall / two.wall >= 1.7)


def memory(setting: Setting) -> Iterator[Row]:
    """Measure the peak memory for several inputs."""
    bench, plain, four = setting.bench, setting.logs["0.01 %"], _four(setting)
    long = bench.log("long.log", "--size", "300M", "--long-line", "200M")
    inputs = {
        f"{4 * setting.size} MiB": four,
        "64 MiB": setting.logs["0.01 %, 64 MiB"],
        "a line of 200 MiB": long,
        ".gz": Path(f"{plain}.gz"),
        ".zst": Path(f"{plain}.zst"),
        "5 % failure lines": setting.logs["5 %"],
    }
    peaks = {}
    for name, path in inputs.items():
        if path.exists():
            peaks[name] = bench.run(setting.doctor(path)).rss_mb
            shown = f"{peaks[name]:.0f} MB"
            yield Row(f"peak memory, {name}", "at most 64 MB", shown, peaks[name] <= 64)
    apart = abs(peaks[f"{4 * setting.size} MiB"] - peaks["64 MiB"])
    name = f"peak memory, {4 * setting.size} MiB against 64 MiB"
    yield Row(name, "at most 8 MB apart", f"{apart:.0f} MB", apart <= 8)


def answers(setting: Setting) -> Iterator[Row]:
    """Yield a row for each log: the incidents found, compared with those that it contains."""
    bench = setting.bench
    mixed = bench.log("crlf.log", "--size", "32M", "--crlf", 0.5, "--density", 0.01, "--seed", 9)
    long = bench.folder / "long.log"
    logs = {**setting.logs, "half CRLF": mixed, **({"200 MiB line": long} if long.exists() else {})}
    for name, log in logs.items():
        answer = bench.folder / "answer.json"
        bench.run(setting.doctor(log), answer)
        found = bench.check(log, answer)
        shown = (
            f"{found['right']:,} of {found['failures']:,} failures, {found['lines_found']:,} "
            f"of {found['lines']:,} lines; {found['extra']:,} false incidents, "
            f"{found['look_alikes']:,} look-alikes"
        )
        good = found["right"] == found["failures"] and not found["extra"]
        good = good and found["lines_found"] == found["lines"]
        yield Row(f"failures found, {name}", "all, none false", shown, good)


PARTS: tuple[Part, ...] = (
    *(kinds, densities, packed, memory, answers, jobs, small, first_byte, many_templates),
    engines,
)


def _times(name: str, theirs: float, ours: float, bar: float | None = None) -> Row:
    ratio = theirs / ours
    measured = f"{ratio:.2f} times ripgrep ({ours:.2f} and {theirs:.2f} s)"
    if bar is None:
        return Row(name, "none", measured, True)
    return Row(name, f"at least {bar}", measured, ratio >= bar)


def page(setting: Setting, rows: list[Row]) -> Iterator[str]:
    """Yield the page: the table and its method."""
    from qnnmem.version import __version__

    said = subprocess.run([setting.rg, "--version"], capture_output=True, check=True)  # noqa: S603
    packages = ("hyperscan", "google-re2", "isal", "backports.zstd")
    yield "# Benchmarks of the doctor\n"
    yield (
        "Written by `make bench`. Rows compare `qnnmem doctor --format json --kb BASE LOG` "
        "(the whole command) with `rg -i -j1 -a --no-unicode -c -f PATTERNS LOG`, which only "
        "counts lines. The patterns are the doctor's templates as plain regular expressions: "
        "the built-in templates, and 300 generated ones, which the failure lines match. "
        "Templates ignore case, and so do these patterns. Two more rows for each log use "
        "case-sensitive patterns: all of them, and only the 300. The doctor also examines "
        "lines that match no template. Times are CPU time (user and system, children "
        "included), the best of three alternating rounds (15 for plain logs, two for the "
        "engines, 15 for the 5 KB log and nine for the 2 MiB log). The logs are generated "
        f"from a seed: logcat of {setting.size} MiB, in which one line in 500 only resembles "
        "a failure. A tenth of these look-alikes hold most of a known message; the others "
        "hold only some of its words.\n"
    )
    yield (
        f"Measured with qnnmem {__version__}, {said.stdout.decode().splitlines()[0]}, Python "
        f"{platform.python_version()}, {', '.join(filter(None, map(_version, packages)))}; "
        f"{platform.machine()}, {_processor()}, load {os.getloadavg()[0]:.1f}.\n"
    )
    yield from table(rows)


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the rows as a table."""
    yield "| measurement | goal | measured | met |"
    yield "|---|---|---|---|"
    for row in rows:
        met = "" if row.bar == "none" else "yes" if row.met else "**no**"
        yield f"| {row.name} | {row.bar} | {row.measured} | {met} |"


def with_noise(setting: Setting, rows: list[Row]) -> Iterator[str]:
    """Yield the written page, with these rows about noise and the short log as its last part."""
    from qnnmem.version import __version__

    before = PAGE.read_text(encoding="utf-8").partition(NOISE)[0].rstrip()
    names = tuple(f"| {row.name} |" for row in rows)
    yield from (line for line in before.splitlines() if not line.startswith(names))
    yield f"\n{NOISE}\n"
    yield (
        "Measured after the table above, with the built-in knowledge base alone, on logs of "
        f"{min(setting.size, KIND_MIB)} MiB, the slowest kind first. Only the logs of this machine "
        f"can contain real failures. qnnmem {__version__}, Python {platform.python_version()}, "
        f"{_processor()}, load {os.getloadavg()[0]:.1f}.\n"
    )
    yield from table(rows)


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "processor unknown"
    names = [x.partition(":")[2].strip() for x in text.splitlines() if x.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "processor unknown"


if __name__ == "__main__":
    sys.exit(main())
