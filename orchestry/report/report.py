"""A report: RESULTS.md, its figures, and the page, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry.core.errors import StoreError
from orchestry.core.files import write_atomic
from orchestry.report import page
from orchestry.report.arms import arms
from orchestry.report.experiment import Experiment
from orchestry.report.figures import draw
from orchestry.report.results import results
from orchestry.report.style import undrawn


@dataclass(frozen=True, slots=True)
class Report:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]
    """RESULTS.md first, then the page, then the figures."""
    undrawn: str = ""
    """Why there are no figures, where they can't be drawn."""


def write(experiments: Sequence[Experiment], folder: Path, command: str) -> Report:
    """Writes the report into `folder`; `command` is named in it as what wrote it.

    Equal run directories give equal bytes. Without matplotlib the figures are left out. Raises
    StoreError where the disk refuses.
    """
    lacking = undrawn()
    document = folder / "RESULTS.md"
    try:
        drawn = [] if lacking else draw(arms(experiments), folder / "figures")
        text = results(experiments, drawn, command, lacking)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(document, text.encode("utf-8"))
        shown = page.write(experiments, folder)
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder} can't be written ({error.strerror or error}): free space "
            "or change rights there, or choose another --out; the runs are as they were"
        ) from None
    pictures = (path for one in drawn for path in one.paths)
    return Report(folder, (document, shown, *pictures), lacking)
