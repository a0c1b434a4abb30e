"""Best-of-n gets the beam's calls, whichever way joint actions combine."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from orchestry.core.types import Limits, Tools
from orchestry.rollout.beam import Beam, Joint, Schedule
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import best_of_n
from orchestry.sandbox import open_sandbox
from orchestry.task.base import BaseTask
from tests.toys import Duo, Scripted, Words, team


async def calls(task: BaseTask[Any], schedule: Schedule) -> int:
    """Samples of one episode in which no two answers are equal and none is as good as another."""
    number = count()
    policy = Scripted(lambda request: "a" * (next(number) % 10) + f" {next(number)}")
    async with open_sandbox(Limits()) as sandbox:
        rate = task_rater(task, Tools(sandbox))
        await Rollout(task, team(task), policy, rate, schedule).play(task.problems("train")[0], 0)
    return policy.calls


@pytest.mark.parametrize("joint", ["aligned", "cross"])
@pytest.mark.parametrize(("k", "width"), [(1, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("task", [Duo(), Words()], ids=["duo", "words"])
async def test_best_of_n_gets_what_the_beam_draws(
    task: BaseTask[Any], k: int, width: int, joint: Joint
) -> None:
    beam = Beam(k, width, joint=joint)
    chains = best_of_n(beam, task, task.problems("train")[0])
    spent, given = await calls(task, beam), await calls(task, chains)
    a_chain = await calls(task, best_of_n(Beam(1, 1), task, task.problems("train")[0]))
    assert spent <= given < spent + a_chain
