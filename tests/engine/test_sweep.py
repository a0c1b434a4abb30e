"""Sweeps: what is tried, what it may cost, and that it goes on after an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestry.core.config import validate
from orchestry.core.errors import ConfigError
from orchestry.core.sweep import SweepConfig, read_sweep
from orchestry.engine.sweep import Sweep, corners, curve_of, trial_config
from orchestry.report.sweep import confirmed, sentences, write_report
from orchestry.report.sweep import read_sweep as read_found
from orchestry.store.run import Run

optuna = pytest.importorskip("optuna")
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
RUN: dict[str, Any] = {
    "task": "words",
    "task_path": [str(TASKS)],
    "episodes": 6,
    "provider": {"name": "fake"},
}
KEYS: dict[str, Any] = {
    "search.k_samples": {"low": 1, "high": 4},
    "sampling.max_tokens": {"low": 8, "high": 64, "log": True},
    "search.strategy": ["beam", "best_of_n"],
}


def sweep_file(place: Path, **changes: Any) -> Path:
    """A sweep of `words` by the fake provider."""
    plain = {"run": RUN, "keys": KEYS, "trials": 3, "measure": {"episodes": 3}, **changes}
    place.write_text(yaml.safe_dump(plain, sort_keys=False))
    return place


def command(file: Path, *more: str) -> list[str]:
    """The sweep, in a process of its own."""
    folder = str(file.parent / "sweep")
    own = ["--config", str(file), "--dir", folder, "--trust", "--json", *more]
    return [sys.executable, "-m", "orchestry", "sweep", *own]


def play(file: Path, *more: str, code: int = 0) -> Mapping[str, Any]:
    """Plays it to its end; what it printed."""
    done = subprocess.run(command(file, *more), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


# --- what is tried --------------------------------------------------------------------------------


def test_settings_are_put_over_the_run(tmp_path: Path) -> None:
    config = read_sweep(sweep_file(tmp_path / "s.yaml"))
    settings = {"search.k_samples": 2, "sampling.max_tokens": 9, "search.strategy": "beam"}
    found = trial_config(config, settings)
    assert (found.search.k_samples, found.sampling.max_tokens, found.episodes) == (2, 9, 6)
    assert trial_config(config, {}) == validate(RUN)


def test_each_end_and_choice_is_checked_before_anything_is_played(tmp_path: Path) -> None:
    config = read_sweep(sweep_file(tmp_path / "s.yaml"))
    tried = [(key, settings[key]) for key, settings in corners(config)]
    assert tried == [
        ("search.k_samples", 1),
        ("search.k_samples", 4),
        ("sampling.max_tokens", 8),
        ("sampling.max_tokens", 64),
        ("search.strategy", "beam"),
        ("search.strategy", "best_of_n"),
    ]
    wrong = config.model_copy(update={"keys": {**config.keys, **_keys({"seed": [0, -1]})}})
    with pytest.raises(ConfigError, match=r"keys\.seed.*'seed' is -1"):
        Sweep(wrong, tmp_path / "sweep", print)
    assert not (tmp_path / "sweep").exists()


def _keys(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    return SweepConfig.model_validate({"keys": plain}).keys


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": {"seed": {"low": 2, "high": 1}}}, "low=2 is not below high=1"),
        ({"keys": {"seed": {"low": 0, "high": 1, "log": True}}}, "log takes low > 0"),
        ({"keys": {}}, "'keys'"),
        ({"measure": {"split": "test"}}, "'measure.split'"),
        ({"trails": 3}, "did you mean 'trials'"),
        ({"run": {"provider": {"api_key": "sk-ant-" + "a" * 90}}}, "looks like an API key"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sweep(sweep_file(tmp_path / "s.yaml", **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampler": "TPESmpler"}, "did you mean 'TPESampler'"),
        ({"pruner": {"name": "MedianPruner", "arguments": {"n": 1}}}, "MedianPruner: .*'n'"),
    ],
)
def test_a_class_that_optuna_lacks_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    config = read_sweep(sweep_file(tmp_path / "s.yaml", **changes))
    with pytest.raises(ConfigError, match=said):
        Sweep(config, tmp_path / "sweep", print)


def test_a_curve_is_a_running_mean(tmp_path: Path) -> None:
    rows = [{"mean_leaf_reward": float(n), "episode": n} for n in range(40)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = dict(curve_of(tmp_path))
    assert (found[1], found[5], found[40]) == (0.0, 2.0, 35.5)


# --- what it may cost -----------------------------------------------------------------------------


def test_what_trials_may_spend_never_exceeds_the_cap(tmp_path: Path) -> None:
    """Trials that run at once, each with its part; some spend it all, some nothing."""
    file = sweep_file(tmp_path / "s.yaml", trials=6, seeds=2, budget_usd=3.0)
    sweep = Sweep(read_sweep(file), tmp_path / "sweep", print)
    promised, spent, going = 0.0, 0.0, []
    for number in range(6):
        trial = sweep.study.ask()
        part = sweep._part(trial)
        assert part is not None
        going.append((trial, part))
        promised += part
        assert spent + promised <= 3.0 + 1e-9
        if number % 2:
            for one, its in going:
                used = its if one.number % 3 else 0.0
                promised, spent = promised - its, spent + used
                tried = {"runs": [{"usd": used}]}
                one.set_user_attr("tried", tried)
                sweep.study.tell(one, 0.5)
            going = []
    assert spent > 0


# --- whole sweeps ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_finds_settings_and_confirms_them(tmp_path: Path) -> None:
    found = play(sweep_file(tmp_path / "s.yaml", trials=5, confirm={"seeds": 1}))
    assert (found["stopped"], found["trials"]) == ("done", 5)
    folder = tmp_path / "sweep"
    best = found["best"]
    config = validate(yaml.safe_load((folder / "best.yaml").read_text()))
    assert config.sampling.max_tokens == best["settings"]["sampling.max_tokens"]
    run = Run(folder / best["runs"][0]["folder"])
    assert run.summary.stopped == "done"
    assert best["curve"][-1][0] == 6
    (evaluation,) = (run.folder / "evaluations").iterdir()
    assert best["value"] == Run(evaluation).summary.mean_reward
    sweep = read_found(folder)
    one = confirmed(sweep)
    assert one is not None
    seeds = {Run(place).config["seed"] for place in folder.glob("confirm/*/seed-*")}
    assert (one.split, one.problems, seeds) == ("test", 5, {1})
    assert "no difference" in sentences(sweep)[-1]
    report = write_report(sweep, "again")[0].read_text()
    assert "sampling.max\\_tokens" in report or "sampling.max_tokens" in report
    # The same command plays nothing more.
    before = (folder / "trials.jsonl").read_bytes()
    assert play(tmp_path / "s.yaml")["best"] == best
    assert (folder / "trials.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_its_trial(tmp_path: Path) -> None:
    run = {**RUN, "provider": {"name": "fake", "fake": {"latency_s": 0.3}}}
    file = sweep_file(tmp_path / "s.yaml", trials=2, run=run)
    process = subprocess.Popen(command(file), start_new_session=True, stdout=subprocess.DEVNULL)
    journal = tmp_path / "sweep" / "trial-0000" / "seed-0" / "journal.jsonl"
    end = time.monotonic() + 60
    while not journal.exists() or b"answered" not in journal.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = play(file)
    assert found["trials"] == 2
    folders = {
        run["folder"] for trial in read_found(tmp_path / "sweep").trials for run in trial["runs"]
    }
    assert "trial-0000/seed-0" in folders
    opened = [e for e in Run(journal.parent).events if e.kind == "opened"]
    assert len(opened) == 2  # resumed, not begun again


@pytest.mark.slow
def test_a_poor_trial_is_stopped_by_its_curve(tmp_path: Path) -> None:
    run = {**RUN, "episodes": 200, "provider": {"name": "fake", "fake": {"latency_s": 0.2}}}
    pruner = {"name": "ThresholdPruner", "arguments": {"lower": 0.99, "n_warmup_steps": 3}}
    file = sweep_file(tmp_path / "s.yaml", trials=1, run=run, pruner=pruner)
    assert play(file)["best"] is None
    (tried,) = read_found(tmp_path / "sweep").trials
    assert (tried["state"], tried["value"]) == ("pruned", None)
    place = tmp_path / "sweep" / "trial-0000" / "seed-0"
    assert Run(place).summary.stopped == "interrupted"
    assert Run(place).summary.episodes < 200


@pytest.mark.slow
def test_two_processes_share_the_trials_and_the_cap(tmp_path: Path) -> None:
    """Priced answers: what all trials cost stays under the cap of both together."""
    run = {**RUN, "prices": {"fake-1": {"input": 5.0, "output": 25.0}}}
    file = sweep_file(tmp_path / "s.yaml", trials=6, run=run, budget_usd=0.4)
    both = [subprocess.Popen(command(file), stdout=subprocess.DEVNULL) for _ in range(2)]
    for process in both:
        with process:
            assert process.wait() in (0, 3)
    trials = read_found(tmp_path / "sweep").trials
    assert 1 <= len(trials) <= 7
    spent = sum(run["usd"] for trial in trials for run in trial["runs"])
    assert 0 < spent <= 0.4


@pytest.mark.slow
def test_what_a_failed_trial_paid_counts(tmp_path: Path) -> None:
    """The cap is so small that no evaluation ends an episode."""
    run = {**RUN, "prices": {"fake-1": {"input": 5.0, "output": 25.0}}}
    keys = {"sampling.max_tokens": [60, 64]}
    file = sweep_file(tmp_path / "s.yaml", trials=6, run=run, keys=keys, budget_usd=0.03)
    assert 0 < play(file, code=1)["usd"] <= 0.03
    assert "raise budget_usd" in read_found(tmp_path / "sweep").trials[0]["why"]


@pytest.mark.slow
def test_trials_that_fail_stop_the_sweep(tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "s.yaml", trials=9, run={**RUN, "options": {"nothing": 1}})
    found = play(file, code=1)
    assert found["stopped"] == "failed"
    states = [trial["state"] for trial in read_found(tmp_path / "sweep").trials]
    assert states == ["failed"] * 3
    assert "nothing" in read_found(tmp_path / "sweep").trials[0]["why"]
