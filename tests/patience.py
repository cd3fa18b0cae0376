"""Time limits that also hold on a busy machine."""

from __future__ import annotations

import math
import os


def patient(seconds: float) -> int:
    """Return the limit in whole seconds, longer if many processes share each core."""
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return math.ceil(seconds * max(1.0, waiting / (os.cpu_count() or 1)))
