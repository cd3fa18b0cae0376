from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from qnnmem.calibration import MAX_SAMPLES, Input, find_samples, read_sample
from qnnmem.errors import QnnMemError, UsageError

X = Input("x", "float32", (2, 3))
N = Input("n/1", "int64", (1,))
ONES = numpy.ones((2, 3), "float32")


def read_all(place: Path, *inputs: Input) -> list[dict[str, NDArray[Any]]]:
    """Return all samples found in a place."""
    return [read_sample(sample, inputs) for sample in find_samples(place, inputs)]


def test_every_entry_is_a_sample_in_the_order_of_names(tmp_path: Path) -> None:
    """Arrays, raw floats, archives and folders each count as a sample, sorted by name."""
    numpy.save(tmp_path / "a.npy", ONES)
    (2 * ONES).tofile(tmp_path / "b.raw")
    numpy.savez_compressed(tmp_path / "c.npz", x=3 * ONES)
    (tmp_path / "d").mkdir()
    numpy.save(tmp_path / "d" / "x.npy", 4 * ONES.astype("float64"))
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "README.txt").write_text("not data")
    found = read_all(tmp_path, X)
    assert [float(sample["x"][0, 0]) for sample in found] == [1, 2, 3, 4]
    assert {sample["x"].dtype.name for sample in found} == {"float32"}


def test_an_input_list_is_read_as_by_net_run(tmp_path: Path) -> None:
    """An input list works as in net-run: files by name or position; comments name outputs."""
    ONES.tofile(tmp_path / "1.raw")
    numpy.array([7], "int64").tofile(tmp_path / "n.raw")
    (tmp_path / "input_list.txt").write_text("#y\n1.raw n.raw\n\nn/1:=n.raw x:=1.raw\n")
    for place in (tmp_path, tmp_path / "input_list.txt"):
        found = read_all(place, X, N)
        assert [int(sample["n/1"][0]) for sample in found] == [7, 7]


def test_folders_hold_one_file_for_each_input(tmp_path: Path) -> None:
    """A folder has one file per input; in its name, underscores replace impossible characters."""
    (tmp_path / "0").mkdir()
    numpy.save(tmp_path / "0" / "x.npy", ONES)
    numpy.save(tmp_path / "0" / "n_1.npy", numpy.array([5], "int32"))
    assert read_all(tmp_path, X, N)[0]["n/1"][0] == 5


def write_bad(folder: Path, kind: str) -> None:
    """Write calibration data with one fault."""
    file = folder / "a.npy"
    if kind == "shape":
        numpy.save(file, numpy.ones((3, 2), "float32"))
    elif kind == "type":
        numpy.save(file, ONES.astype("complex64"))
    elif kind == "nan":
        numpy.save(file, ONES * numpy.nan)
    elif kind == "short":
        numpy.save(file, ONES)
        file.write_bytes(file.read_bytes()[:-1])
    elif kind == "text":
        file.write_text("hello")
    elif kind == "pickle":
        numpy.save(file, numpy.array([[{}] * 3] * 2, dtype=object), allow_pickle=True)
    elif kind == "large":
        numpy.save(file, numpy.zeros(100_000))
    elif kind == "raw":
        ONES.astype("float64").tofile(folder / "a.raw")
    elif kind == "zip":
        (folder / "a.npz").write_bytes(b"PK\x03\x04 and no more")
    elif kind == "key":
        numpy.savez(folder / "a.npz", other=ONES)
    elif kind == "empty key":
        numpy.savez(folder / "a.npz")
    elif kind == "bomb":
        with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", bytes(50_000_000))
    elif kind == "list":
        (folder / "input_list.txt").write_text("a.raw b.raw")
    elif kind == "list name":
        (folder / "input_list.txt").write_text("z:=a.raw")
    elif kind == "list file":
        (folder / "input_list.txt").write_text("x:=gone.raw")
    elif kind == "stranger":
        (folder / "0").mkdir()
        numpy.save(folder / "0" / "z.npy", ONES)
    elif kind == "two":
        (folder / "0").mkdir()
        numpy.save(folder / "0" / "x.npy", ONES)
        ONES.tofile(folder / "0" / "x.raw")
    elif kind == "empty folder":
        (folder / "0").mkdir()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("shape", r"a\.npy: float32 of shape 3x2 given, float32 of shape 2x3 expected for .*'x'"),
        ("type", r"a\.npy: complex64 given, float32 of shape 2x3 expected for input 'x'"),
        ("nan", r"a\.npy contains NaN or infinity"),
        ("short", r"a\.npy ends too early or is damaged"),
        ("text", r"a\.npy is not a readable \.npy file"),
        ("pickle", r"a\.npy: object of shape 2x3 given"),
        ("large", r"a\.npy: 800,128 bytes are over the limit"),
        ("raw", r"a\.raw: 48 bytes given, 24 expected for input 'x' \(float32 of shape 2x3\)"),
        ("zip", r"a\.npz is not a readable \.npz file"),
        ("key", r"a\.npz: the model has no input 'other'"),
        ("empty key", r"a\.npz has no data for input 'x'"),
        ("bomb", r"a\.npz: array 'x' is larger than float32 of shape 2x3"),
        ("list", r"input_list\.txt line 1 lists 2 files, but the model has 1 inputs \('x'\)"),
        ("list name", r"input_list\.txt line 1: the model has no input 'z'"),
        ("list file", r"gone\.raw: no such file"),
        ("stranger", r"z\.npy: the model has no input 'z'"),
        ("two", r"0 contains two files for input 'x'"),
        ("empty folder", r"contains no \.npy or \.raw file for any input"),
        ("nothing", r"contains no sample inputs; add \.npy, \.npz or \.raw files"),
    ],
)
def test_wrong_data_is_one_sentence_with_the_file(kind: str, message: str, tmp_path: Path) -> None:
    """Wrong calibration data is refused in one line with the file and the expected data."""
    write_bad(tmp_path, kind)
    with pytest.raises(QnnMemError, match=message) as caught:
        read_all(tmp_path, X)
    assert "\n" not in str(caught.value)


