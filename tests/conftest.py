"""Settings of all tests."""

import os
import signal
import sys

from hypothesis import HealthCheck, settings

# A busy machine is no failure: properties are about values, never about time.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Programs that the tests start inherit what is ignored, as in a job in the background; then they
# would have to ignore the signals that they are tested with.
for name in ("SIGINT", "SIGHUP", "SIGTERM"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


if sys.platform == "linux":
    import warm_start

    warm_start.warm_children()  # before any test imports a module that starts some


def pytest_unconfigure() -> None:
    """Tests leave contexts behind on purpose: nobody wants the list of them."""
    os.environ["QNNMEM_LEAKS"] = "0"
    if sys.platform == "linux":
        warm_start.end_server()
