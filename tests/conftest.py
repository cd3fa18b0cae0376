"""Settings of all tests."""

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from qnnmem.cache import NOWHERE

pytest_plugins = ["browser"]

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


# Files that take longest, some with few tests: begun first, so that no core waits for them alone.
LONG = {
    *("test_wheel.py", "test_snippet_types.py", "test_consoles.py", "test_real_models.py"),
    *("test_quantize.py", "test_fuzz.py", "test_robust_logs.py", "test_fresh_logs.py"),
    *("test_workers.py", "test_kb_check.py", "test_fix_command.py", "test_cases.py"),
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of these files before the others, which stay in the order that was drawn."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(autouse=True)
def no_kept_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no estimate of a loader: workers that are told what to say would be believed later."""
    monkeypatch.setattr("qnnmem.htp.bill.stored.cache_folder", lambda: NOWHERE)


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make: thousands of tests and their modules stay anyway."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Tests leave contexts behind on purpose: nobody wants the list of them."""
    os.environ["QNNMEM_LEAKS"] = "0"
    if sys.platform == "linux":
        warm_start.end_server()


@pytest.fixture(autouse=True)
def no_kept_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no test see what another one had compiled, as far as it runs in this process."""
    from qnnmem.cache import NOWHERE
    from qnnmem.htp.kept import KeptAnswers

    monkeypatch.setattr(KeptAnswers, "usual_folder", staticmethod(lambda: NOWHERE))
