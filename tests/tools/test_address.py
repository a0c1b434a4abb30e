"""The repository's address stands in several files, and is given once."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from tools.address import COLAB, NOTEBOOK, PLACES, ROOT, known, write

ADDRESS = "https://github.com/somebody/team"


@pytest.fixture(name="copy")
def _copy(tmp_path: Path) -> Path:
    """The files that name the address."""
    for place in PLACES:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    return tmp_path


def test_it_is_written_to_all_places_and_taken_back(copy: Path) -> None:
    before = {place: (copy / place).read_bytes() for place in PLACES}
    write(f"{ADDRESS}.git", copy)
    write(ADDRESS, copy)
    assert known(copy) == ADDRESS
    assert f'repository-code: "{ADDRESS}"' in (copy / "CITATION.cff").read_text()
    readme = (copy / "README.md").read_text()
    assert f"({COLAB}somebody/team/blob/main/{NOTEBOOK})" in readme
    notebook = nbformat.read(copy / NOTEBOOK, as_version=4)
    assert any(f'REPOSITORY = "{ADDRESS}"' in cell.source for cell in notebook.cells)
    write(known(ROOT), copy)
    assert {place: (copy / place).read_bytes() for place in PLACES} == before


def test_one_that_colab_can_not_open_is_refused(copy: Path) -> None:
    with pytest.raises(ValueError, match="OWNER/NAME"):
        write("ftp://example.org/team", copy)
    assert known(copy) == known(ROOT)
