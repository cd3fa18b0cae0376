"""A missing SoC: refused at once, with a command that names a SoC."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from qnnmem.errors import MissingSoc
from qnnmem.htp.provoke import small_convolution
from qnnmem.verbs.compiler import need_soc

VERBS = (
    ("footprint", "m.onnx"),
    ("fit", "m.onnx"),
    ("qmem", "m.onnx"),
    ("sweep", "m.onnx", "--vary", "n=1,2"),
    ("prepare", "m.onnx", "--backend", "htp", "-o", "out.bin"),
    ("fix", "m.onnx", "--backend", "htp", "-o", "fixed"),
    ("provoke", "pd-full", "-o", "failures"),
)


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_every_verb_that_needs_a_soc_says_so_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A verb without its SoC is refused before the model is read or the library is searched."""
    (tmp_path / "m.onnx").write_bytes(small_convolution())
    monkeypatch.chdir(tmp_path)

    def read(*_given: object, **_named: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr("qnnmem.loader.onnx.read_guarded", read)
    monkeypatch.setattr("qnnmem.htp.binary.read.read_context", read)
    monkeypatch.setattr("qnnmem.htp.library.find_library", read)
    assert isinstance(run(*words).exception, MissingSoc)


def test_the_command_to_paste_is_there_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """The refusal prints a command to paste and imports neither onnx, numpy nor the compiler."""
    path = tmp_path / "m.onnx"
    path.write_bytes(small_convolution())
    code = (
        "import sys; from qnnmem.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'onnx', 'numpy', 'qnnmem.htp.compile'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, "footprint", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"try: qnnmem footprint {path} --soc=SM8650"
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_model_of_a_context_needs_none(tmp_path: Path) -> None:
    """A model with a compiled context needs no SoC, since the context names its own."""
    path = tmp_path / "m.onnx"
    path.write_bytes(small_convolution())
    with pytest.raises(MissingSoc):
        need_soc(path, None)
    path.write_bytes(small_convolution() + b"EPContext")
    need_soc(path, None)
