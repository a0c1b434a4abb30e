"""Sweeps: what is tried, what it may cost, and that it goes on after an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from orchestry.core.config import validate
from orchestry.core.errors import ConfigError, StoreError
from orchestry.engine.trust import check_trust
from orchestry.ext.sweep.report import Confirmed, _ahead, confirmed, sentences, write_report
from orchestry.ext.sweep.report import read_sweep as read_found
from orchestry.ext.sweep.settings import SweepConfig, read_sweep
from orchestry.ext.sweep.study import Played, Study, Tried, host_of
from orchestry.ext.sweep.sweep import Sweep, as_trials, corners, trial_config
from orchestry.ext.sweep.trials import Asked, Stop, curve_of, spent_in
from orchestry.report.stats import crossed
from orchestry.store import journal
from orchestry.store.games import kept
from orchestry.store.journal import Counted
from orchestry.store.run import Run, is_written

optuna = pytest.importorskip("optuna")
TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"
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


def play(file: Path, *more: str, code: int | None = 0) -> Mapping[str, Any]:
    """Plays it to its end; what it printed."""
    done = subprocess.run(command(file, *more), capture_output=True, text=True)
    assert code in (None, done.returncode), done.stderr
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
    first, *rest = corners(config)
    assert first == ("", {})  # the run as it was given
    tried = [(key, settings[key]) for key, settings in rest]
    assert tried == [
        ("search.k_samples", 1),
        ("search.k_samples", 4),
        ("sampling.max_tokens", 8),
        ("sampling.max_tokens", 64),
        ("search.strategy", "beam"),
        ("search.strategy", "best_of_n"),
    ]
    wrong = config.model_copy(update={"keys": {**config.keys, **_keys({"episodes": [1, -1]})}})
    with pytest.raises(ConfigError, match=r"keys\.episodes.*'episodes' is -1"):
        Sweep(wrong, tmp_path / "sweep", print)
    assert not (tmp_path / "sweep").exists()


def test_the_trials_of_a_local_run_may_have_other_groups(tmp_path: Path) -> None:
    """What the backend derived from `learn` and what belongs to one run are left out."""
    learn = {"group_size": 8, "from": "gone", "roles": {"main": "helper"}}
    plain = {
        "backend": "local",
        "search": {"k_samples": 8, "strategy": "chains", "joint": "aligned"},
        "learn": learn,
        "budget": {"usd": 1},
        "recipe": {"steps": []},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(plain))
    found = as_trials(Run(tmp_path))
    assert found == {"backend": "local", "search": {"joint": "aligned"}, "learn": learn}
    (tmp_path / "start").mkdir()
    again = as_trials(Run(tmp_path))["learn"]
    assert again == {"group_size": 8, "from": str(tmp_path / "start"), "roles": None}


def _keys(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    return SweepConfig.model_validate({"keys": plain}).keys


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": {"episodes": {"low": 2, "high": 1}}}, r"\}: low=2 is not below high=1"),
        ({"keys": {"episodes": {"low": 0, "high": 1, "log": True}}}, "log takes low > 0"),
        ({"keys": {"episodes": {"low": 1, "high": 9, "step": 1.5}}}, "step=1.5 is not whole"),
        (
            {"keys": {"learn.rate": [1]}},
            r"s\.yaml: config key 'keys\.learn\.rate' is \[1\]: give a li",
        ),
        (
            {"keys": {"learn.rate": {"low": "a", "high": 2}}},
            r"rate' is [^;]* or a range such as [^;]*$",
        ),
        ({"keys": {"task": ["a", "b"]}}, r"keys\.task'.*put it into `run`"),
        ({"keys": {"weights.style": [1, 2]}}, r"keys\.weights\.style'"),
        ({"keys": {"seed": [1, 2]}}, r"keys\.seed'"),
        ({"keys": {"recipe.samples": [1, 2]}}, r"keys\.recipe\.samples'"),
        ({"keys": {"budget.usd": [1, 2]}}, r"keys\.budget\.usd'.*budget_usd"),
        ({"keys": {"allow_unsafe_code": [True, False]}}, "allow_unsafe_code'"),
        ({"keys": {"provider.base_url": ["http://a", "http://b"]}}, "an address"),
        ({"keys": {"agents.x.provider.base_url": ["http://a", "http://b"]}}, "an address"),
        ({"run": {"backend": "ppo"}, "confirm": {"seeds": 1}}, r"confirm\.seeds'.*plays games"),
        ({"run": {"backend": "ppo"}, "measure": {"samples": 2}}, r"measure\.samples'"),
        ({"run": {**RUN, "recipe": {"steps": ["search"]}}}, r"run\.recipe'"),
        ({"confirm": {"seeds": 1, "split": "dev"}}, r"confirm\.split' is dev, .*measure\.split"),
        (
            {
                "run": {**RUN, "split": "dev"},
                "measure": {"split": "train"},
                "confirm": {"seeds": 1, "split": "dev"},
            },
            r"confirm\.split' is dev, .*run\.split",
        ),
        ({"storage": "postgresql://me:secret@host/db"}, "has a password.*PGPASSWORD"),
        ({"storage": "postgresql://me:a/b@host/db"}, "has a password"),
        ({"storage": "postgresql://host/db?password=secret"}, "has a password"),
        ({"storage": "postgresql:me:secret@host"}, "is no URL"),
        ({"executor": "cluster"}, "'executor' is 'cluster'"),
        ({"keys": {}}, "'keys'"),
        ({"measure": {"split": "test"}}, "'measure.split'"),
        ({"trails": 3}, "did you mean 'trials'"),
        ({"run": {"provider": {"api_key": "sk-ant-" + "a" * 90}}}, "looks like an API key"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sweep(sweep_file(tmp_path / "s.yaml", **changes))


def test_what_the_command_line_changes_is_checked_too(tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "s.yaml")
    assert read_sweep(file, {"trials": 7}).trials == 7
    with pytest.raises(ConfigError, match="'budget_usd' is -1"):
        read_sweep(file, {"budget_usd": -1.0})


def test_a_run_that_is_wrong_as_given_is_refused(tmp_path: Path) -> None:
    run = {**RUN, "search": {"k_samples": 1000}}
    file = sweep_file(tmp_path / "s.yaml", run=run, keys={"search.k_samples": [1, 2]})
    with pytest.raises(ConfigError, match=r"'run': .*'search\.k_samples' is 1000"):
        Sweep(read_sweep(file), tmp_path / "sweep", print)


@pytest.mark.parametrize("name", ["sweep.json", "machine.json", "confirm/best/trial.json"])
def test_a_pipe_in_the_folder_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    config, pipe = read_sweep(sweep_file(tmp_path / "s.yaml")), tmp_path / "sweep" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="is a pipe"):
        Sweep(config, tmp_path / "sweep", print)


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    config = read_sweep(sweep_file(tmp_path / "s.yaml"))
    with pytest.raises(ConfigError, match="holds no sweep"):
        Sweep(config, tmp_path, print)
    with pytest.raises(ConfigError, match="is a file"):
        Sweep(config, tmp_path / "s.yaml", print)


def test_another_sweep_in_the_folder_is_refused_in_words(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, trials=9, budget_usd=1.0, confirm={"seeds": 2}, sampler="RandomSampler")
    with pytest.raises(ConfigError, match=r"run\.episodes was 6 and is 7"):
        opened(tmp_path, run={**RUN, "episodes": 7})
    with pytest.raises(ConfigError, match="seeds was 1 and is 2"):
        opened(tmp_path, seeds=2)


def opened(place: Path, **changes: Any) -> Sweep:
    """A sweep with its study, of which nothing was played."""
    folder = place / "a #%? {b}"
    folder.mkdir(exist_ok=True)
    sweep = Sweep(read_sweep(sweep_file(place / "s.yaml", **changes)), folder, print)
    sweep.open()
    assert (folder / "study.db").is_file()
    return sweep


def test_a_study_without_dollars_is_refused(tmp_path: Path) -> None:
    """An earlier version counted the runs in the folder, so its trials have no slices."""
    optuna.create_study(storage=f"sqlite:///{tmp_path / 'old.db'}", study_name="s").ask()
    storage = {"storage": f"sqlite:///{tmp_path / 'old.db'}", "study": "s"}
    with pytest.raises(ConfigError, match=r"trials of an earlier version"):
        Study(read_sweep(sweep_file(tmp_path / "s.yaml", **storage)), tmp_path)


def test_one_process_plays_a_sweep(tmp_path: Path) -> None:
    sweep = opened(tmp_path)
    with FileLock(sweep.folder / "sweep.lock"), pytest.raises(ConfigError, match="another process"):
        sweep.play()


def test_a_dead_trial_goes_on_with_its_settings_in_its_folder(tmp_path: Path) -> None:
    sweep = opened(tmp_path)
    _, dead, settings, part = begun(sweep)
    dead.report(0.25, 1)
    again = opened(tmp_path)
    left = again.study.left()
    key, trial, its, its_part = nonempty(again._next(left))
    assert (trial.number, its, its_part, left) == (0, settings, part, [])
    assert [row.key for row in again.study.slices.all()] == [key]
    assert again.study.trials[0].intermediate_values == {1: 0.25}
    assert begun(again)[1].number == 1


def test_a_slice_without_a_trial_is_given_back(tmp_path: Path) -> None:
    """A process that was killed between the two leaves one."""
    sweep = opened(tmp_path, trials=1)
    assert sweep._reserve("trial-lost", sweep._share) == 5_000_000_000
    assert sweep._next([]) is None
    again = opened(tmp_path, trials=1)
    again.study.renew()
    assert begun(again)[3] == 5_000_000_000


def begun(sweep: Sweep) -> tuple[str, Any, dict[str, Any], int]:
    """The next new trial: its slice's key, settings and nano-dollars."""
    return nonempty(sweep._next([]))


