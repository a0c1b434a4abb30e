"""Independent trajectories, the best one kept: the baseline that a search has to beat.

It gets at least as many calls as the beam can spend on the same problem, rounded up in its favour.
"""

from __future__ import annotations

from typing import Any

from orchestry.errors import TaskError
from orchestry.rollout import task_boundary
from orchestry.search.beam import Beam, Chains
from orchestry.task import BaseTask
from orchestry.types import Problem

MAX_STAGES = 1000


def schedule(beam: Beam, task: BaseTask[Any], problem: Problem) -> Chains:
    """As many chains as the beam's calls on this problem pay for."""
    stages = count_stages(task, problem)
    return Chains(n=-(-beam_stage_calls(beam, stages) // stages))


def beam_stage_calls(beam: Beam, stages: int) -> int:
    """Most samples for each acting agent that the beam draws over `stages` stages."""
    return beam.k + (stages - 1) * beam.k * beam.width


def count_stages(task: BaseTask[Any], problem: Problem) -> int:
    """Stages of an episode in which every agent answers with nothing.

    Raises TaskError where the task does not end within 1,000 of them.
    """
    with task_boundary(task, "step", problem):
        state = task.reset(problem, 0)
        for stage in range(MAX_STAGES):
            actors = task.to_act(state)
            if not actors:
                return max(1, stage)
            state = task.step(state, dict.fromkeys(actors, ""))
    raise TaskError(
        f"task {task.name} does not end within {MAX_STAGES} stages of empty answers on problem "
        f"{problem.id}: let to_act return () once the work is over"
    )
