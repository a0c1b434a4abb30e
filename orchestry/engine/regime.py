"""Kinds of runs that are played in another way than by one plan; extensions bring them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry.core import extensions
from orchestry.core.config import RunConfig
from orchestry.engine.session import Observer
from orchestry.store.run import Run


@dataclass(frozen=True, slots=True)
class Regime:
    """How such a run is played."""

    begin: Callable[[RunConfig, Path, Observer], Run]
    """Plays a config in a folder from nothing; see engine.run.train."""
    resume: Callable[..., Run]
    """Continues the run in a folder; see engine.run.resume."""
    forecast: Callable[[RunConfig], Sequence[tuple[str, RunConfig]]]
    """The runs and measurements that it comes to, each with its name, for a dry run."""


def recipe() -> Regime:
    """The regime of runs whose config has `recipe.steps`."""
    found: Regime = extensions.find("regimes", "recipe")
    return found