def nonempty(
    found: tuple[str, Any, dict[str, Any], int] | None,
) -> tuple[str, Any, dict[str, Any], int]:
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sampler", "package"), [("CmaEsSampler", "cmaes"), ("QMCSampler", "scipy")]
)
def test_a_package_that_a_sampler_lacks_is_named(
    tmp_path: Path, sampler: str, package: str
) -> None:
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    keys = {"search.k_samples": {"low": 1, "high": 4}, "episodes": {"low": 1, "high": 6}}
    sweep = opened(tmp_path, sampler=sampler, keys=keys)
    with pytest.raises(ConfigError, match=f"{sampler} needs the package {package}"):
        _ask_thrice(sweep)
    assert all(trial.state.is_finished() for trial in sweep.study.trials)
    assert all(row.state == "ended" for row in sweep.study.slices.all())


def _ask_thrice(sweep: Sweep) -> None:
    """Until the sampler has trials to learn from."""
    for _ in range(3):
        end(sweep, 0.5)


def end(sweep: Sweep, value: float | None, runs: tuple[Played, ...] = ()) -> Tried:
    """The next trial, as if it had been played."""
    key, trial, settings, _ = begun(sweep)
    state = "failed" if value is None else "complete"
    found = Tried(trial.number, settings, state, value, runs, owner=sweep.study.owner)
    sweep._tell(trial, key, found)
    return found


