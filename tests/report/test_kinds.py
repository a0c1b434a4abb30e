"""Kinds part the trajectories: their shares add up, with denominators."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestry.report.kinds import (
    OTHER,
    Share,
    common,
    count,
    first_and_last,
    kind_of,
    shares,
    tag_names,
    tag_shares,
)
from orchestry.report.salvage import Salvaged

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "code_review"


@pytest.fixture
def reviewed(tmp_path: Path) -> Salvaged:
    """The recorded run of the embedded model, replayed: its trajectories carry tags."""
    import orchestry
    from orchestry.core.config import merge, validate
    from orchestry.store.run import read_config

    replay = {"provider": {"name": "recorded", "recording": str(RECORDED)}}
    run = orchestry.train(validate(merge(read_config(RECORDED), replay)), tmp_path / "reviewed")
    return Salvaged(run.folder)


def test_shares_of_kinds_add_up_to_all_trajectories(reviewed: Salvaged) -> None:
    kinds = common([reviewed])
    found = shares(reviewed.episodes, kinds, schemes=False)
    leaves = sum(len(list(episode.leaves())) for episode in reviewed.episodes)
    assert tag_names([reviewed])
    assert {share.of for share in found.values()} == {leaves}
    assert sum(share.count for share in found.values()) == leaves
    assert count(reviewed.episodes, schemes=False).total() == leaves


def test_rare_kinds_are_other(reviewed: Salvaged) -> None:
    first = common([reviewed])[0]
    found = shares(reviewed.episodes, [first, OTHER], schemes=False)
    assert found[OTHER].count == found[OTHER].of - found[first].count


def test_a_tag_counts_wherever_it_stands(reviewed: Salvaged) -> None:
    tags = tag_names([reviewed])
    found = tag_shares(reviewed.episodes, tags)
    for tag in tags:
        assert found[tag].count == sum(episode.tags()[tag] for episode in reviewed.episodes)


def test_a_scheme_is_named_by_its_tag() -> None:
    tags = ("solved", "scheme_pipeline")
    assert kind_of(tags, schemes=True) == "pipeline"
    assert kind_of(tags[:1], schemes=True) == "without a scheme tag"
    assert kind_of(tags, schemes=False) == "scheme_pipeline + solved"
    assert kind_of((), schemes=False) == "no tag"


def test_a_share_says_of_how_many() -> None:
    assert str(Share(1, 8)) == "12 % (1 of 8)"
    assert str(Share(0, 0)) == "-"


def test_quarters_have_one_episode_at_least(reviewed: Salvaged) -> None:
    first, last = first_and_last(reviewed.episodes)
    assert [one.episode for one in first] == [0]
    assert [one.episode for one in last] == [reviewed.episodes[-1].episode]
