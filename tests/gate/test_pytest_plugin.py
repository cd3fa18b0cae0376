from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from budget_project import make_project

pytest_plugins = ("pytester",)


def run(pytester: pytest.Pytester, lines: str, *words: str) -> pytest.RunResult:
    """Run a test file in a project with three models, with only this plugin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makepyfile(lines)
        make_project(pytester.path)
        plugin = ("-p", "qnnmem.pytest_plugin", "--strict-markers", "-W", "error")
        return pytester.runpytest_inprocess(*plugin, *words)


def test_a_mark_fails_a_test_whose_model_is_over_its_budget(pytester: pytest.Pytester) -> None:
    """The mark fails a test over its budget before its body runs, with pool and bytes."""
    done = run(
        pytester,
        """
        import pytest

        @pytest.mark.qnn_budget(model="models/spotter.csv", scratch="16K")
        def test_within():
            pass

        @pytest.mark.qnn_budget(model="models/spotter.csv", scratch="8K")
        def test_over():
            raise AssertionError("the test itself ran")

        @pytest.mark.qnn_budget("models/small_htp.bin", ram="64M", spill_fill=0)
        @pytest.mark.qnn_budget("models/tiny.eaix", align=256, io="outside", total="1M")
        class TestBoth:
            def test_both(self):
                pass
        """,
    )
    done.assert_outcomes(passed=2, failed=1)
    over = (
        "*models/spotter.csv (LPAI): scratch needs 15,000 bytes "
        "(proven minimal for these lifetimes), 6,808 over its budget of 8,192*"
    )
    done.stdout.fnmatch_lines([over])
    assert "the test itself ran" not in done.stdout.str()


def test_the_fixture_plans_models(pytester: pytest.Pytester) -> None:
    """The fixture `qnn_plan` plans a named model or the model of the mark."""
    done = run(
        pytester,
        """
        import pytest

        def test_named(qnn_plan):
            assert qnn_plan("models/spotter.csv").scratch_bytes == 15000
            assert qnn_plan("models/tiny.eaix", io="outside").io_bytes == 320

        @pytest.mark.qnn_budget(model="models/tiny.eaix", scratch="4K")
        def test_marked(qnn_plan):
            assert qnn_plan().scratch_bytes == 2304
            assert qnn_plan().fits
        """,
    )
    done.assert_outcomes(passed=2)


def test_what_is_wrong_with_a_mark_is_a_sentence(pytester: pytest.Pytester) -> None:
    """An invalid mark fails with one sentence."""
    done = run(
        pytester,
        """
        import pytest

        @pytest.mark.qnn_budget(scratch="16K")
        def test_no_model():
            pass

        @pytest.mark.qnn_budget(model="models/tiny.eaix", scrach="16K")
        def test_no_pool():
            pass

        @pytest.mark.qnn_budget(model="models/none.onnx", scratch="16K")
        def test_no_file():
            pass

        def test_no_mark(qnn_plan):
            qnn_plan()
        """,
    )
    done.assert_outcomes(failed=4)
    done.stdout.fnmatch_lines(
        [
            "*the mark qnn_budget must name exactly one model*",
            "*qnn_budget: scrach is not a key; did you mean scratch?*",
            "*models/none.onnx (LPAI): not checked: no such file*",
            "*qnn_plan() without a model works only in tests with the mark*",
        ]
    )


def test_the_mark_is_known(pytester: pytest.Pytester) -> None:
    """The mark is registered, so that --strict-markers accepts it."""
    done = run(pytester, "", "--markers")
    done.stdout.fnmatch_lines(["@pytest.mark.qnn_budget(model, ?*budget): *"])


def test_pytest_starts_without_loading_qnnmem() -> None:
    """The plugin imports no other module of qnnmem at start."""
    code = "import sys, qnnmem.pytest_plugin; print(*(m for m in sys.modules if 'qnnmem' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"qnnmem", "qnnmem.version", "qnnmem.pytest_plugin"}


def test_the_entry_point_names_the_plugin() -> None:
    """The package's entry point names the plugin."""
    import tomllib

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert points == {"qnnmem": "qnnmem.pytest_plugin"}