def test_a_grid_ends_the_sweep(tmp_path: Path) -> None:
    keys = {"search.k_samples": [1, 2, 3], "search.beam_width": [1, 2]}
    grid = {"name": "GridSampler", "arguments": {"search_space": keys}}
    sweep = opened(tmp_path, sampler=grid, keys=keys, trials=9)
    found = [tuple(end(sweep, 0.5).settings.values()) for _ in range(6)]
    assert sorted(found) == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert sweep._next([]) is None
    assert opened(tmp_path, sampler=grid, keys=keys, trials=9)._next([]) is None


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
    """Some trials spend their whole part, some nothing; the cap is lowered on the way."""
    sweep = opened(tmp_path, trials=6, seeds=2, budget_usd=3.0, confirm={"seeds": 1})
    for number in range(6):
        if number == 3:
            sweep.config = sweep.config.model_copy(update={"budget_usd": 2.0})
        left = (sweep.config.budget_usd or 0) - spent_in(sweep.folder)
        key, trial, settings, nano = begun(sweep)
        assert nano / 1e9 == pytest.approx(left * 2 / ((6 - number) * 2 + 2))
        paid(sweep.folder / f"trial-{number:04d}", nano / 1e9 if number % 2 else 0.0)
        sweep._tell(trial, key, Tried(number, settings, "complete", 0.5))
        assert 0 <= spent_in(sweep.folder) <= 2.0
    assert sweep._next([]) is None
    sweep.config = sweep.config.model_copy(update={"trials": 7, "budget_usd": 0.1})
    with pytest.raises(Stop, match=r"the sweep's cap of \$0\.1 is spent"):
        begun(sweep)


