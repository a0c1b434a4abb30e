"""Baselines and evaluations: equal problems and seeds, one cap for all, nothing paid twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.engine.evaluate import Baselines, compared, evaluate
from orchestry.report.measures import gain, measured
from orchestry.store.journal import Opened, Reserved
from orchestry.store.run import Run
from orchestry.task.arrangements import BASELINES
from tests.cli.support import chat, served
from tests.engine.test_run import BASE, PRICED, config, kill_at

NAMES = tuple(BASELINES)


def play(root: Path, config: RunConfig, *names: str, **how: Any) -> dict[str, Run]:
    asked = Baselines(config, names or NAMES, **how)
    return dict(zip(asked.names, asked.play(root), strict=False))


def calls(run: Run) -> int:
    return sum(isinstance(event, Reserved) for event in run.events)


def test_all_baselines_play_the_same_problems_with_the_same_seeds(tmp_path: Path) -> None:
    found = play(tmp_path, config(*PRICED), samples=3)
    assert list(found) == list(NAMES)
    of_team = orchestry.train(config(*PRICED, "split=test", "episodes=5"), tmp_path / "team")
    for run in found.values():
        assert [(e.problem, e.seed) for e in run.episodes] == [
            (e.problem, e.seed) for e in of_team.episodes
        ]
        assert run.summary.stopped == "done"
    drawn = {name: run.episodes[0].calls for name, run in found.items()}
    # a beam of 4 and 2 over three stages pays for seven trajectories
    several = {"best_of_n": 21, "concat": 9, "sequential": 9, "discussion": 18}
    assert drawn == {"fixed": 3, "single": 3, **several}
    assert {name: run.summary.baseline for name, run in found.items()} == {
        **{name: name for name in NAMES},
        "best_of_n": None,
    }


def test_baselines_lie_where_a_second_call_finds_them_and_pays_nothing(tmp_path: Path) -> None:
    first = play(tmp_path, config(*PRICED), "concat", samples=2)["concat"]
    assert first.folder == tmp_path / "concat--test--samples-2"
    again = play(tmp_path, config(*PRICED), "concat", samples=2)["concat"]
    assert calls(again) == calls(first)
    assert again.rewards == first.rewards


@pytest.mark.slow
def test_a_killed_baseline_is_gone_on_with(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", config(), "discussion", samples=2)["discussion"]
    sets = [word for item in BASE for word in ("--set", item)]
    slow = ("--set", "provider.fake.latency_s=0.03", "--set", "search.episodes_in_flight=1")
    args = ("baselines", "run", "discussion", "--samples", "2", "--out", str(tmp_path / "cut"))
    folder = tmp_path / "cut" / whole.folder.name
    kill_at(b'"committed"', folder, *args, *sets, *slow)
    same = config("provider.fake.latency_s=0.03", "search.episodes_in_flight=1")
    cut = play(tmp_path / "cut", same, "discussion", samples=2)["discussion"]
    assert sum(isinstance(event, Opened) for event in cut.events) == 2
    assert cut.rewards == whole.rewards


def test_one_cap_holds_over_all_baselines(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", config(*PRICED), "concat", "discussion", samples=2)
    price = {name: run.summary.cost_usd for name, run in whole.items()}
    cap = price["concat"] + 0.4 * price["discussion"]
    tight = config(*PRICED, f"budget.usd={cap}", "cache.enabled=false")
    found = play(tmp_path / "tight", tight, "concat", "discussion", "fixed", samples=2)
    assert [run.summary.stopped for run in found.values()] == ["done", "budget"]
    assert sum(run.summary.cost_usd for run in found.values()) <= cap


def test_everything_is_checked_before_the_first_baseline_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    with pytest.raises(ConfigError, match="unknown baseline 'none'"):
        play(tmp_path, config(), "concat", "none")
    with pytest.raises(ConfigError, match="price"):
        play(tmp_path, config("provider.name=openai", "provider.model=odd"), "concat")
    assert list(tmp_path.iterdir()) == []


def test_best_of_n_of_chains_is_as_many_chains_as_the_other_baselines(tmp_path: Path) -> None:
    asked = config("search.strategy=chains", "search.k_samples=2")
    found = play(tmp_path, asked, "best_of_n", "concat", samples=3, episodes=1)
    assert [run.episodes[0].calls for run in found.values()] == [9, 9]


def test_a_baseline_has_no_baselines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config is of baseline fixed"):
        play(tmp_path, config("baseline=fixed"), "concat")


def test_a_folder_of_another_config_is_not_mixed_up_with_this_one(tmp_path: Path) -> None:
    play(tmp_path, config(), "concat", samples=2)
    with pytest.raises(ConfigError, match=r"was played with seed=0, and 3 is asked for"):
        play(tmp_path, config(seed=3), "concat", samples=2)
    play(tmp_path, config(), "best_of_n", samples=2, episodes=2)
    with pytest.raises(ConfigError, match=r"with search.k_samples=4, and 8 is asked for"):
        play(tmp_path, config("search.k_samples=8"), "best_of_n", samples=2)


def test_the_first_problems_are_those_of_the_whole(tmp_path: Path) -> None:
    few = play(tmp_path / "few", config(), "concat", samples=2, episodes=2)["concat"]
    whole = play(tmp_path / "whole", config(), "concat", samples=2)["concat"]
    assert few.rewards == whole.rewards[:2]
    assert len(whole.episodes) == 5


def test_a_baseline_is_an_ordinary_run(tmp_path: Path) -> None:
    run = play(tmp_path, config(), "discussion", samples=2)["discussion"]
    rerun = orchestry.train(orchestry.RunConfig.model_validate(run.config), tmp_path / "again")
    assert rerun.rewards == run.rewards


def test_samples_are_independent_trajectories_of_each_problem(tmp_path: Path) -> None:
    run = orchestry.train(config(*PRICED), tmp_path / "run")
    found = evaluate(run, samples=4)
    assert found.folder == run.folder / "evaluations" / "test--samples-4"
    assert [(len(list(e.leaves())), e.calls) for e in found.episodes] == 5 * [(4, 12)]
    assert evaluate(run).folder == run.folder / "evaluations" / "test"


def test_samples_are_as_many_where_the_search_combines_all(tmp_path: Path) -> None:
    odd = config("task=code_collaboration", "search.joint=cross", "episodes=1")
    run = orchestry.train(odd, tmp_path / "run")
    found = evaluate(run, samples=3, episodes=1)
    assert [len(list(e.leaves())) for e in found.episodes] == [3]
    beside = play(tmp_path / "b", odd, "concat", samples=3, episodes=1)["concat"]
    assert [len(list(e.leaves())) for e in beside.episodes] == [3]


def test_the_first_problems_are_gone_on_from(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    few = evaluate(run, samples=2, episodes=2)
    assert len(few.episodes) == 2
    again = evaluate(run, samples=2, episodes=1).summary
    assert (again.episodes, again.episodes_asked) == (2, 2)
    assert evaluate(run, samples=2).rewards[:2] == few.rewards


def test_a_run_that_learned_nothing_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    found, began = compared(run, samples=2)
    assert (len(found.episodes), began) == (5, None)


def test_measures_are_those_of_the_trajectories(tmp_path: Path) -> None:
    run = play(tmp_path, config(*PRICED), "sequential", samples=3)["sequential"]
    found = measured(run)
    assert found is not None
    leaves = [[leaf.value or 0.0 for leaf in e.leaves()] for e in run.episodes]
    assert found.reward.mean == pytest.approx(sum(map(sum, leaves)) / 15)
    assert found.best.mean == pytest.approx(sum(map(max, leaves)) / 5)
    assert found.best_at[3].mean == pytest.approx(found.best.mean)
    assert found.best_at[1].mean == pytest.approx(found.reward.mean)
    assert (found.problems, found.trajectories, found.calls_per_problem) == (5, 15, 9)
    assert (set(found.best_at), found.pass_at) == ({1, 3}, {})
    assert found.tokens_per_s is not None
    assert found.usd == run.summary.cost_usd > 0


def test_a_search_has_no_independent_trajectories(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    found = measured(run)
    assert found is not None
    assert (found.best_at, found.pass_at) == ({}, {})
    assert found.best.mean == pytest.approx(sum(max(_of(run, p)) for p in _problems(run)) / 5)


def _problems(run: Run) -> set[str]:
    return {episode.problem for episode in run.episodes}


def _of(run: Run, problem: str) -> list[float]:
    return [e.reward for e in run.episodes if e.problem == problem]


def test_a_gain_is_paired_over_problems(tmp_path: Path) -> None:
    found = play(tmp_path, config(), "concat", "sequential", samples=2)
    one = gain(found["concat"], found["concat"])
    assert one is not None
    assert (one.mean, one.low, one.high) == (0.0, 0.0, 0.0)
    other = gain(found["sequential"], found["concat"])
    rewards = {name: measured(run) for name, run in found.items()}
    assert other is not None
    assert rewards["sequential"] is not None
    assert rewards["concat"] is not None
    apart = rewards["sequential"].reward.mean - rewards["concat"].reward.mean
    assert other.mean == pytest.approx(apart)


def test_answers_of_the_cache_count_for_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with served(lambda number, body: (200, chat(f"answer {number}"))) as url:
        asked = config(
            "provider.name=openai",
            "provider.model=m",
            f"provider.base_url={url}/v1",
            "prices.m.input=1",
            "prices.m.output=1",
            f"cache.dir={tmp_path / 'cache'}",
        )
        runs = [play(tmp_path / n, asked, "concat", samples=2)["concat"] for n in ("a", "b")]
    first, again = (measured(run) for run in runs)
    assert first is not None
    assert again is not None
    assert (calls(runs[0]), calls(runs[1])) == (30, 0)
    assert first.tokens_per_s is not None
    assert first.tokens_per_s > 0
    assert again.tokens_per_s is None
    assert first.reward == again.reward
    assert runs[1].summary.cost_usd == 0.0  # but a comparison must not depend on the order
    assert first.usd == again.usd == runs[0].summary.cost_usd > 0
    assert first.output_tokens == again.output_tokens > 0


COUNTED = """
from pathlib import Path

