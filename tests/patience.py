"""Time limits that hold on a busy machine too."""

from __future__ import annotations

import math
import os


def patient(seconds: float) -> int:
    """Return a limit in whole seconds, longer when many processes share each processor."""
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return math.ceil(seconds * max(1.0, waiting / (os.cpu_count() or 1)))