def test_a_trial_that_goes_on_has_what_its_slice_left(tmp_path: Path) -> None:
    """Whatever it spent before it was cut off counts inside its slice, also if the cap is less."""
    sweep = opened(tmp_path, trials=2, budget_usd=1.0)
    begun(sweep)
    paid(sweep.folder / "trial-0000", 0.3)
    for cap, part in ((1.0, 0.5), (3.0, 1.5), (0.4, 0.4)):
        again = opened(tmp_path, trials=2, budget_usd=cap)
        again.study.renew()
        assert nonempty(again._next(again.study.left()))[3] == round(part * 1e9)
    less = opened(tmp_path, trials=2, budget_usd=0.3)
    less.study.renew()
    with pytest.raises(Stop, match="spent"):
        less._next(less.study.left())


def test_what_was_spent_by_hand_since_counts(tmp_path: Path) -> None:
    """Somebody went on with a run of an ended trial."""
    sweep = opened(tmp_path, trials=2, budget_usd=1.0)
    end(sweep, 0.5)
    paid(sweep.folder / "trial-0000", 0.6)
    again = opened(tmp_path, trials=2, budget_usd=1.0)
    again.study.renew()
    assert begun(again)[3] == 400_000_000


def test_a_failed_trial_does_not_count_and_its_dollars_do(tmp_path: Path) -> None:
    sweep = opened(tmp_path, trials=1, budget_usd=1.0)
    key, trial, settings, _ = begun(sweep)
    paid(sweep.folder / "trial-0000", 0.25)
    sweep._tell(trial, key, Tried(0, settings, "failed", None))
    assert begun(sweep)[3] == 750_000_000


def paid(folder: Path, usd: float) -> None:
    """A run whose journal says that it cost so much."""
    place = folder / "seed-0"
    place.mkdir(parents=True)
    line = journal.encode(Counted(key="k", call=0, usd=usd))
    (place / "journal.jsonl").write_bytes(line)


def test_the_cap_of_a_run_is_below_its_own(tmp_path: Path) -> None:
    assert Asked(tmp_path, 0, 4.0, 1.0).capped(3.0) == ["--budget", "1.0"]
    assert Asked(tmp_path, 0, 4.0).capped(3.0) == ["--budget", "3.0"]
    assert Asked(tmp_path, 0, None, 1.0).capped(None) == []


# --- the best -------------------------------------------------------------------------------------


def test_what_is_confirmed_is_pinned(tmp_path: Path) -> None:
    sweep = opened(tmp_path, confirm={"seeds": 1}, keys={"search.k_samples": [1, 2]})
    first = end(sweep, 0.2)
    asked = sweep.config.confirm
    pinned = {"trial": 0, "settings": dict(first.settings), "confirm": asked.model_dump()}
    assert sweep._chosen() == pinned
    place = sweep.folder / "confirm" / "best"
    place.mkdir(parents=True)
    (place / "trial.json").write_text(json.dumps(pinned))
    end(sweep, 0.3)
    assert sweep._chosen() == pinned
    more = sweep.config.model_copy(update={"confirm": asked.model_copy(update={"seeds": 8})})
    sweep.config = more
    with pytest.raises(Stop, match=r"is confirmed with .*'seeds': 1.* is .*'seeds': 8"):
        sweep._chosen()


