"""A damaged file, read in this process, gives an answer or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from damage import stream
from fuzz_targets import READERS, TARGETS
from seeds import seeds

from qnnmem.errors import QnnMemError

# An ONNX file costs a child process, about a hundred times as long as another file.
_READERS = {
    "onnx": ("@load", 50),
    "tflite": ("@load", 100),
    "eaix": ("@load", 100),
    "csv": ("@load", 100),
    "lpai": ("@binary", 200),
    "htp": ("@context", 200),
    "epcontext": ("@context", 50),
}
_LONGEST = 2000


@pytest.mark.parametrize("name", _READERS)
def test_a_damaged_file_is_answered_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    """A damaged file raises only QnnMemError from reader, planner and report."""
    (target,) = (one for one in TARGETS if one.name == name)
    reader, few = _READERS[name]
    refused = 0
    for seed in seeds(few):
        kind, content = target.damaged(stream(7, seed))
        path = tmp_path / target.file
        path.write_bytes(content)
        try:
            READERS[reader](path)
        except QnnMemError as exc:
            refused += 1
            sentence = str(exc)
            assert sentence.isprintable(), (seed, kind)
            assert len(sentence) < _LONGEST, (seed, kind)
        except Exception as exc:
            pytest.fail(f"seed {seed}, {kind}: {type(exc).__name__}: {exc}")
    assert refused > few // 4
