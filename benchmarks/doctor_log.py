"""Write noisy device logs from a seed; a truth file lists the failures in them.

    python benchmarks/doctor_log.py OUT.log --size 64M --density 0.0001

Processes print in turns of a few dozen lines. Sometimes a process fails: the lines of the failure
(its chain) follow in order, with the id of this process, mixed with lines of other processes. Other
lines only resemble failures: the program recovered, the failure is negated, or the line holds only
a code or most of a known message. `OUT.log.truth.json` lists every chain with its lines and counts
the look-alikes. The same arguments give the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from doctor_kb import Family, families, look_alike, sample

STYLES = ("logcat", "studio", "onnxruntime", "netrun", "kernel")

_MESSAGES = Path(__file__).parent / "data" / "doctor_noise.toml"
_LEVELS = {"V": "VERBOSE", "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR"}
_POOL = 4096  # pregenerated messages of a scene of weight 1
_FIRST_PID = 5000  # first process id of failing processes; all others have lower ids
_PIDS = 60_000
_MEAN_TALK = 25
_LOOK_ALIKE_SHARE = 0.002

Message = Sequence[str]  # level, tag, text


class Chain(NamedTuple):
    """Failure in the log: its entry, its process, and its line numbers."""

    entry: str
    pid: int
    lines: tuple[int, ...]


class Noise:
    """Endless lines of a healthy system in one style."""

    def __init__(
        self,
        seed: int,
        style: str = "logcat",
        kinds: Sequence[Family] = (),
        many: bool = True,  # many different messages, which compressors cannot remember
    ) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._head = {
            "logcat": self._logcat,
            "studio": self._studio,
            "onnxruntime": self._onnxruntime,
            "netrun": self._netrun,
            "kernel": self._kernel,
        }[style]
        self.style = style
        self.ms = 36_000_000 + self.rng.randrange(10_000_000)
        self._second, self._clock = -1, b""
        table = tomllib.loads(_MESSAGES.read_text("utf-8"))
        self._words: dict[str, list[str]] = table["words"]
        self._weights = [scene["weight"] for scene in table["scene"]]
        pool = _POOL if many else 64
        self._scenes = [self._pool(s["lines"], pool * s["weight"]) for s in table["scene"]]
        self._look_alikes = self._pool(table["look_alikes"]["lines"], 2048 if many else 64)
        texts = [look_alike(text) for kind in kinds for text in kind.texts]
        self._look_alikes += [self.tail("I", "QnnDsp", text) for text in texts if text]
        self._talk: Iterator[bytes] = iter(())
        self.look_alikes = 0

    def line(self) -> bytes:
        """Return the next line, without its line end."""
        found = next(self._talk, None)
        if found is None:
            self._talk = iter(self._scene())
            found = next(self._talk)
        return found

    def of(self, pid: int, tail: bytes) -> bytes:
        """Return a line of this process at the log's current time."""
        self.ms += 2
        return self._head(pid, pid, tail)

    def tail(self, level: str, tag: str, text: str) -> bytes:
        """Return the text after time and process in a line of this style."""
        if self.style == "logcat":
            return f"{level} {tag:<8}: {text}".encode()
        if self.style == "studio":
            return f"{tag[:23]:<23} {'com.example.app':<30} {level}  {text}".encode()
        if self.style == "onnxruntime":
            file = f"{tag.lower().replace(' ', '_')}.cc:1 Log"
            bare = text if text.startswith("[") else f"[{level}:onnxruntime:, {file}] {text}"
            return bare.encode()
        if self.style == "netrun":
            return f"[{_LEVELS.get(level, 'ERROR'):>8} ] {text}".encode()
        return f"{tag}: {text}".encode()

    def _scene(self) -> list[bytes]:
        rng = self.rng
        if rng.random() < _LOOK_ALIKE_SHARE * _MEAN_TALK:
            self.look_alikes += 1
            return [self._head(rng.randrange(300, 4900), 4901, rng.choice(self._look_alikes))]
        (pool,) = rng.choices(self._scenes, self._weights)
        count = int(rng.expovariate(1 / _MEAN_TALK)) + 2
        pid, step, head = rng.randrange(300, 4900), rng.randrange(1, 6), self._head
        lines = []
        for turn, tail in enumerate(rng.choices(pool, k=count)):
            self.ms += step if turn % 3 else 1
            lines.append(head(pid, pid + turn % 4, tail))
        return lines

    def _pool(self, messages: Sequence[Message], count: int) -> list[bytes]:
        return [
            self.tail(level, tag, self._filled(body))
            for level, tag, body in self.rng.choices(messages, k=count)
        ]

    def _filled(self, body: str) -> str:
        rng = self.rng
        make: dict[str, Callable[[], str]] = {
            "k": lambda: str(rng.randrange(1, 900)),
            "n": lambda: str(int(rng.random() ** 3 * 9e8) + 1000),
            "a": lambda: hex(0x7000000000 + rng.randrange(1 << 28) * 16),
            "t": lambda: f"{rng.random() * 120:.2f}",
        }
        return re.sub(
            r"<([knatwgo])>",
            lambda hole: make[hole[1]]() if hole[1] in make else rng.choice(self._words[hole[1]]),
            body,
        )

    def _time(self) -> tuple[bytes, int]:
        second, ms = divmod(self.ms, 1000)
        if second != self._second:
            self._second = second
            day, rest = divmod(second, 86_400)
            clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
            self._clock = f"{day // 28 % 12 + 1:02}-{day % 28 + 1:02} {clock}".encode()
        return self._clock, ms

    def _logcat(self, pid: int, tid: int, tail: bytes) -> bytes:
        if tail[2:8] == b"kernel":
            pid = tid = 0
        return b"%s.%03d %5d %5d %s" % (*self._time(), pid, tid, tail)

    def _studio(self, pid: int, tid: int, tail: bytes) -> bytes:
        return b"2026-%s.%03d %5d-%-5d %s" % (*self._time(), pid, tid, tail)

    def _onnxruntime(self, pid: int, _tid: int, tail: bytes) -> bytes:
        return b"2026-%s.%03d%06d %s" % (*self._time(), pid * 7, tail)

    def _netrun(self, _pid: int, _tid: int, tail: bytes) -> bytes:
        return b"%8d.1ms %s" % (self.ms % 10_000_000, tail)

    def _kernel(self, pid: int, _tid: int, tail: bytes) -> bytes:
        return b"[%5d.%06d] %s" % (self.ms // 1000, self.ms % 1000 * 1000 + pid % 1000, tail)


class Log:
    """Writer of a log that records where failures are."""

    def __init__(self, file: BinaryIO, noise: Noise, crlf: float = 0.0) -> None:
        self._file, self._noise, self._crlf = file, noise, crlf
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.bytes = self.lines = 0
        self.chains: list[Chain] = []

    def put(self, line: bytes) -> None:
        """Add one line, with this log's line end."""
        line += b"\r\n" if self._crlf and self._noise.rng.random() < self._crlf else b"\n"
        self._held.append(line)
        self._held_bytes += len(line)
        self.bytes += len(line)
        self.lines += 1
        if self._held_bytes > 1 << 20:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        self._file.write(b"".join(self._held))
        self._held, self._held_bytes = [], 0

    def fail(self, kind: Family) -> None:
        """Write the failure lines of a new process, mixed with other lines."""
        rng = self._noise.rng
        pid = _FIRST_PID + len(self.chains) * 7 % _PIDS
        numbers = []
        for turn, text in enumerate(kind.texts):
            for _ in range(int(rng.expovariate(0.5)) if turn else 0):
                self.put(self._noise.line())
            tail = self._noise.tail("E", "QnnDsp", sample(text, rng))
            self.put(self._noise.of(pid, tail))
            numbers.append(self.lines)
        self.chains.append(Chain(kind.id, pid, tuple(numbers)))

    def long_line(self, size: int, kind: Family) -> None:
        """Write a line of this many bytes with the first message of a failure in its middle."""
        rng = self._noise.rng
        pid = _FIRST_PID - 1
        block = " ".join(f"{rng.uniform(-8, 8):.6f}" for _ in range(8192)).encode()
        half = block * (size // 2 // len(block))
        self.flush()
        line = self._noise.of(pid, self._noise.tail("V", "Dump", "values: ")) + half
        line += b" " + sample(kind.texts[0], rng).encode() + b" " + half
        self.put(line)
        self.flush()
        self.chains.append(Chain(kind.id, pid, (self.lines,)))


def write_log(
    path: Path,
    size: int,
    *,
    density: float = 0.0001,
    templates: int = 300,
    seed: int = 1,
    crlf: float = 0.0,
    long_line: int = 0,
    style: str = "logcat",
) -> dict[str, Any]:
    """Write a log of about this size, and its truth file; return the truth."""
    kinds = families(templates)
    noise = Noise(seed, style, kinds)
    with path.open("wb") as file:
        log = Log(file, noise, crlf)
        every = len(kinds[0].texts) / density if density else float("inf")
        due = every * noise.rng.random()
        while log.bytes < size:
            if long_line and log.bytes > size // 3:
                log.long_line(long_line, kinds[0])
                size, long_line = max(size, log.bytes + (1 << 20)), 0
            if log.lines >= due:
                log.fail(noise.rng.choice(kinds))
                due += every * (0.5 + noise.rng.random())
            else:
                log.put(noise.line())
        log.flush()
    truth = {
        "bytes": log.bytes,
        "lines": log.lines,
        "look_alikes": noise.look_alikes,
        "chains": [chain._asdict() for chain in log.chains],
    }
    Path(f"{path}.truth.json").write_text(json.dumps(truth), encoding="utf-8")
    return truth


def pack(path: Path, kind: str) -> Path:
    """Write a compressed copy next to the log, like `gzip -6` or `zstd -3`; return its path."""
    import shutil

    target = Path(f"{path}.{kind}")
    with path.open("rb") as source, _packer(target, kind) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    return target


def _packer(target: Path, kind: str) -> Any:
    if kind == "gz":
        import gzip

        return gzip.open(target, "wb", compresslevel=6)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.open(target, "wb", level=3)


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as 64M, 1G or 4096."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * scale[text[-1]] if text[-1:] in scale else int(text)


def main() -> int:
    """Write one log and its truth file; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=bytes_of, default=64 << 20)
    parser.add_argument("--density", type=float, default=0.0001, help="share of failure lines")
    parser.add_argument(
        "--templates", type=int, default=300, help=("number of templates in the knowledge base")
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--style", choices=STYLES, default="logcat")
    parser.add_argument("--crlf", type=float, default=0.0, help="share of lines ending in CRLF")
    parser.add_argument("--long-line", type=bytes_of, default=0, help=("add one line of this size"))
    parser.add_argument("--pack", choices=("gz", "zst"), action="append", default=[])
    given = vars(parser.parse_args())
    path, size, kinds = given.pop("path"), given.pop("size"), given.pop("pack")
    truth = write_log(path, size, **given)
    for kind in kinds:
        print(f"Wrote {pack(path, kind)}")
    print(
        f"Wrote {path}: {truth['bytes']:,} bytes, {truth['lines']:,} lines, "
        f"{len(truth['chains']):,} failures, {truth['look_alikes']:,} look-alikes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