def test_games_may_be_tried_and_the_result_says_that_they_differ(tmp_path: Path) -> None:
    run = {**RUN, "task": "lines", "options": {"most": 10}}
    sweep = opened(tmp_path, run=run, keys={"options.most": [20, 2000]})
    end(sweep, 0.5)
    sweep.write()
    assert trial_config(sweep.config, {"options.most": 20}).options == {"most": 20}
    said = " ".join(sentences(read_found(sweep.folder)))
    assert "Trials differ in options.most, so they play different games" in said


def test_a_trial_that_its_cap_cut_is_the_best_only_among_its_like(tmp_path: Path) -> None:
    sweep = opened(tmp_path, keys={"search.k_samples": [1, 2, 3]})
    end(sweep, 0.9, (Played("trial-0000/seed-0", 0, 0.9, 0.1, "evaluation"),))
    assert sweep.best is not None
    assert sweep.best.number == 0
    end(sweep, 0.2)
    assert sweep.best.number == 1
    sweep.write()
    assert [one["number"] for one in read_found(sweep.folder).whole] == [1, 0]


@pytest.mark.parametrize(
    "key", ["sandbox.wall_s", "executor", "ranks", "judge.provider.base_url", "learn.vllm_url"]
)
def test_a_key_that_no_trial_may_have(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="put it into `run`"):
        read_sweep(sweep_file(tmp_path / "s.yaml", keys={key: [1, 2]}))


def test_what_a_shared_study_may_not_have(tmp_path: Path) -> None:
    storage = {"storage": f"sqlite:///{tmp_path / 'shared.db'}"}
    for more, said in (
        ({"sampler": "CmaEsSampler"}, "its state as a pickle"),
        ({"budget_usd": None}, "would be hidden from the others"),
    ):
        config = read_sweep(sweep_file(tmp_path / "s.yaml", **storage, **more))
        with pytest.raises(ConfigError, match=said):
            Sweep(config, tmp_path / "sweep", print)
    odd = {"storage": "postgresql+psycopg://localhost#@evil.example/db"}
    with pytest.raises(ConfigError, match="programs read differently"):
        read_sweep(sweep_file(tmp_path / "s.yaml", **odd))
    assert host_of("postgresql+psycopg://me@db.example:7/x") == "postgresql+psycopg://db.example:7"
    assert host_of("sqlite:////tmp/x.db") == ""


def test_few_seeds_claim_less() -> None:
    """Differences of five seeds, alike on all problems: a bootstrap alone would say higher."""
    found = _ahead([[one] * 6 for one in (0.9, 0.1, 0.2, -0.05, 0.3)])
    assert crossed([[one] * 6 for one in (0.9, 0.1, 0.2, -0.05, 0.3)]).low > 0
    assert found.low < 0 < found.mean < found.high


def test_the_run_as_given_is_not_confirmed_against_itself(tmp_path: Path) -> None:
    sweep = opened(tmp_path, confirm={"seeds": 1}, keys={"search.k_samples": [1, 4]})
    key, trial, _, _ = begun(sweep)
    settings = {"search.k_samples": 4}
    sweep._tell(trial, key, Tried(0, settings, "complete", 0.5, owner=sweep.study.owner))
    assert sweep._chosen() is None
    sweep.write()
    assert "is the run as it was given" in sentences(read_found(sweep.folder))[-1]


def test_a_confirmation_that_is_not_whole_claims_nothing(tmp_path: Path) -> None:
    sweep = opened(tmp_path, confirm={"seeds": 2}, keys={"search.k_samples": [1, 2]})
    cut = Played("trial-0000/seed-0", 0, 0.5, 0.1, "run")
    end(sweep, 0.5, (cut,))
    place = sweep.folder / "confirm" / "best"
    place.mkdir(parents=True)
    (place / "trial.json").write_text(json.dumps(sweep._chosen()))
    sweep.write()
    found = read_found(sweep.folder)
    assert "not whole: given: 2 seeds not begun; best: 2 seeds not begun" in sentences(found)[-1]
    report = write_report(found, "again")[0].read_text()
    assert "0.5000 \\*" in report
    assert "stopped at its part of the cap" in report


