"""The benchmark of recipes: how a budget is shared, and the whole of it on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import kept
from benchmarks.quality.joint import SAMPLES, Bench, recipes_of
from benchmarks.quality.joint_budget import (
    EXPERT,
    GROUP,
    MATCHED,
    MOST_SAMPLES,
    RECIPES,
    UNIT,
    best_of,
    matched,
    shares,
)
from benchmarks.quality.joint_report import CONTROL, ahead, report
from tests.backends.letters import TASK, write_task


@given(st.integers(1, 50), st.sampled_from(RECIPES), st.integers(1, 3))
def test_every_recipe_draws_the_whole_budget(units: int, recipe: str, rounds: int) -> None:
    for name in (recipe, EXPERT):
        found = shares(name, UNIT * units, rounds)
        assert sum(one.trajectories for one in found) == GROUP * UNIT * units
        drawn = [one for one in found if one.step != "distil"]
        assert len({one.trajectories for one in drawn}) == 1
        assert all(one.episodes % one.every == 0 for one in drawn)


def test_a_stage_of_prompts_pays_its_trials_with_episodes() -> None:
    found = [(one.step, one.episodes, one.every) for one in shares("p+w+p", 96, 3)]
    assert found == [("prompts", 16, 8), ("magrpo", 32, 4), ("prompts", 16, 8)]
    assert [one.episodes for one in shares(EXPERT, 96, 3)] == [32, 0] * 3


@pytest.mark.parametrize(("recipe", "episodes"), [("p", 5), ("p+w", 6), (EXPERT, 10), ("w", 0)])
def test_a_budget_that_cant_be_shared_is_refused(recipe: str, episodes: int) -> None:
    with pytest.raises(ValueError, match=r"multiple of 12"):
        shares(recipe, episodes, 3)


def test_best_of_n_spends_on_test_problems_what_training_costs() -> None:
    assert best_of(96, 20) == 1 + 96 * GROUP // 20
    assert best_of(96, 1) == MOST_SAMPLES


def test_equal_cpu_time_is_more_episodes_for_the_cheaper() -> None:
    assert matched(96, ours_s=100.0, theirs_s=200.0) == 192
    assert matched(96, ours_s=100.0, theirs_s=1.0) == 4


def test_the_bank_has_every_split(tmp_path: Path) -> None:
    lines = Bench(tmp_path, train=4, dev=3, test=2).bank("arxiv").read_text().splitlines()
    splits = [split for line in lines for split in ("train", "dev", "test") if f'"{split}"' in line]
    assert splits == ["train"] * 4 + ["dev"] * 3 + ["test"] * 2


class Letters(Bench):
    """The benchmark on the tests' task of letters, which a model of random weights earns from."""

    def common(self, task: str, seed: int) -> dict[str, Any]:
        found = super().common(task, seed) | {"task": "letters", "task_path": [str(self.folder)]}
        del found["options"]
        return found | {"sampling": {"max_tokens": 8}}

    def bank(self, task: str) -> Path:
        return self.folder / "letters.jsonl"

    def count(self, task: str) -> int:
        return 4


@pytest.mark.slow
def test_recipes_are_played_measured_and_reported(model: str, tmp_path: Path) -> None:
    bench = Letters(write_task(tmp_path, TASK), model, episodes=24, rounds=2)
    recipes = {name: [bench.play("tldr", name, 0)] for name in recipes_of("tldr")}
    budget, agents = 24 * GROUP, 2
    for name in RECIPES:
        calls = recipes[name][0].calls
        assert calls.keys() <= {"act", "trial"}
        searched = sum(
            one.episodes * GROUP * agents for one in shares(name, bench.episodes, bench.rounds)
        )
        assert calls["act"] == searched
        assert calls["trial"] <= budget * agents - searched
    assert recipes["p"][0].calls["trial"] > 0
    assert recipes[EXPERT][0].calls.total() == budget * agents
    assert len(recipes[EXPERT][0].tests) == 2
    control = recipes[CONTROL][0].tests[0]
    assert control.config["learn"]["group_size"] == best_of(24, 4)
    assert recipes["w"][0].tests[-1].config["learn"]["group_size"] == SAMPLES

    before = {path: path.read_bytes() for path in tmp_path.glob("*/stages/*/journal.jsonl")}
    assert bench.play("tldr", "p+w", 0).calls == recipes["p+w"][0].calls
    assert {path: path.read_bytes() for path in tmp_path.glob("*/stages/*/journal.jsonl")} == before

    body = report({"tldr": recipes})
    played = [*tmp_path.glob("tldr-*")]
    kept.keep(tmp_path / "kept" / "joint-0.tar.xz", tmp_path, [one.name for one in played])
    (tmp_path / "gone").mkdir()
    for one in played:
        one.rename(tmp_path / "gone" / one.name)
    kept.restore("joint", tmp_path, tmp_path / "kept")
    assert report({"tldr": {name: [bench.play("tldr", name, 0)] for name in recipes}}) == body
    assert f"| best of {best_of(24, 4)} of the control |" in body
    assert all(f"\n| {name} |" in body for name in RECIPES)
    first, second, lead = ahead(recipes)
    assert f"{first}, less the better single one, {second}: {lead.mean:.3f}" in body
    assert "\n| round 2 |" in body
    assert f"played {recipes[MATCHED][0].episodes} episodes" in body


@pytest.mark.slow
def test_tldr_is_played_with_its_own_prompts_and_problems(model: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, model, episodes=12, train=4, dev=2, test=2)
    control, joint = (bench.play("tldr", name, 0) for name in (CONTROL, "w+p"))
    for one in (control, joint):
        assert len(one.tests[-1].episodes) == 2
        assert {record.split for record in one.tests[-1].episodes} == {"test"}
    assert joint.calls["act"] == (6 + 3) * GROUP * 2
