"""Settings for all tests."""

import sys

# pytest stores the rewritten asserts as bytecode for the other test processes, even if
# PYTHONDONTWRITEBYTECODE is set. Child processes still write no bytecode.
sys.dont_write_bytecode = False

import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402

# As in the command line, and before NumPy is loaded: idle BLAS threads use up a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from seeds import few  # noqa: E402

from qnnmem.cache import NOWHERE  # noqa: E402

pytest_plugins = ["browser"]

# A busy machine is not a failure: properties check values, never time.
settings.register_profile(
    "patient",
    deadline=None,
    max_examples=few(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# A test run in the background ignores signals, and child processes inherit that. The signals are
# restored, so that tests can send them to the children.
for name in ("SIGINT", "SIGHUP", "SIGTERM"):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


if sys.platform == "linux":
    import warm_start

    warm_start.warm_children()  # before a test imports a module that starts children


# The slowest files start first, so that no core waits for them at the end.
LONG = {
    *("test_wheel.py", "test_snippet_types.py", "test_consoles.py", "test_real_models.py"),
    *("test_quantize.py", "test_fuzz.py", "test_robust_logs.py", "test_labelled_texts.py"),
    *("test_workers.py", "test_kb_check.py", "test_fix_command.py", "test_cases.py"),
}

# Files and folders that `make quick` skips: they start programs, compilers, browsers or the HTP
# library, run models, or take over a second of processor time (`--durations=20`).
SLOW = {
    *("cli", "client", "doctor/fleet", "fix", "judge", "models", "watch", "workbench"),
    *("contract/test_leaks.py", "doctor/test_archives.py", "doctor/test_beside.py"),
    *("doctor/test_cache.py", "doctor/test_cases.py", "doctor/test_closed_loop.py"),
    *("doctor/test_compiled_search.py", "doctor/test_cost.py", "doctor/test_labelled_texts.py"),
    *("doctor/test_host.py", "doctor/test_kb_check.py", "doctor/test_kb_files.py"),
    *("doctor/test_log_formats.py", "doctor/test_model_facts.py"),
    *("doctor/test_own_notes.py", "doctor/test_reading.py", "doctor/test_remedies.py"),
    *("doctor/test_repeats.py", "doctor/test_robust_logs.py", "doctor/test_shapes.py"),
    *("doctor/test_template.py", "doctor/test_train_doctor.py", "gate/test_action.py"),
    *("gate/test_check.py", "gate/test_pytest_plugin.py", "htp/test_compose.py"),
    *("gate/test_accepted_history.py", "report/test_pictures.py"),
    "report/test_reference_pictures.py",
    *("htp/test_composing.py", "htp/test_context_read.py", "htp/test_context_real.py"),
    *("htp/test_fit.py", "htp/test_preflight.py", "htp/test_fp16.py", "htp/test_measure.py"),
    "htp/test_llm.py",
    *("htp/test_missing_outputs.py", "htp/test_partition.py", "htp/test_place.py"),
    *("htp/test_prepare.py", "htp/test_provoke.py", "htp/test_qmem_client.py"),
    *("htp/test_refusals.py", "htp/test_refusals_each.py", "htp/test_remote_command.py"),
    *("htp/test_remote_connection.py", "htp/test_remote_hostile.py", "htp/test_remote_real.py"),
    *("htp/test_remote_server.py", "htp/test_remote_slots.py", "htp/test_shaping_limit.py"),
    *("htp/test_sweep.py", "htp/test_sweep_kept.py", "htp/test_worker.py", "ir/test_lifetime.py"),
    *("ir/test_span.py", "loader/test_bounds.py", "loader/test_csv.py", "loader/test_dlc.py"),
    *("loader/test_large_inputs.py", "loader/test_model_library.py", "loader/test_onnx.py"),
    *("loader/test_onnx_control.py", "loader/test_onnx_foreign.py"),
    *("loader/test_onnx_hostile.py", "loader/test_onnx_indices.py", "loader/test_onnx_passes.py"),
    *("loader/test_onnx_sizes.py", "loader/test_onnx_stored.py", "loader/test_onnx_values.py"),
    *("loader/test_samples.py", "loader/test_slow_machine.py", "loader/test_tflite.py"),
    *("loader/test_tflite_run.py", "lpai/test_together.py"),
    *("loader/test_tflite_shapes.py", "lpai/test_arena.py", "lpai/test_binary_check.py"),
    *("lpai/test_c_to_python.py", "lpai/test_choices.py", "lpai/test_config_mutations.py"),
    *("lpai/test_execution.py", "lpai/test_json_positions.py", "lpai/test_native.py"),
    *("lpai/test_overwrites.py", "lpai/test_pointers.py", "lpai/test_preparation.py"),
    *("lpai/test_prepare_limits.py", "lpai/test_program.py", "lpai/test_program_files.py"),
    *("lpai/test_program_state.py", "lpai/test_quantize.py", "lpai/test_quantize_precision.py"),
    *("lpai/test_selftest.py", "lpai/test_session_form.py", "lpai/test_streaming.py"),
    *("lpai/test_threads.py", "report/test_plan_png.py"),
    *("planner/test_against_brute_force.py", "planner/test_packing.py"),
    *("planner/test_order.py", "planner/test_plain_search.py", "planner/test_planner.py"),
    *("planner/test_order_oracle.py", "planner/test_reorder_skipped.py"),
    *("doctor/test_required.py", "lpai/test_founding_pages.py"),
    *("report/test_c_header.py", "test_cache_folder.py", "test_json.py"),
    *("planner/test_pools_executed.py", "planner/test_time_limit.py", "report/test_c_client.py"),
    *("report/test_page_in_browser.py", "test_child.py", "test_consoles.py"),
    *("test_damaged_files.py", "test_docs.py", "test_fail_calls.py", "test_fuzz.py"),
    *("test_installation.py", "test_lifeline.py", "test_limits.py", "test_side_by_side.py"),
    *("test_snippet_types.py", "test_warm_start.py", "test_wheel.py", "test_wheel_objects.py"),
}
TESTS = Path(__file__).parent


@cache
def is_slow(path: Path) -> bool:
    """True if the table of slow tests lists the file or its folder."""
    name = path.relative_to(TESTS)
    return any(part.as_posix() in SLOW for part in (name, *name.parents))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of slow files when slow tests are deselected."""
    unwanted = config.getoption("markexpr") == "not slow" and collection_path.is_relative_to(TESTS)
    return True if unwanted and is_slow(collection_path) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and run the slowest files first."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that garbage collection skips them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Silence the list of leaks at exit, since tests leave contexts open on purpose."""
    os.environ["QNNMEM_LEAKS"] = "0"
    if sys.platform == "linux":
        warm_start.end_server()


@pytest.fixture(autouse=True, scope="session")
def no_kept_results() -> Iterator[None]:
    """Disable the result caches in this process, so that tests do not share compiled results.

    The cache of load estimates is disabled too, since fake workers would fill it with false data.
    """
    from qnnmem.htp import measure
    from qnnmem.htp.compile_cache import CompileCache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "cache_folder", lambda: NOWHERE)
        patch.setattr(CompileCache, "home_folder", staticmethod(lambda: NOWHERE))
        yield
