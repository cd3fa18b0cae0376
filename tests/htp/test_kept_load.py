"""All verbs report the same process domain for a binary, with or without their own compile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from context_writer import example_context, pack_context
from told_worker import ToldWorker, loading

from qnnmem.htp.fit import fit_stored
from qnnmem.htp.measure import MeasuredModel, measure, stored_bill
from qnnmem.htp.place import resident
from qnnmem.htp.provoke import small_convolution
from qnnmem.results.footprint import SizeRange
from qnnmem.targets.socs import find_soc

SM8650 = find_soc("SM8650")
ESTIMATE = 12_666_880
LINES = (f"Setting context 1 reserved space to {ESTIMATE}", "PD 0 chosen for context 1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirect the cache of loader estimates to a folder of the test."""
    monkeypatch.setattr("qnnmem.htp.measure.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def prepared(tmp_path: Path, cache: Path) -> tuple[Path, MeasuredModel]:
    """Compile a model and keep the binary."""
    model, binary = tmp_path / "model.onnx", tmp_path / "model.bin"
    model.write_bytes(small_convolution())
    told: Any = ToldWorker(loading((0,), *LINES))
    made = measure(model, SM8650, output=binary, worker=told)
    assert isinstance(made, MeasuredModel)
    return binary, made


def domain(path: Path) -> SizeRange:
    """Return the process domain in the bill of a binary."""
    found = stored_bill(path).process_domain
    assert found is not None
    return found


def test_every_verb_says_what_the_loader_said(prepared: tuple[Path, MeasuredModel]) -> None:
    """`footprint`, `fit` and `place` report the loader's estimate for a prepared binary."""
    binary, made = prepared
    fits = fit_stored(binary, (), {})
    assert fits is not None
    checked = next(check.need for check in fits[0].checks if check.pool == "pd")
    placed = resident("a", stored_bill(binary, SM8650))
    assert placed is not None
    assert made.bill.process_domain == domain(binary) == checked == placed.need
    assert (made.bill.process_domain.is_exact, made.bill.process_domain.low.value) == (
        True,
        ESTIMATE,
    )


def test_another_content_is_another_binary(prepared: tuple[Path, MeasuredModel]) -> None:
    """A file with the same head but other code does not use the cached estimate."""
    binary, _ = prepared
    content = bytearray(binary.read_bytes())
    content[-1] ^= 1
    binary.write_bytes(content)
    assert not domain(binary).is_exact


def test_another_soc_was_not_asked(prepared: tuple[Path, MeasuredModel]) -> None:
    """A cached estimate applies only to its SoC."""
    pd = stored_bill(prepared[0], find_soc("SM8750")).process_domain
    assert pd is not None
    assert not pd.is_exact


def test_a_kept_file_of_another_shape_counts_as_missing(
    prepared: tuple[Path, MeasuredModel], cache: Path
) -> None:
    """A cached estimate with a changed or malformed file is ignored."""
    (kept,) = cache.rglob("*.json")
    kept.write_text(kept.read_text("utf-8").replace(str(ESTIMATE), str(ESTIMATE - 1)))
    assert not domain(prepared[0]).is_exact
    kept.write_text(json.dumps(["nonsense"]))
    assert not domain(prepared[0]).is_exact


def test_a_binary_that_was_never_loaded_has_a_range(tmp_path: Path, cache: Path) -> None:
    """A binary that was never loaded has a range as its process domain."""
    path = tmp_path / "a.bin"
    path.write_bytes(pack_context(example_context()))
    assert domain(path).low.value < domain(path).high.value
    assert not cache.exists()
