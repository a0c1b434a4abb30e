"""Schedules by name: how many samples of whom each stage draws, and which states live on.

Best of n, the baseline that a search has to beat, gets at least as many calls as the beam can
spend on the same problem, rounded up in its favour.
"""

from __future__ import annotations

from typing import Any

from orchestry.core.config import SearchConfig
from orchestry.core.types import Problem
from orchestry.rollout.beam import Beam, Chains, Schedule
from orchestry.task.base import BaseTask
from orchestry.task.guard import count_stages


def schedule(search: SearchConfig, task: BaseTask[Any], problem: Problem) -> Schedule:
    """The schedule that `search.strategy` names, sized for this task."""
    beam = Beam(search.k_samples, search.beam_width, search.exploration, search.joint)
    if search.strategy == "single":
        return Chains(n=1)
    if search.strategy == "chains":
        return Chains(search.k_samples, search.joint)
    if search.strategy == "best_of_n":
        return best_of_n(beam, task, problem)
    return beam


def best_of_n(beam: Beam, task: BaseTask[Any], problem: Problem) -> Chains:
    """As many chains as the beam's calls on this problem pay for."""
    stages = count_stages(task, problem)
    return Chains(n=-(-beam_stage_calls(beam, stages) // stages))


def beam_stage_calls(beam: Beam, stages: int) -> int:
    """Most samples for each acting agent that the beam draws over `stages` stages."""
    return beam.k + (stages - 1) * beam.k * beam.width