def test_a_header_cannot_make_a_large_array(tmp_path: Path) -> None:
    """A .npy header with a false, huge shape is refused before memory is allocated."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 16), }".ljust(117)
    blob = b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little") + header + b"\n"
    (tmp_path / "a.npy").write_bytes(blob)
    with pytest.raises(UsageError, match="float32 of shape 1099511627776x16 given"):
        read_all(tmp_path, X)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_end_in_a_sentence(seed: int, tmp_path: Path) -> None:
    """Each damaged .npy or .npz file gives an array of the right shape or an error."""
    random = numpy.random.default_rng(seed)
    for name in ("a.npy", "a.npz"):
        file = tmp_path / name
        if name == "a.npy":
            numpy.save(file, ONES)
        else:
            numpy.savez_compressed(file, x=ONES)
        blob = numpy.frombuffer(file.read_bytes(), "uint8")
        for _ in range(100):
            damaged = blob.copy()
            places = random.integers(0, min(len(blob), 128), random.integers(1, 4))
            damaged[places] = random.integers(0, 256, len(places))
            file.write_bytes(damaged.tobytes()[: random.integers(1, len(blob) + 1)])
            with contextlib.suppress(QnnMemError):
                assert read_sample((("x", file),), [X])["x"].shape == X.shape
        file.unlink()


def test_files_that_could_be_for_any_input_are_refused(tmp_path: Path) -> None:
    """A file that could belong to any of several inputs is refused."""
    numpy.save(tmp_path / "a.npy", ONES)
    with pytest.raises(UsageError, match="could be data for any of 2 inputs"):
        find_samples(tmp_path, [X, N])


def test_the_number_of_samples_is_bounded(tmp_path: Path) -> None:
    """10,000 samples are accepted; one more is refused."""
    line = "x.raw\n"
    (tmp_path / "input_list.txt").write_text(line * MAX_SAMPLES)
    assert len(find_samples(tmp_path, [X])) == MAX_SAMPLES
    (tmp_path / "input_list.txt").write_text(line * (MAX_SAMPLES + 1))
    with pytest.raises(UsageError, match="more than 10,000 samples"):
        find_samples(tmp_path, [X])


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing or impossible path raises UsageError."""
    for place in (tmp_path / "no", tmp_path / "\0"):
        with pytest.raises(UsageError, match=r"no such file|cannot be opened"):
            find_samples(place, [X])
