"""Evaluations and baselines are told apart by their folders, and compared on shared problems."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.engine.evaluate import Baselines, evaluate
from orchestry.report.headline import headline, updated
from orchestry.report.held_out import (
    ahead,
    baselines,
    common_problems,
    held_evaluations,
    in_words,
    shows_gain,
    team_on,
    untrained,
)
from orchestry.report.runs import Experiment, read_experiments
from orchestry.report.stats import Interval
from orchestry.store.run import Run
from tests.report.made import config, copied


@pytest.fixture(scope="session")
def around(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `words` with an evaluation on test and two baselines beside it."""
    folder = tmp_path_factory.mktemp("around") / "run"
    orchestry.train(config(), folder)
    evaluate(folder, "test", samples=2)
    list(Baselines(config(), ("fixed", "best_of_n"), "test", 2).play(folder / "baselines"))
    return folder


@pytest.fixture
def experiment(around: Path) -> Experiment:
    """The same as a report reads it."""
    return read_experiments([around])[0]


def test_names_splits_and_samples_come_from_the_folders(experiment: Experiment) -> None:
    (team,) = held_evaluations(experiment)
    assert (team.name, team.split, team.update, team.samples) == ("the team", "test", None, 2)
    found = [(one.name, one.split, one.samples) for one in baselines(experiment)]
    assert found == [("best_of_n", "test", None), ("fixed", "test", 2)]  # the former by its calls


def test_best_of_n_at_the_searchs_calls_is_compared_with_the_search(
    around: Path, tmp_path: Path
) -> None:
    folder = copied(around, tmp_path / "run")
    evaluate(folder, "test")
    (experiment,) = read_experiments([folder])
    best_of_n, fixed = baselines(experiment)
    found = [team_on(experiment, one) for one in (best_of_n, fixed)]
    assert [team and team.samples for team in found] == [None, 2]


def test_a_baseline_is_compared_with_the_team_on_the_same_problems(experiment: Experiment) -> None:
    (team,) = held_evaluations(experiment)
    fixed = baselines(experiment)[1]
    assert team_on(experiment, fixed) == team
    assert common_problems(team, fixed) == 5
    difference = ahead(team, fixed)
    assert difference is not None
    assert difference.mean == pytest.approx(team.measures.reward.mean - fixed.measures.reward.mean)
    sentence = next(text for text in headline(experiment) if "fixed" in text)
    assert "at 6.0 and 2.0 calls per problem" in sentence
    assert "paired over the 5 problems that both played" in sentence
    assert shows_gain(difference, 5) in sentence


def test_an_update_is_compared_with_the_team_as_the_run_began(around: Path, tmp_path: Path) -> None:
    folder = copied(around, tmp_path / "run")
    place = folder / "evaluations"
    copied(place / "test--samples-2", place / "test--update-0--samples-2")
    copied(place / "test--samples-2", place / "test--update-3--samples-2")
    copied(place / "test--samples-2", place / "test--update-3")
    (experiment,) = read_experiments([folder])
    found = held_evaluations(experiment)
    names = [(one.name, one.samples) for one in found]
    assert names == [
        ("after update 3", None),
        ("the team", 2),
        ("as the run began", 2),
        ("after update 3", 2),
    ]
    began = untrained(found[3], found)
    assert began == found[2]
    assert ahead(found[3], began) == Interval(0.0, 0.0, 0.0)
    assert untrained(found[0], found) is None  # no such evaluation of update 0
    assert untrained(found[2], found) is None
    assert [team_on(experiment, one) for one in baselines(experiment)] == [found[0], found[3]]
    said = next(text for text in headline(experiment) if "as the run began" in text)
    assert said.endswith("fewer than 6 problems show no difference.")


def test_words_claim_no_more_than_the_interval() -> None:
    assert shows_gain(Interval(0.2, 0.1, 0.3), 6) == "higher"
    assert shows_gain(Interval(-0.2, -0.3, -0.1), 6) == "lower"
    assert "no difference" in shows_gain(Interval(0.2, 0.0, 0.3), 6)
    assert "no difference" in shows_gain(Interval(0.2, 0.2, 0.2), 1)


def test_without_an_evaluation_no_gain_is_claimed(folder: Path) -> None:
    (experiment,) = read_experiments([folder])
    assert any("so no gain is claimed" in text for text in headline(experiment))


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("test", "test split"),
        ("dev--update-0", "dev split, as the run began"),
        ("test--update-12--samples-10", "test split, after update 12, 10 samples each"),
        ("fixed--test--samples-2", "fixed, test split, 2 samples each"),
        ("best_of_n--test--samples-2", "best of n, test split"),  # as many as the search's calls
        ("kept by hand", "kept by hand"),
    ],
)
def test_a_folder_is_said_in_words(around: Path, folder: str, words: str) -> None:
    name = folder if folder.startswith("best") else "fixed--test--samples-2"
    assert in_words(folder, Run(around / "baselines" / name)) == words


def test_a_report_claims_no_update_that_accepted_nothing(searched: Run) -> None:
    summary = searched.summary.model_copy(update={"updates": 60})
    assert updated(summary) == "60 updates (no accepted behaviour in the prompts)"
    found = [summary.model_copy(update=more) for more in ({"accepted": 1}, {"backend": "local"})]
    assert [updated(one) for one in found] == [
        *("60 updates (1 accepted behaviour in the prompts)", "60 updates")
    ]
