"""Every kind of page matches its reference image, in two sizes, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import page_pictures
import pytest
import seeds

Image = pytest.importorskip("PIL.Image", reason="the extra `png` is not installed")

if TYPE_CHECKING:
    from browser import OpensPages

EVERY = sorted([*page_pictures.NAMES, "compare", "check"])


def test_there_is_a_reference_of_every_page() -> None:
    """Every page has small reference images in both sizes and schemes."""
    files = {path.name: path.stat().st_size for path in page_pictures.FOLDER.glob("*.png")}
    schemes = [f"{size}-{kind}" for size in page_pictures.SIZES for kind in page_pictures.SCHEMES]
    assert set(files) == {f"{name}-{scheme}.png" for name in EVERY for scheme in schemes}
    assert sum(files.values()) < 1_200_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return all pages by name, written once."""
    return dict(page_pictures.pages(tmp_path_factory.mktemp("pages")))


@pytest.mark.parametrize("name", EVERY)
def test_a_page_looks_as_its_reference(
    name: str, pages: dict[str, Path], open_page: OpensPages, tmp_path: Path
) -> None:
    """A page looks like its reference; `make pictures` updates the references."""
    # Alternately wide light with narrow dark, and the reverse.
    looks = page_pictures.LOOKS if seeds.EVERY else page_pictures.LOOKS[EVERY.index(name) % 2 :: 2]
    page = open_page("about:blank")
    for file, image in page_pictures.shots(page, name, pages[name], looks):
        known = Image.open(page_pictures.FOLDER / file).convert("RGB")
        image.save(tmp_path / file)
        found = page_pictures.difference(image, known)
        assert not found, f"{file}: {found}; it is at {tmp_path / file}"


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_page_and_another_scheme_are_noticed(name: str) -> None:
    """The comparison detects an empty page and another scheme, but tolerates shifted text."""
    for size in page_pictures.SIZES:
        light, dark = (
            Image.open(page_pictures.FOLDER / f"{name}-{size}-{scheme}.png").convert("RGB")
            for scheme in page_pictures.SCHEMES
        )
        empty = Image.new("RGB", light.size, "white")
        assert page_pictures.difference(empty, light)
        assert page_pictures.difference(dark, light)
        lower = Image.new("RGB", light.size, "white")
        lower.paste(light, (0, 6))
        assert page_pictures.difference(lower, light) == ""
