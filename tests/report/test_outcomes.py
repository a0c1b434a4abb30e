"""What a run came to at a glance: early and late, held out, by scheme; and what it teaches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import orchestry
from orchestry.engine.evaluate import Baselines, evaluate
from orchestry.report import tables
from orchestry.report.criteria import Criterion, criteria
from orchestry.report.examples import evolution, new_ways, trajectories
from orchestry.report.facts import facts, summary_text
from orchestry.report.ground import hardware
from orchestry.report.headline import headline, summary
from orchestry.report.lessons import lessons
from orchestry.report.runs import Experiment, Salvaged, read_experiments
from tests.report.made import config, copied, told

SCHEMES = ("fallback", "decorator", "coordinator", "strategy_filter")


def learned(episode: int, place: int) -> tuple[float, tuple[str, ...]]:
    """A team that begins to cooperate half-way, and then solves every second problem."""
    if episode < 20:
        return 0.2, ("scheme_none",)
    if episode % 2:
        return 1.0, ("solved", "cooperates", "scheme_coordinator")
    return 0.5, ("cooperates", "scheme_decorator", "novel_chained")


def never(episode: int, place: int) -> tuple[float, tuple[str, ...]]:
    """One that does not."""
    return 0.2, ("scheme_none",)


@pytest.fixture
def team(forty: Path) -> Experiment:
    return read_experiments([told(forty, learned, SCHEMES)])[0]


@pytest.fixture(scope="session")
def _around(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `words` with an evaluation and two baselines on its five test problems."""
    folder = tmp_path_factory.mktemp("around") / "run"
    orchestry.train(config(), folder)
    evaluate(folder, "test", samples=2)
    list(Baselines(config(), ("fixed", "concat"), "test", 2).play(folder / "baselines"))
    return folder


@pytest.fixture
def around(_around: Path, tmp_path: Path) -> Path:
    """Its copy: the team cooperates on every problem, the baselines on none."""
    folder = told(copied(_around, tmp_path / "around"), never, SCHEMES)
    for place in folder.glob("evaluations/*"):
        told(
            place, lambda episode, leaf: (0.9, ("cooperates", "solved", "scheme_fallback")), SCHEMES
        )
    for place in folder.glob("baselines/*"):
        told(place, never, SCHEMES)
    return folder


def verdicts(experiment: Experiment) -> dict[str, Criterion]:
    return {one.name: one for one in criteria(experiment)}


def test_a_glance_shows_first_and_last(team: Experiment) -> None:
    found = facts(team)
    assert found["episodes"] == "40 of 40"
    assert found["cooperation rate, first and last quarter"] == "0 %, then 100 %"
    assert found["pass rate, first and last quarter"] == "0 %, then 50 %"
    assert found["schemes seen"] == "2 of 4 (coordinator 20, decorator 20)"
    assert found["new ways of working together"] == "novel_chained 20"
    assert found["reward, first and last quarter"] == "0.200, then 0.750"
    machine = json.loads((team.run.folder / "manifest.json").read_bytes())["machine"]
    assert found["hardware"].startswith(f"{machine['cpu']}, {machine['cores']} core")
    assert "0 % of the trajectories in the first quarter of the episodes, 100 %" in str(
        headline(team)
    )


def test_the_machine_is_the_runs_own_and_named_again_after_a_move(folder: Path) -> None:
    path = folder / "manifest.json"
    kept = json.loads(path.read_bytes())
    here, there = ({"cpu": name, "cores": 8} for name in ("Here", "There"))
    moved = {"at": "2026-01-01T00:00:00Z", "machine": {**there, "gpu": "NVIDIA H100"}}
    path.write_text(json.dumps({**kept, "machine": here, "resumed": [moved, {"sandbox": "4"}]}))
    assert hardware(Salvaged(folder)) == ("Here, 8 cores; resumed on NVIDIA H100; There, 8 cores")
    for damaged in ("[]", "{", '{"resumed": 3, "machine": 4}'):
        path.write_text(damaged)
        assert hardware(Salvaged(folder)) == ""


