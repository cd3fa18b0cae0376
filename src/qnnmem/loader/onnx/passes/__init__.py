"""The passes of the ONNX loader, one module each; `qnnmem.loader.onnx` lists them in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from qnnmem.errors import LoadError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def stage(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that stores a pass's name as the `stage` of its LoadErrors."""

    def mark(run: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(run)
        def marked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return run(*args, **kwargs)
            except LoadError as exc:
                exc.stage = exc.stage or name
                raise

        return marked

    return mark
