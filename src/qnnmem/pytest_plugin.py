"""Plugin for pytest: `@pytest.mark.qnn_budget(model=..., scratch="512K")`, fixture `qnn_plan`.

As an entry point, it is imported in every pytest run where qnnmem is installed. Therefore it
imports no other module of qnnmem before a test needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from qnnmem.gate.budget_check import BudgetTask
    from qnnmem.planner import MemoryPlan

_MARK = "qnn_budget"
_LINE = (
    f"{_MARK}(model, **budget): fail unless the model stays within its memory budget; pools are "
    "named as in qnnmem.toml, e.g. scratch='512K', and so are settings, e.g. dims={'N': 1}"
)


class QnnPlan(Protocol):
    """Type of the fixture `qnn_plan`, for use in typed tests."""

    def __call__(self, model: str | Path | None = None, **settings: Any) -> MemoryPlan:
        """Return the plan of a model, by default of the model in the test's mark."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _LINE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test whose model exceeds its budget, before the test body runs."""
    for mark in item.iter_markers(_MARK):
        reasons = _broken(_task(item, mark))
        if reasons:
            pytest.fail(reasons, pytrace=False)


@pytest.fixture
def qnn_plan(request: pytest.FixtureRequest) -> QnnPlan:
    """Return a function that plans a model, by default the model in the test's mark."""

    def plan(model: str | Path | None = None, **settings: Any) -> MemoryPlan:
        from qnnmem.gate.budget_check import plan_task
        from qnnmem.gate.keys import LPAI
        from qnnmem.loader.file_kind import kind_of_file

        if model is None:
            mark = request.node.get_closest_marker(_MARK)
            if mark is None:
                pytest.fail(
                    "qnn_plan() without a model works only in tests with the mark "
                    f"{_MARK}; pass a model"
                )
            task = _task(request.node, mark)
        else:
            task = _made(request.config.rootpath, model, settings)
        return plan_task(task, kind_of_file(task.path).name, task.budgets(LPAI))

    return plan


def _task(item: pytest.Item, mark: pytest.Mark) -> BudgetTask:
    settings = dict(mark.kwargs)
    named = [*mark.args, *([settings.pop("model")] if "model" in settings else [])]
    if len(named) != 1:
        problem = f"{item.nodeid}: the mark {_MARK} must name exactly one model: model='...'"
        pytest.fail(problem, pytrace=False)
    return _made(item.config.rootpath, named[0], settings)


def _made(root: Path, model: str | Path, settings: Mapping[str, Any]) -> BudgetTask:
    """Return a model's path and settings for the budget check; `root` completes a relative path."""
    from qnnmem.errors import UsageError
    from qnnmem.gate.budget_check import BudgetTask
    from qnnmem.gate.config import entry_of

    try:
        entry = entry_of(str(model), settings)
    except UsageError as exc:
        raise pytest.fail.Exception(f"{_MARK}: {exc}", pytrace=False) from None
    return BudgetTask(entry, root / model, str(model), root, str(model))


def _broken(task: BudgetTask) -> str:
    """Return one line for each exceeded limit."""
    from qnnmem.gate.budget_check import check_task

    models = [model for model in check_task(task) if model.exit_code]
    return "\n".join(f"{model.name}: {reason}" for model in models for reason in model.reasons)