def test_a_search_is_measured_by_its_best_trajectories(folder: Path) -> None:
    (experiment,) = read_experiments([folder])
    episodes = experiment.run.episodes
    said = facts(experiment)["best of k, first and last quarter"]
    assert said == f"{episodes[0].reward:.3f}, then {episodes[-1].reward:.3f}"


def test_seeds_are_pooled(team: Experiment, tmp_path: Path) -> None:
    other = told(copied(team.run.folder, tmp_path / "other"), never, SCHEMES)
    changed = (other / "config.yaml").read_text().replace("seed: 0", "seed: 1")
    (other / "config.yaml").write_text(changed)
    found = dict(summary(read_experiments([team.run.folder, other])))
    said = "Cooperation rate, mean over the seeds: 0 % (0 % to 0 %) in the first quarter of the "
    assert f"{said}episodes, 50 % (0 % to 100 %) in the last." in found["words, all seeds"]


def test_summary_txt_has_the_same_figures_and_no_markup(team: Experiment) -> None:
    text = summary_text([team], "orchestry report run")
    for name, value in facts(team).items():
        assert f"{name}:" in text
        assert value in text
    assert all(f"- {sentence}" in text for sentence in [*headline(team), *lessons(team)])
    assert "|" not in text


def test_tables_of_measurements_have_columns_for_the_tasks_tags(around: Path) -> None:
    (experiment,) = read_experiments([around])
    held, beside = tables.held_out([experiment]), tables.beside([experiment])
    assert held is not None
    assert beside is not None
    for text in (held, beside):
        assert "| cooperation rate, 95 % | pass rate, 95 % | schemes seen |" in text
    assert "| 100 % [100 %, 100 %] | 100 % [100 %, 100 %] | 1 of 4 (fallback 10) |" in held
    assert beside.count("| 0 % [0 %, 0 %] | 0 % [0 %, 0 %] | 0 of 4 |") == 2


def test_tasks_without_such_tags_have_no_such_columns(searched: object, folder: Path) -> None:
    (experiment,) = read_experiments([folder])
    assert not [name for name in facts(experiment) if "cooperation" in name or "scheme" in name]


def test_lessons_follow_from_the_figures(forty: Path) -> None:
    told(forty, learned)
    with (forty / "journal.jsonl").open() as journal:
        assert not any('"learned"' in line for line in journal)
    assert not [one for one in lessons(read_experiments([forty])[0]) if "rose" in one]
    (said,) = [one for one in lessons(read_experiments([forty])[0]) if "whose agents" in one]
    assert said == (
        "Trajectories whose agents cooperate: mean reward 0.750, 50 % (20 of 40) solve their "
        "problem; the others: mean reward 0.200, 0 % (0 of 40) solve their problem."
    )


def test_accepted_behaviours_stand_with_their_evidence(folder: Path) -> None:
    proof = {"pairs": 24, "lift": 0.34, "low": 0.12, "high": 0.56}
    rows = [
        {"agent": "writer", "text": "Be brief. " * 30, "status": "accepted", "evidence": proof},
        {"agent": "writer", "text": "Be long.", "status": "rejected", "evidence": {}},
    ]
    (folder / "behaviors").mkdir(exist_ok=True)
    (folder / "behaviors" / "library.yaml").write_text(yaml.safe_dump({"behaviors": rows}))
    found = " ".join(lessons(read_experiments([folder])[0]))
    assert "(+34.0 points [+12.0, +56.0] on 24 pairs)" in found
    assert "not in the prompts: 1 rejected" in found


def test_without_an_episode_nothing_is_said(folder: Path) -> None:
    (folder / "episodes.jsonl").write_bytes(b"")
    (experiment,) = read_experiments([folder])
    assert lessons(experiment) == ["Nothing can be said yet: too little was played."]
    assert all(one.verdict != "met" for one in criteria(experiment) if "budget" not in one.name)


