"""The benchmark of cooperation: its parts on a tiny model, and the helpers that it swaps."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept
from benchmarks.quality import cooperation, cooperation_swaps
from benchmarks.quality.cooperation import (
    BANK_SIZE,
    BANKS,
    BASELINES,
    GENERATED,
    GOLDS,
    LEARNED,
    OWN,
    TEAMS,
    UNTRAINED,
    Bench,
    swaps_of,
)
from benchmarks.quality.cooperation_curve import curve, in_config
from benchmarks.quality.cooperation_plot import draw, share
from benchmarks.quality.cooperation_report import by_rate, report, rewards
from benchmarks.quality.cooperation_swaps import HELPER, MAIN, STUB
from benchmarks.stats import mean
from orchestry.core.resolve import read_config_file
from orchestry.core.types import Limits, Tools
from orchestry.sandbox import open_sandbox
from orchestry.store.run import load_run
from orchestry.task.registry import load_task


@pytest.mark.slow
def test_the_bank_has_the_sizes_asked_for_and_no_problem_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, golds=12, test=6)
    problems = _read(bench.bank(GENERATED))
    splits = [one["split"] for one in problems if one["split"] != "dev"]
    assert BANK_SIZE // 4 < splits.count("train") < BANK_SIZE // 2
    assert splits[-6:] == ["test"] * 6
    assert splits.count("test") == 6
    assert {one["data"]["grade"] for one in problems} <= {1, 2}
    assert len({one["id"] for one in problems}) == len(problems)
    golds = _read(bench.bank(GOLDS))
    assert len(golds) == 12
    assert {one["split"] for one in golds} == {"train"}
    assert {one["split"] for one in _read(bench.bank(OWN))} == {"test"}


@pytest.mark.slow
def test_what_is_played_for_rewards_has_families_whose_gold_was_not_learned(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, golds=0, test=6)
    golds = [_families(one) for one in _read(bench.bank(GOLDS))]
    learned = {family for both in golds for family in both}
    played = [_families(o) for o in _read(bench.bank(GENERATED)) if o["split"] != "test"]
    assert all(both - learned for both in played)
    assert len({family for both in played for family in both - learned}) > 40


def _families(problem: dict[str, Any]) -> set[str]:
    bodies = (problem["data"][name].partition("\n")[2] for name in ("gold_aux", "gold_main"))
    return {re.sub(r"\d+", "", body) for body in bodies}


def _read(bank: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bank.read_text().splitlines()]


def test_a_main_programmer_that_cooperates_earns_less_with_a_stub() -> None:
    task = load_task("code_collaboration")
    problem = task.problems("test")[0]
    gold = task.gold(problem)
    assert gold is not None

    async def scored(helper: str) -> float:
        async with open_sandbox(Limits()) as sandbox:
            mean_of = cooperation_swaps._mean
            tools = Tools(sandbox=sandbox)
            return await mean_of(task, problem, [gold[MAIN]] * 2, [helper], tools)

    assert asyncio.run(scored(gold[HELPER])) == pytest.approx(1.0)
    assert asyncio.run(scored(STUB)) <= 0.5


@pytest.fixture(name="short")
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few problems, and short answers."""
    monkeypatch.setattr(cooperation, "BANK_SIZE", 200)
    monkeypatch.setattr(cooperation, "LEARN", {**cooperation.LEARN, "evaluate_problems": 4})
    monkeypatch.setattr(cooperation, "SMALL", replace(cooperation.SMALL, max_tokens=16))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_seed_is_killed_resumed_measured_and_reported(model: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"episodes": 20, "golds": 4, "test": 2, "baselines": BASELINES[:2]}
    bench = Bench(tmp_path / "played", model, **small)
    played = [bench.play(seed) for seed in (0, 1)]
    first = played[0]
    assert first.tests.keys() == {(team, bank) for team in TEAMS for bank in BANKS}
    assert len(first.baselines) == 2 * 2
    tests = {team: [one.tests[team, GENERATED] for one in played] for team in TEAMS}
    draw([one.run for one in played], tests, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    told = f"{share(tests[LEARNED][0].episodes + tests[LEARNED][1].episodes, 'reward'):.2f}"
    assert all(
        f">{text}<" in drawn for text in ("cooperates", "test: untrained, warm, learned", told)
    )
    assert len(first.run.episodes) == 20

    swaps = swaps_of(played, bench.bank(GENERATED))
    own = [one.tests[LEARNED, GENERATED] for one in played]
    assert mean(swaps["its own"]) == pytest.approx(mean(rewards(own)))
    names = ["its own", "another seed's", "its warm one", "an untrained one"]
    assert [*swaps] == [*names, "a stub that returns None"]
    assert {len(rows) for found in swaps.values() for rows in found.values()} == {2}

    body = report(played, swaps)
    assert "killed by SIGKILL and resumed 1, 1 times" in body
    assert "schemes on solved problems" in body
    assert body.count("| fixed ") == body.count("| single ") == 2

    assert [one.seed for one in bench.there()] == [0, 1]
    rates = by_rate(played).splitlines()
    assert [line.split(" | ")[:2] for line in rates[-2:]] == [["| 0", "0.0002"], ["| 1", "0.0002"]]
    slower = replace(bench, rate=1e-4)
    assert (slower.way.rate, slower.place("run-0")) != (bench.way.rate, bench.place("run-0"))
    assert slower.place("warm-0") == bench.place("warm-0")
    assert not [*slower.there()]

    so_far = curve([one.run for one in played])
    assert so_far.count("2 updates so far, of 2, in ") == 2
    assert [line.split(" | ")[0] for line in so_far.splitlines() if line[:3] in ("| 0", "| 2")] == [
        *("| 0", "| 2"),
        *("| 0", "| 2"),
    ]
    config = tmp_path / "config.yaml"
    shutil.copy(cooperation.CONFIG, config)
    before = read_config_file(config)
    in_config(played[0].run, config)
    in_config(played[0].run, config)
    assert read_config_file(config) == before
    assert config.read_text().count("to update 2") == 1

    names = [one.name for one in bench.folder.iterdir() if (one / "episodes.jsonl").exists()]
    kept.keep(tmp_path / "cooperation-0.tar.xz", bench.folder, names)
    bench.folder.rename(tmp_path / "gone")
    again = Bench(tmp_path / "again", model, **small)
    kept.restore("cooperation", again.folder, tmp_path)
    played = [again.play(seed) for seed in (0, 1)]
    assert report(played, swaps_of(played, again.bank(GENERATED))) == body
    assert not again.place("warm-0").exists(), "nothing is learned again"


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_without_gold_the_untrained_team_learns(model: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, model, episodes=10, golds=0, test=2, baselines=("single",))
    played = bench.play(0)
    assert {team for team, _ in played.tests} == {UNTRAINED, LEARNED}
    assert load_run(bench.place("run-0")).config["learn"]["from"] is None
    body = report([played], swaps_of([played], bench.bank(GENERATED)))
    assert "MAGRPO changes the untrained team's reward by" in body
    assert "MAGRPO from the untrained base" in curve([played.run])
    assert bench.section == "seeds_model"


@pytest.mark.slow
def test_a_teachers_winners_make_the_warm_start(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperation, "BANK_SIZE", 200)
    bench = Bench(tmp_path, model, golds=2, test=2, teacher="embedded")
    start = bench.warm(0)
    (played,) = tmp_path.glob("teacher-0-*")
    assert {one.problem for one in load_run(played).episodes} == {
        one["id"] for one in _read(bench.bank(GOLDS))
    }
    assert sorted(path.name for path in start.iterdir() if path.is_dir()) == ["helper", "main"]
    alone = Bench(tmp_path, model, golds=2, test=2)
    assert alone.place("warm-0") != bench.place("warm-0")
    assert alone.place("untrained-0") == bench.place("untrained-0")