from orchestry import AgentSpec, Problem, TeamTask


class Counted(TeamTask):
    name = "counted"
    agents = (AgentSpec(role="left"), AgentSpec(role="right"))

    def __init__(self, weights=None, options=None):
        super().__init__(weights, options)
        with (Path(__file__).parent / "made").open("a") as file:
            file.write("x")

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt="say", split=split) for n in range(2)]

    async def evaluate(self, state, tools):
        return self.score(quality=0.5)
"""


def test_a_baseline_and_an_evaluation_are_checked_once(tmp_path: Path) -> None:
    """Each check makes one task."""
    folder = tmp_path / "tasks" / "counted"
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(COUNTED)
    made = folder / "made"
    asked = resolve([], ["task=counted", f"task_path=[{folder.parent}]", "provider.name=fake"])
    names = ("concat", "discussion", "best_of_n")
    runs = list(Baselines(asked, names, samples=2).play(tmp_path / "baselines"))
    assert [run.summary.episodes for run in runs] == [2, 2, 2]
    assert len(made.read_text()) == len(names)
    run = orchestry.train(asked.model_copy(update={"episodes": 1}), tmp_path / "run")
    before = len(made.read_text())
    evaluate(run)
    assert len(made.read_text()) == before + 1


def test_an_evaluation_needs_no_cluster_of_its_run(tmp_path: Path) -> None:
    run = orchestry.train(config("episodes=1"), tmp_path / "run")
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("executor: local", "executor: ray://127.0.0.1:1"))
    found = evaluate(run.folder, "test", episodes=1)
    assert found.config["executor"] == "local"
    assert found.summary.stopped == "done"
