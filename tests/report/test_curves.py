"""Curves are means of the episodes' own figures, along episodes or updates, over the seeds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import yaml

from orchestry.report.arms import arms
from orchestry.report.curves import axis, curve, part, part_names, points, reward, window
from orchestry.report.experiment import read_experiments
from orchestry.report.salvage import Salvaged
from tests.report.made import copied


def edited(folder: Path, **changes: object) -> Salvaged:
    """The run with other settings in its config."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    return Salvaged(folder)


def test_a_search_is_worth_its_best_trajectory_episode_by_episode(folder: Path) -> None:
    run = Salvaged(folder)
    found = curve([run], reward, 1)
    assert axis(run) == "episodes"
    assert found is not None
    assert found.x == (1, 2, 3)
    assert found.mean == tuple(run.rewards)
    assert found.low == found.high == found.mean  # one episode a point has no spread
    assert part_names([run]) == ["quality"]
    assert curve([run], part("quality"), 1) == found
    none = curve([run], part("no such part"), 1)
    assert none is not None
    assert none.mean == (0.0, 0.0, 0.0)


def test_weights_are_worth_all_trajectories_update_by_update(folder: Path) -> None:
    learn = {"enabled": True, "every": 2}
    run = edited(folder, backend="local", learn=learn, search={"strategy": "chains"})
    found = curve([run], reward, 1)
    rewards = [episode.mean_leaf_reward for episode in run.episodes]
    assert axis(run) == "updates"
    assert found is not None
    assert found.x == (0, 1)
    assert found.mean == pytest.approx((fmean(rewards[:2]), rewards[2]))


def test_smoothing_means_over_the_last_points(folder: Path) -> None:
    run = Salvaged(folder)
    (first, second) = points(run, 2)
    assert (first.x, second.x) == (2, 3)
    assert [e.episode for e in second.episodes] == [1, 2]
    found = curve([run], reward, 3)
    assert found is not None
    assert found.mean == pytest.approx((fmean(run.rewards),))
    assert 0 <= found.low[0] <= found.mean[0] <= found.high[0] <= 1
    assert curve([run], reward, 4) is None


def test_seeds_are_one_arm_whose_band_is_lowest_to_highest(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    edited(other, seed=1)
    lines = (other / "episodes.jsonl").read_text().splitlines()
    (other / "episodes.jsonl").write_text("\n".join(lines[:2]) + "\n")  # it came less far
    (arm,) = arms(read_experiments([folder, other]))
    assert arm.label == "words"
    found = curve(arm.runs, reward, 1)
    assert found is not None
    assert found.x == (1, 2)
    assert len(found.seeds) == 2
    assert found.low == tuple(map(min, zip(*found.seeds, strict=True)))
    assert found.high == tuple(map(max, zip(*found.seeds, strict=True)))


def test_what_differs_in_more_than_the_seed_is_another_arm(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    edited(other, seed=1, split="dev")
    labels = [arm.label for arm in arms(read_experiments([folder, other]))]
    assert labels == ["run (split train)", "other (split dev)"]


@pytest.mark.parametrize(("lines", "smooth"), [(3, 1), (0, 1)])
def test_a_window_is_never_less_than_one(folder: Path, lines: int, smooth: int) -> None:
    kept = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)[:lines]
    (folder / "episodes.jsonl").write_bytes(b"".join(kept))
    assert window([Salvaged(folder)]) == smooth
    assert window([]) == 1