def test_seeds_widen_the_interval() -> None:
    alike, apart = crossed([[0.1, 0.1]] * 4), crossed([[0.3, 0.3], [-0.1, -0.1]] * 2)
    assert alike.mean == pytest.approx(apart.mean)
    assert alike.high - alike.low < 1e-9
    assert apart.low <= 0 < apart.high


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
    assert best["value"] == Run(evaluation).summary.best_of_k
    sweep = read_found(folder)
    one = confirmed(sweep)
    assert isinstance(one, Confirmed), one
    assert one.trial == best["number"]
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
@pytest.mark.parametrize("with_its_run", [False, True])
def test_a_killed_sweep_goes_on_with_its_trial(tmp_path: Path, with_its_run: bool) -> None:
    """A run that is still alive is waited for; one that was killed too is resumed."""
    run = {**RUN, "provider": {"name": "fake", "fake": {"latency_s": 0.3}}}
    file = sweep_file(tmp_path / "s.yaml", trials=2, run=run)
    process = subprocess.Popen(command(file), stdout=subprocess.DEVNULL)
    place = tmp_path / "sweep" / "trial-0000" / "seed-0"
    await_answers(place, 1)
    asked = ["pgrep", "-P", str(process.pid)]
    (child,) = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    process.kill()
    process.wait()
    if with_its_run:
        os.kill(int(child), signal.SIGKILL)
    found = play(file)
    assert found["trials"] == 2
    folders = {
        run["folder"] for trial in read_found(tmp_path / "sweep").trials for run in trial["runs"]
    }
    assert "trial-0000/seed-0" in folders
    opened = [event for event in journal_of(place) if event.kind == "opened"]
    assert len(opened) == (2 if with_its_run else 1)


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
def test_an_interrupt_ends_the_run_in_order(tmp_path: Path) -> None:
    """The sweep alone gets the signal, and its run is told by it."""
    run = {**RUN, "episodes": 200, "provider": {"name": "fake", "fake": {"latency_s": 0.3}}}
    file = sweep_file(tmp_path / "s.yaml", trials=1, run=run)
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(command(file), start_new_session=True, stdout=subprocess.DEVNULL)
        place = tmp_path / "sweep" / "trial-0000" / "seed-0"
        opens = 1 if number == signal.SIGINT else 2
        await_answers(place, opens)
        process.send_signal(number)
        assert process.wait(30) == 130
        assert not is_written(place)
        assert Run(place).summary.stopped == "interrupted"