def test_early_and_late_are_problems_whose_rewards_moved_in_several_ways(team: Experiment) -> None:
    (early, late, *others) = evolution(team.run)
    assert (early.place, late.place) == ("early (rose most)", "late (rose most)")
    assert [one.place for one in others] == [
        *("early (the median change)", "late (the median change)"),
        *("early (rose least)", "late (rose least)"),
    ]
    gains = [
        after.record.mean_leaf_reward - before.record.mean_leaf_reward
        for before, after in zip((early, *others[::2]), (late, *others[1::2]), strict=True)
    ]
    assert gains == sorted(gains, reverse=True)
    assert early.record.problem == late.record.problem
    assert early.record.episode < 10
    assert late.record.episode >= 30
    assert (early.reward, late.reward) == (0.2, 1.0)
    assert "cooperates" in late.leaf.score.tags


def test_a_search_whose_samples_all_earned_the_same_says_so(forty: Path) -> None:
    path = forty / "episodes.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    groups = [group for record in records for group in record["groups"]]
    several = [group for group in groups if len(group["children"]) > 1]
    assert 0 < len(several) < len(groups)
    for group in groups:
        group["advantages"] = [0.0 for _ in group["advantages"]]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (said,) = (one for one in lessons(read_experiments([forty])[0]) if "earned the same" in one)
    assert said.startswith(f"In each of {len(several)} sample groups ")


def test_a_short_run_has_no_pair(searched: Salvaged) -> None:
    assert evolution(searched) == ()
    assert "that takes 8 episodes" in trajectories(Experiment("short", searched, {}, {}))


def test_a_new_way_is_shown_with_its_first_example(team: Experiment) -> None:
    text = new_ways(team)
    assert "| novel_chained | 25 % (20 of 80) | 20 | 0.500 |".replace("_", "\\_") in text or (
        "| novel_chained | 25 % (20 of 80) | 20 | 0.500 |" in text
    )
    assert "first with novel" in text


def test_criteria_are_met_or_not_by_the_figures(team: Experiment) -> None:
    found = verdicts(team)
    assert {name: one.verdict for name, one in found.items()} == {
        "500 episodes without a crash": "not met",
        "cooperation rises": "met",
        "at least one scheme of cooperation emerges": "met",
        "pass rate of 30 %": "met",
        "under its budget": "met",
        "all schemes of cooperation emerge": "not met",
        "pass rate of 50 %": "met",
        "ahead of all baselines": "can't tell",
        "new ways of working together": "met",
        "each agent is shown to contribute": "not met",
    }
    assert found["500 episodes without a crash"].why.startswith("40 episodes; processes")
    assert "not fallback, strategy_filter" in found["all schemes of cooperation emerge"].why


def test_a_team_that_learned_nothing_meets_little(forty: Path) -> None:
    found = verdicts(read_experiments([told(forty, never, SCHEMES)])[0])
    for name in ("cooperation rises", "pass rate of 30 %", "new ways of working together"):
        assert found[name].verdict == "not met"


def test_a_crash_counts_and_a_running_process_is_none(forty: Path) -> None:
    path = forty / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.rpartition(b'{"kind":"stopped"')[0])
    first = verdicts(read_experiments([forty])[0])["500 episodes without a crash"]
    assert first.verdict == "can't tell"


def test_few_common_problems_tell_nothing_of_baselines(around: Path) -> None:
    (experiment,) = read_experiments([around])
    found = verdicts(experiment)["ahead of all baselines"]
    assert found.verdict == "can't tell"  # five problems
    assert "fewer than 6 common problems with concat, 2 samples each, fixed" in found.why
    assert (
        verdicts(experiment)["pass rate of 50 %"].why == "100 % [100 %, 100 %] of 5 test problems"
    )
