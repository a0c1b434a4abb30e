"""Independent trajectories, the best one kept: the baseline that a search has to beat.

It gets at least as many calls as the beam can spend on the same problem, rounded up in its favour.
"""

from __future__ import annotations

from typing import Any

from orchestry.guard import count_stages
from orchestry.search.beam import Beam, Chains
from orchestry.task import BaseTask
from orchestry.types import Problem


def schedule(beam: Beam, task: BaseTask[Any], problem: Problem) -> Chains:
    """As many chains as the beam's calls on this problem pay for."""
    stages = count_stages(task, problem)
    return Chains(n=-(-beam_stage_calls(beam, stages) // stages))


def beam_stage_calls(beam: Beam, stages: int) -> int:
    """Most samples for each acting agent that the beam draws over `stages` stages."""
    return beam.k + (stages - 1) * beam.k * beam.width
