"""Curves and kinds of trajectory say what the episodes hold."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import yaml

from orchestry.report.curves import (
    OTHER,
    Portion,
    axis,
    common_kinds,
    count,
    curve,
    episode_reward,
    first_and_last,
    kind_of,
    part,
    part_names,
    points,
    shares,
    tag_names,
    tag_shares,
    window,
)
from orchestry.report.measures import _pass_at
from orchestry.report.runs import Salvaged, arms, read_experiments
from orchestry.store.records import Metrics
from tests.report.made import copied


def edited(folder: Path, **changes: object) -> Salvaged:
    """The run with other settings in its config."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    return Salvaged(folder)


def test_a_search_is_worth_its_best_trajectory_episode_by_episode(folder: Path) -> None:
    run = Salvaged(folder)
    found = curve([run], episode_reward, 1)
    assert axis(run) == "episodes"
    assert found is not None
    assert found.x == (1, 2, 3)
    assert found.mean == tuple(run.best_of_k)
    assert found.low == found.high == found.mean  # one episode a point has no spread
    assert part_names([run]) == ["quality"]
    assert curve([run], part("quality"), 1) == found
    none = curve([run], part("no such part"), 1)
    assert none is not None
    assert none.mean == (0.0, 0.0, 0.0)


def test_weights_are_worth_all_trajectories_update_by_update(folder: Path) -> None:
    learn = {"enabled": True, "every": 2}
    run = edited(folder, backend="local", learn=learn, search={"strategy": "chains"})
    found = curve([run], episode_reward, 1)
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
    found = curve([run], episode_reward, 3)
    assert found is not None
    assert found.mean == pytest.approx((fmean(run.best_of_k),))
    assert 0 <= found.low[0] <= found.mean[0] <= found.high[0] <= 1
    assert curve([run], episode_reward, 4) is None


def test_seeds_are_one_arm_whose_band_is_lowest_to_highest(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    edited(other, seed=1)
    lines = (other / "episodes.jsonl").read_text().splitlines()
    (other / "episodes.jsonl").write_text("\n".join(lines[:2]) + "\n")  # it came less far
    (arm,) = arms(read_experiments([folder, other]))
    assert arm.label == "words"
    found = curve(arm.runs, episode_reward, 1)
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


RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "code_review"


@pytest.fixture
def reviewed(tmp_path: Path) -> Salvaged:
    """The recorded run of the embedded model, replayed: its trajectories carry tags."""
    import orchestry
    from orchestry.core.config import validate
    from orchestry.core.resolve import merge
    from orchestry.store.run import read_config

    replay = {"provider": {"name": "recorded", "recording": str(RECORDED)}}
    run = orchestry.train(validate(merge(read_config(RECORDED), replay)), tmp_path / "reviewed")
    return Salvaged(run.folder)


def test_shares_of_kinds_add_up_to_all_trajectories(reviewed: Salvaged) -> None:
    kinds = common_kinds([reviewed])
    found = shares(reviewed.episodes, kinds, schemes=False)
    leaves = sum(len(list(episode.leaves())) for episode in reviewed.episodes)
    assert tag_names([reviewed])
    assert {share.of for share in found.values()} == {leaves}
    assert sum(share.count for share in found.values()) == leaves
    assert count(reviewed.episodes, schemes=False).total() == leaves


def test_rare_kinds_are_other(reviewed: Salvaged) -> None:
    first = common_kinds([reviewed])[0]
    found = shares(reviewed.episodes, [first, OTHER], schemes=False)
    assert found[OTHER].count == found[OTHER].of - found[first].count


def test_a_tag_counts_wherever_it_stands(reviewed: Salvaged) -> None:
    tags = tag_names([reviewed])
    found = tag_shares(reviewed.episodes, tags)
    for tag in tags:
        assert found[tag].count == sum(episode.tags()[tag] for episode in reviewed.episodes)


def test_a_trajectory_that_several_samples_drew_counts_as_often(reviewed: Salvaged) -> None:
    """In shares of tags and kinds, in pass@k and in what a run keeps, as in the reward."""
    record = reviewed.episodes[0]
    leaf = next(leaf for leaf in record.leaves() if leaf.score.tags)
    tag, kind = leaf.score.tags[0], kind_of(leaf.score.tags, schemes=False)
    groups = [
        group.model_copy(update={"children": (*group.children, *[leaf.id] * 3)})
        if leaf.id in group.children
        else group
        for group in record.groups
    ]
    again = record.model_copy(update={"groups": tuple(groups)})
    before, after = (
        (tag_shares([one], [tag])[tag], shares([one], [kind], schemes=False)[kind])
        for one in (record, again)
    )
    for one, other in zip(before, after, strict=True):
        assert (other.count, other.of) == (one.count + 3, one.of + 3)
    rows = [Metrics().row(one) for one in (record, again)]
    assert rows[1]["leaves"] == len(again.trajectories()) == rows[0]["leaves"] + 3
    assert rows[1][f"tag/{tag}"] == rows[0][f"tag/{tag}"] + 3
    passed = _pass_at([again], tag)[1].mean
    assert passed == pytest.approx(after[0].count / after[0].of)


def test_a_scheme_is_named_by_its_tag() -> None:
    tags = ("solved", "scheme_pipeline")
    assert kind_of(tags, schemes=True) == "pipeline"
    assert kind_of(tags[:1], schemes=True) == "without a scheme tag"
    assert kind_of(tags, schemes=False) == "scheme_pipeline + solved"
    assert kind_of((), schemes=False) == "no tag"


def test_a_share_says_of_how_many() -> None:
    assert str(Portion(1, 8)) == "12 % (1 of 8)"
    assert str(Portion(0, 0)) == "-"


def test_quarters_have_one_episode_at_least(reviewed: Salvaged) -> None:
    first, last = first_and_last(reviewed.episodes)
    assert [one.episode for one in first] == [0]
    assert [one.episode for one in last] == [reviewed.episodes[-1].episode]
