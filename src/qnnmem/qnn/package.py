"""Location of the package with the vendor's libraries."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PACKAGE = "onnxruntime-qnn"


def package_folder(libraries: Iterable[str]) -> Path | None:
    """Return the folder of the installed package that has all of these libraries."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE.replace("-", "_"))  # finds without importing
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    wanted = tuple(libraries)
    found = (Path(place) for place in places)
    return next((one for one in found if all((one / name).is_file() for name in wanted)), None)