def await_answers(place: Path, opens: int) -> None:
    """Waits until a run that was opened so often has an answer since."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        kinds = [event.kind for event in journal_of(place)][::-1]
        if kinds.count("opened") == opens and "answered" in kinds[: kinds.index("opened")]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{place} has no answer")


def journal_of(place: Path) -> list[Any]:
    path = place / "journal.jsonl"
    return list(journal.read(path)) if path.exists() else []


@pytest.mark.slow
def test_the_cap_holds_also_when_it_is_lowered(tmp_path: Path) -> None:
    """Priced answers: what is in the whole folder stays under the cap."""
    prices = {"fake-1": {"input": 5.0, "output": 25.0}}
    run = {**RUN, "prices": prices, "sampling": {"max_tokens": 16}}
    keys = {"search.k_samples": [1, 2]}
    file = sweep_file(tmp_path / "s.yaml", trials=4, run=run, keys=keys, confirm={"seeds": 1})
    first = play(file, "--trials", "2", "--budget", "0.4")
    assert 0 < first["usd"] <= 0.4
    assert first["usd"] == pytest.approx(spent_in(tmp_path / "sweep"))
    lowered = first["usd"] + 0.05
    again = play(file, "--budget", str(lowered), code=None)
    assert first["usd"] <= again["usd"] <= lowered
    report = (tmp_path / "sweep" / "report" / "RESULTS.md").read_text()
    assert f"--budget {lowered}" in report


@pytest.mark.slow
def test_trials_use_what_was_confirmed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = {**RUN, "allow_unsafe_code": True}
    file = sweep_file(tmp_path / "s.yaml", trials=1, run=run)
    untrusted = [one for one in command(file) if one != "--trust"]

    def played(*more: str) -> tuple[int, str]:
        done = subprocess.run([*untrusted, *more], capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stderr

    code, told = played()
    assert code == 2
    assert "task_path" in told
    assert "allow_unsafe_code" in told
    assert not (tmp_path / "sweep").exists()
    check_trust(validate(run), file, True)
    assert played()[0] == 0
    # A server in configs/api.yaml, about which the sweep's person was never asked.
    (tmp_path / "configs").mkdir()
    away = {"judge": {"provider": {"name": "openai", "base_url": "https://a.invalid/v1"}}}
    (tmp_path / "configs" / "api.yaml").write_text(yaml.safe_dump(away))
    assert played("--trials", "2")[0] == 1
    assert "https://a.invalid" in read_found(tmp_path / "sweep").trials[-1]["why"]


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


def test_the_docs_example_is_a_sweep(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "sweeps.md"
    file = tmp_path / "tldr.yaml"
    file.write_text(page.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
    config = read_sweep(file)
    for _, settings in corners(config):
        trial_config(config, settings)
    assert trial_config(config, {}).backend == "local"


@pytest.mark.slow
def test_weights_are_swept(tmp_path: Path) -> None:
    """A team of a tiny model that trains, in real processes."""
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    run = {
        "backend": "local",
        "task": "words",
        "task_path": [str(TASKS)],
        "episodes": 4,
        "provider": {"model": str(tiny_folder(tmp_path / "tiny"))},
        "sampling": {"max_tokens": 8},
        "learn": {"every": 2, "group_size": 2},
    }
    keys = {"learn.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    file = sweep_file(tmp_path / "s.yaml", trials=2, run=run, keys=keys)
    found = play(file)
    assert (found["stopped"], found["trials"]) == ("done", 2)
    for trial in read_found(tmp_path / "sweep").trials:
        played = Run(tmp_path / "sweep" / trial["runs"][0]["folder"])
        assert played.summary.updates == 2
        rate = trial["settings"]["learn.learning_rate"]
        assert played.config["learn"]["learning_rate"] == pytest.approx(rate)
        (evaluation,) = (played.folder / "evaluations").iterdir()
        assert trial["value"] == Run(evaluation).summary.mean_trajectory_reward


def test_keys_that_ppo_does_not_read_are_refused(tmp_path: Path) -> None:
    run = {"backend": "ppo", "task": "bucket_brigade"}
    file = sweep_file(tmp_path / "s.yaml", run=run, keys={"learn.learning_rate": [0.1, 0.2]})
    with pytest.raises(ConfigError, match=r"keys\.learn\.learning_rate'.*does not read"):
        Sweep(read_sweep(file), tmp_path / "sweep", print)


@pytest.mark.slow
def test_policies_are_swept(tmp_path: Path) -> None:
    """Small networks that learn a game; their value is the return in new games."""
    pytest.importorskip("torch")
    pytest.importorskip("numba")
    ppo = {"games": 16, "horizon": 8, "minibatch": 256, "steps": 1500, "device": "cpu"}
    run = {"backend": "ppo", "task": "bucket_brigade", "ppo": ppo}
    keys = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    more = {"trials": 2, "seeds": 2, "measure": {"episodes": 50}, "budget_usd": 0.0}
    file = sweep_file(tmp_path / "s.yaml", run=run, keys=keys, **more)
    found = play(file)
    assert (found["stopped"], found["trials"], found["usd"]) == ("done", 2, 0.0)
    for trial in read_found(tmp_path / "sweep").trials:
        assert trial["state"] == "complete"
        values = []
        for own in trial["runs"]:
            place = tmp_path / "sweep" / own["folder"]
            rate = trial["settings"]["ppo.learning_rate"]
            assert Run(place).config["ppo"]["learning_rate"] == pytest.approx(rate)
            (evaluation,), _ = kept(place)
            assert evaluation.games == 50
            values.append(evaluation.teams["learned"].returns.mean)
        assert trial["value"] == pytest.approx(sum(values) / 2)
        assert trial["curve"][-1][0] == 1536
    assert play(file)["best"] == found["best"]
    assert len(kept(place)[0]) == 1
