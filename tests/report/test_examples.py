"""Examples are the best, the median and the worst of all trajectories, with measured credits."""

from __future__ import annotations

from pathlib import Path

from orchestry.report.examples import examples
from orchestry.report.salvage import Salvaged
from orchestry.store.run import Run


def test_best_median_and_worst_are_what_they_say(searched: Run) -> None:
    rewards = sorted(leaf.score.total for record in searched.episodes for leaf in record.leaves())
    best, median, worst = examples(searched)
    assert (best.place, median.place, worst.place) == ("best", "median", "worst")
    assert (best.reward, worst.reward) == (rewards[-1], rewards[0])
    assert median.reward == rewards[(len(rewards) - 1) // 2]
    assert [turn.agent for turn in best.turns] == ["writer", "reviewer", "refactorer"]


def test_of_equal_trajectories_one_with_credits_is_shown(searched: Run) -> None:
    best, _, worst = examples(searched)
    for one in (best, worst):
        assert {credit.agent for credit in one.credits} == {"writer", "reviewer", "refactorer"}
        assert {credit.leaf for credit in one.credits} == {one.leaf.id}


def test_few_trajectories_are_shown_once(folder: Path) -> None:
    (folder / "episodes.jsonl").write_bytes(b"")
    assert examples(Salvaged(folder)) == ()
