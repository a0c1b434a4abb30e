"""What is put before a person: over the leaves of a real run."""

from __future__ import annotations

import pytest

import orchestry
from orchestry.core.errors import ConfigError
from orchestry.judge.calibration import reward
from orchestry.judge.ratings import Shown, extremes, find, rated, read_rating
from orchestry.store.journal import last_words
from orchestry.store.records import EpisodeRecord
from tests.engine.test_run import config


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[EpisodeRecord]:
    """Six episodes over five problems."""
    return orchestry.train(config(), tmp_path_factory.mktemp("rated") / "run").episodes


def by_kind(found: list[Shown], why: str) -> list[Shown]:
    return [shown for shown in found if shown.why == why]


def test_the_best_and_worst_leaves_one_of_each_a_problem(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 3, 2)
    best, worst = by_kind(found, "best"), by_kind(found, "worst")
    highest, lowest = dict[str, float](), dict[str, float]()
    for record in records:
        for leaf in record.leaves():
            number = reward(leaf)
            highest[record.problem] = max(highest.get(record.problem, 0.0), number)
            lowest[record.problem] = min(lowest.get(record.problem, 1.0), number)
    assert sorted(shown.reward for shown in best) == sorted(highest.values())[-3:]
    assert sorted(shown.reward for shown in worst) == sorted(lowest.values())[:2]
    for kind in (best, worst):
        assert len({shown.record.problem for shown in kind}) == len(kind)
    assert len({shown.key for shown in found}) == 5


def test_too_many_asked_for_are_as_many_as_there_are(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 99, 99)
    assert len(by_kind(found, "best")) == len(by_kind(found, "worst")) == 5
    assert len({shown.key for shown in found}) == 10


def test_their_order_is_fixed_and_tells_nothing(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 5, 5)
    assert found == extremes(list(reversed(records)), 5, 5)
    kinds = [shown.why for shown in found]
    assert kinds not in (sorted(kinds), sorted(kinds, reverse=True))


def test_a_trajectory_is_found_by_episode_and_node(records: list[EpisodeRecord]) -> None:
    assert find(records, 4, None).node == records[4].best_node
    first = records[4].path(records[4].best)[0]
    assert find(records, 4, first.id).key == (4, first.id)
    with pytest.raises(ConfigError, match=r"no finished episode 6: choose one of 0, 1, 2, 3, 4, 5"):
        find(records, 6, None)
    for node in ("0", "0.99", ""):
        with pytest.raises(ConfigError, match=rf"node '{node}': choose one of its leaves \(0\.\d"):
            find(records, 4, node)


@pytest.mark.parametrize(("text", "number"), [("0", 0.0), ("7.5", 0.75), (" 10 ", 1.0)])
def test_a_rating_is_read_on_its_scale(text: str, number: float) -> None:
    assert read_rating(text) == number


@pytest.mark.parametrize("text", ["", "good", "-0.1", "10.01", "nan", "inf", "7/10", "7\n8"])
def test_what_is_no_rating_is_named_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="is no rating: give a number from 0") as error:
        read_rating(text)
    assert "\n" not in str(error.value)


def test_the_last_rating_of_a_node_counts(records: list[EpisodeRecord]) -> None:
    one, other = find(records, 0, None), find(records, 1, None)
    said = [rated(one, 0.2, "", 1.0), rated(other, 0.5, "", 2.0), rated(one, 0.9, "no,\n yes", 3.0)]
    assert last_words(said) == {one.key: said[2], other.key: said[1]}
    assert said[2].comment == "no, yes"


def test_a_comment_in_no_encoding_can_be_written(records: list[EpisodeRecord]) -> None:
    event = rated(find(records, 0, None), 0.2, "caf\udce9", 1.0)
    assert "caf?" in event.model_dump_json()
