"""A figure before it is saved, and what stands below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure before it is saved, and what stands below it."""

    figure: Figure
    caption: str
