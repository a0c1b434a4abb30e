"""Schedules to compare the search with: by name, the calls a run's strategy makes.

A baseline is a schedule over the same rollout, never a loop of its own.
"""

from __future__ import annotations

from typing import Any

from orchestry.baselines import best_of_n, fixed
from orchestry.config import SearchConfig
from orchestry.search.beam import Beam, Chains, Schedule
from orchestry.task import BaseTask
from orchestry.types import Problem


def schedule(search: SearchConfig, task: BaseTask[Any], problem: Problem) -> Schedule:
    """The schedule that `search.strategy` names, sized for this task."""
    beam = Beam(search.k_samples, search.beam_width, search.exploration, search.joint)
    if search.strategy == "fixed":
        return fixed.schedule()
    if search.strategy == "chains":
        return Chains(search.k_samples, search.joint)
    if search.strategy == "best_of_n":
        return best_of_n.schedule(beam, task, problem)
    return beam
