"""Runs an EPContext model with ONNX Runtime and the real library in a separate process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy

_PROGRAM = """
import sys
import numpy
from pathlib import Path
from qnnmem.htp.installed import installed_library
from qnnmem.htp.native.session import session_at, session_options
from qnnmem.htp.requests import HtpSettings

model, soc, feeds, results = sys.argv[1:]
settings = session_options(installed_library().folder, HtpSettings(int(soc), log="error"))
session = session_at(Path(model), settings)
names = [item.name for item in session.get_outputs()]
numpy.savez(results, **dict(zip(names, session.run(names, dict(numpy.load(feeds))))))
"""


def run_epcontext(model: Path, inputs: dict[str, Any], soc: int = 57) -> dict[str, Any]:
    """Return the outputs of the model by name."""
    with tempfile.TemporaryDirectory() as folder:
        feeds, results = Path(folder, "in.npz"), Path(folder, "out.npz")
        numpy.savez(feeds, **inputs)
        words = [sys.executable, "-c", _PROGRAM, str(model), str(soc), str(feeds), str(results)]
        done = subprocess.run(words, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        with numpy.load(results) as found:
            return dict(found)
