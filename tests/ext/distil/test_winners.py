"""Which trajectories win, by each measure."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.ext.distil.winners import Choice, each_once, winners
from orchestry.store.journal import Rated
from orchestry.store.run import Run, Store, load_run

TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"
SETS = [
    *("task=words", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=3"),
    *("judge.enabled=false", "behaviors.enabled=false", "credit.share=0.5"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A search with filler answers, only read."""
    return orchestry.train(resolve([], SETS), tmp_path_factory.mktemp("runs") / "run")


def test_by_reward_the_best_share_wins(run: Run) -> None:
    rewards = sorted(leaf.score.total for record in run.episodes for leaf in record.leaves())
    found = winners([run], Choice(top=0.5))
    count = math.ceil(0.5 * len(rewards))
    writer = [one.reward for one in found if one.agent == "writer"]
    assert len(writer) == count
    assert sorted(writer) == rewards[-count:]
    assert writer == sorted(writer, reverse=True)
    assert all(one.reward >= 0.7 for one in winners([run], Choice(top=1.0, min_reward=0.7)))
    assert winners([run], Choice(top=0.5)) == found


def test_by_advantage_a_winner_beats_its_problems_mean(run: Run) -> None:
    means = {record.problem: record.mean_leaf_reward for record in run.episodes}
    found = winners([run], Choice(by="advantage", top=1.0))
    assert found
    assert all(one.reward > means[one.problem] for one in found)


def test_by_credit_each_agent_has_its_own_winners(run: Run) -> None:
    found = winners([run], Choice(by="credit", top=1.0))
    positive = {
        (record.problem, row.agent)
        for record in run.episodes
        for row in record.credits
        if row.credit > 0.0 and record.node(row.leaf).score.total > 0.0
    }
    assert {(one.problem, one.agent) for one in found} == positive
    assert all(one.credit is not None and one.credit > 0.0 for one in found)


def test_by_rating_only_what_people_rated_can_win(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody rated a trajectory"):
        winners([run], Choice(by="rating"))
    copy = shutil.copytree(run.folder, tmp_path / "run")
    record = run.episodes[1]
    best, *rest = sorted(record.leaves(), key=lambda leaf: leaf.score.total)
    stale = Rated(episode=0, node=run.episodes[0].best, rating=1.0, answers="others", at=0.0)
    with Store(copy) as store:
        store.journal.append(stale)
        for node, rating in ((best, 0.9), (rest[0], 0.1)):
            said = Rated(episode=1, node=node.id, rating=rating, at=0.0)
            store.journal.append(said)
    found = winners([load_run(copy)], Choice(by="rating", top=0.5))
    answers = [turn.completion.text for node in record.path(best.id) for turn in node.turns]
    assert {one.answer for one in found} == set(answers)
    assert {one.problem for one in found} == {record.problem}


def test_a_rating_of_zero_is_no_win(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "run")
    with Store(copy) as store:
        store.journal.append(Rated(episode=0, node=run.episodes[0].best, rating=0.0, at=0.0))
    with pytest.raises(ConfigError, match="has a reward above 0 and rating above 0"):
        winners([load_run(copy)], Choice(by="rating", top=1.0))


def test_a_shared_first_move_counts_once(run: Run) -> None:
    found = winners([run], Choice(top=1.0))
    once = each_once(found)
    assert len(once) == len({(one.agent, one.messages, one.answer) for one in found}) < len(found)
