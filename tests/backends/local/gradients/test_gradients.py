"""Our policy gradients are those of MAGRPO as it is written, and faults of others would show."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orchestry.core.types import Tree
from orchestry.rollout.schedule import Joint
from tests.backends.local.gradients.bandit import RATE, SOLVED, UPDATES, play
from tests.backends.local.gradients.compared import MANY, compare, draws, tuned
from tests.backends.local.gradients.faults import planted
from tests.backends.local.gradients.formula import BASELINES, normalised, written_out
from tests.backends.local.gradients.world import new_trainer, played, problem, saved_model

pytestmark = pytest.mark.usefixtures("one_thread")


GROUPS: dict[Joint, dict[int, int]] = {"aligned": {2: 4, 3: 4}, "cross": {2: 3, 3: 2}}
"""Samples per agent, by number of agents; `cross` combines all of them."""
KINDS = [
    pytest.param(
        joint, agents, group, turns, marks=() if (agents, turns) == (2, 2) else pytest.mark.slow
    )
    for joint, groups in GROUPS.items()
    for agents, group in groups.items()
    for turns in (1, 2)
]


@pytest.mark.parametrize(("joint", "agents", "group", "turns"), KINDS)
@pytest.mark.slow
def test_our_gradient_is_that_of_the_written_out_formula(
    joint: Joint, agents: int, group: int, turns: int
) -> None:
    """Equations 1 and 2 of MAGRPO (arXiv 2508.04652), in one micro-batch and in many; float64."""
    for seed in (3, 4):
        one, many, answers = asyncio.run(compare(seed, joint, agents, group, turns))
        assert max(one, many) < 1e-9
        assert answers > 0


@pytest.mark.parametrize("settings", [{}, MANY])
def test_fine_tuning_is_cross_entropy_and_dpo_is_as_written(settings: dict[str, Any]) -> None:
    """Supervised: the mean over tokens; DPO: equation 7 of arXiv 2305.18290; float64."""
    for seed in (3, 4):
        found = tuned(seed, **settings)
        assert found.supervised < 1e-9
        assert found.preferences < 1e-9


def test_weights_of_the_written_out_formula() -> None:
    """Of three chains and two turns: A / 6 a turn, and zero in the sum over a group."""
    with saved_model(0) as folder:
        trainer = new_trainer(folder, 2, 0)
    trees = asyncio.run(played(trainer, [problem(0, agents=2, turns=2)], 0, group=3))
    scores = _scores(trees[0])
    mean = sum(map(sum, scores)) / 3
    weights = [m.weight for m in written_out(trees) if (m.agent, m.turn) == (0, 0)]
    assert weights == pytest.approx([(sum(row) - mean) / 6 for row in scores])
    halves = [m.weight for m in written_out(trees, discount=0.5) if (m.agent, m.turn) == (1, 0)]
    mean = sum(row[0] + 0.5 * row[1] for row in scores) / 3
    assert halves == pytest.approx([(row[0] + 0.5 * row[1] - mean) / 6 for row in scores])


def _scores(tree: Tree[Any]) -> list[list[float]]:
    """By chain, turn after turn."""
    return [[tree.nodes[id].total for id in leaf.id.path[1:]] for leaf in tree.leaves]


def test_all_baselines_are_one_once_normalised() -> None:
    found = [normalised(name)([0.1, 0.7, 0.4, 0.9]) for name in BASELINES]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-6)


@pytest.mark.slow
def test_every_planted_fault_shows_and_ours_has_none() -> None:
    faults, rest = planted(1)
    assert len(faults) == 7
    for fault in faults:
        assert min(fault.faulty) > 0.01
        assert fault.ours < 1e-9
    assert rest.normalised < 1e-6 < rest.baselines
    assert rest.tokens[0] < rest.tokens[1]
    assert rest.skipping < 1e-9
    assert rest.stopped == 1


def test_what_drawing_records_is_what_the_learner_computes() -> None:
    exact, rough = (draws(dtype, 1, n=2) for dtype in (torch.float64, torch.float32))
    assert exact.same == rough.same == exact.answers == 4
    assert max(exact.learner, exact.batch) < 1e-12
    assert 1e-9 < max(rough.learner, rough.batch) < 1e-4


def test_a_bandit_stays_as_it_is_at_rate_zero_and_moves_otherwise() -> None:
    still, moved = (asyncio.run(play(0, rate, 2)) for rate in (0.0, 2e-3))
    assert still.start == still.end == moved.start != moved.end
    assert still.updates == moved.updates == 2


@pytest.mark.slow
def test_a_team_learns_a_bandit_whose_best_joint_action_is_known() -> None:
    """One equilibrium is worth half of the best one, and holds some seeds."""
    runs = [asyncio.run(play(seed, RATE, UPDATES)) for seed in range(6)]
    assert sum(run.end >= SOLVED for run in runs) >= 4
    assert all(run.start < 0.3 for run in runs)
