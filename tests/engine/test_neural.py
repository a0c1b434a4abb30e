"""Runs of backend ppo: killed and resumed, interrupted, with opponents, measured, refused."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.ppo import checkpoint
from orchestry.core.config import validate
from orchestry.core.errors import ConfigError, LearnError, OrchestryError, StoreError
from orchestry.core.ppo import PpoConfig
from orchestry.engine import games, neural
from orchestry.engine.arena import arena
from orchestry.engine.neural import measure
from orchestry.engine.run import resume, train
from orchestry.engine.session import Silent
from orchestry.store.journal import Learned
from orchestry.store.progress import progress
from orchestry.store.run import Run, load_run

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"games": 16, "horizon": 8, "minibatch": 256, "steps": 1500, "checkpoint_every": 300}


def _config(plays: dict[str, Any] | None = None, **ppo: Any) -> dict[str, Any]:
    return {
        "backend": "ppo",
        "task": "bucket_brigade",
        "options": {"scenario": "hard"},
        "agents": {role: {"plays": name} for role, name in (plays or {}).items()},
        "ppo": {**SMALL, **ppo},
    }


def _last(folder: Path) -> dict[str, Any]:
    import torch

    (event,) = [e for e in load_run(folder).events if isinstance(e, Learned)][-1:]
    found: dict[str, Any] = torch.load(folder / event.state["checkpoint"], weights_only=True)
    return found


def _rows(folder: Path) -> list[dict[str, float]]:
    timed = ("at", "train/steps_per_sec")
    return [{k: v for k, v in row.items() if k not in timed} for row in progress(folder)]


def test_a_run_leaves_rows_checkpoints_and_a_summary(tmp_path: Path) -> None:
    run = train(_config(evaluate_every=500, evaluate_games=8), tmp_path / "run")
    steps = [row["steps"] for row in progress(run.folder) if "learn/entropy" in row]
    assert steps == list(range(128, 1537, 128))
    assert sum("evaluation/reward" in row for row in progress(run.folder)) == 3
    assert run.summary.stopped == "done"
    assert run.summary.learning["steps"] == 1536
    assert run.summary.learning["train/total_episodes"] > 50
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert len(kept) == 2  # ppo.keep


def test_the_speed_is_that_since_the_row_before(tmp_path: Path) -> None:
    run = train(_config(evaluate_every=1000, evaluate_games=1000), tmp_path / "run")
    rows = progress(run.folder)
    for before, row in itertools.pairwise(rows):  # one of them has an evaluation too
        took = row["at"] - before["at"]
        assert 128 / row["train/steps_per_sec"] == pytest.approx(took, rel=0.2, abs=0.03)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policies": "own", "plays": {"agent_1": "rest_trap", "agent_3": "coordinator"}},
        {"pool": 3, "pool_every": 900, "plays": {"agent_2": ["self", "liar"], "agent_3": "self"}},
    ],
)
@pytest.mark.parametrize("mode", ["simultaneous", "two_phase"])
@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(
    tmp_path: Path, changes: dict[str, Any], mode: str
) -> None:
    import torch

    config = _config(steps=8000, checkpoint_every=1000, **changes)
    config["options"]["rules"] = {"commitment_mode": mode}
    whole = train(config, tmp_path / "whole").folder
    file, killed = tmp_path / "config.json", tmp_path / "killed"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "orchestry", "run", "--config", str(file), "--trust"]
    with subprocess.Popen([*command, "--run-dir", str(killed)], stderr=subprocess.DEVNULL) as run:
        while len(progress(killed)) < 12 and run.poll() is None:
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
    before = len(progress(killed))
    assert before < 63, "it was killed before its end"
    resume(killed)
    assert _rows(killed) == _rows(whole)
    one, other = _last(whole), _last(killed)
    assert torch.equal(one["team"]["weights"], other["team"]["weights"])
    assert torch.equal(one["adam"]["mean"], other["adam"]["mean"])


@pytest.mark.slow
def test_an_interrupt_leaves_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ("ppo.games=16", "ppo.horizon=8", "ppo.minibatch=256", "ppo.steps=100M")
    sets = [part for one in settings for part in ("--set", one)]
    command = [sys.executable, "-m", "orchestry", "run", "--backend", "ppo"]
    command += ["--task", "bucket_brigade", "--run-dir", str(folder), *sets]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        while len(progress(folder)) < 3 and run.poll() is None:
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=30)
    assert run.returncode == 130, said.decode()
    assert b"orchestry resume" in said
    done = int(_last(folder)["steps"])
    assert done == progress(folder)[-1]["steps"]
    more = resume(folder, {"ppo": {"steps": done + 256}})
    assert more.summary.learning["steps"] == done + 256


def test_opponents_play_their_seats_and_do_not_learn(tmp_path: Path) -> None:
    first = train(_config(), tmp_path / "first").folder
    opponents = {"agent_1": "free_rider", "agent_3": str(first)}
    run = train(_config(opponents, policies="own"), tmp_path / "run")
    state = _last(run.folder)
    assert state["roles"] == ["agent_0", "agent_2"]
    assert len(state["team"]["weights"]) == 2
    found = measure(run, {}, 20, print)
    assert len(found["learned"]) == 20
    assert len(found["learned"][0]) == 4
    rows = [row for row in progress(run.folder) if "episode/reward" in row]
    assert all(row["episode/own_reward"] != row["episode/reward"] for row in rows)
    assert not [row for row in progress(first) if "episode/own_reward" in row]


@pytest.mark.slow
def test_nights_of_two_phases_are_learned_measured_and_told_apart(tmp_path: Path) -> None:
    rules = {"commitment_mode": "two_phase"}
    two = {"scenario": "hard", "rules": rules}
    run = train({**_config({"agent_1": "liar"}), "options": two}, tmp_path / "run")
    assert min(row.get("episode/length", 99) for row in progress(run.folder)) >= 32  # 16 nights
    found = measure(run, {}, 30, print, scripts=("guard",))
    plain = train(_config({"agent_1": "liar"}), tmp_path / "plain").folder
    assert measure(load_run(plain), {}, 30, print, scripts=("guard",))["guard"] == found["guard"]
    with pytest.raises(ConfigError, match="of the same size"):
        measure(load_run(plain), {"options": {"rules": rules}}, 30, print)


def test_measured_teams_play_the_same_first_evenings(tmp_path: Path) -> None:
    run = train(_config(), tmp_path / "run")
    found = measure(run, {}, 30, print, scripts=("always_rest", "random"))
    assert found.keys() == {"learned", "likeliest", "untrained", "always_rest", "random"}
    assert found["likeliest"] != found["learned"]
    again = measure(run, {}, 30, print, scripts=("always_rest", "random"))
    assert found == again
    easy = measure(run, {"options": {"scenario": "easy"}}, 30, print)
    assert easy["learned"] != found["learned"]
    with pytest.raises(ConfigError, match="ask for 1,000,000"):
        measure(run, {}, 10**9, print)
    with pytest.raises(ConfigError, match="of the same size"):
        measure(run, {"options": {"agents": 6}}, 30, print)
    with pytest.raises(ConfigError, match="learned: always shown"):
        measure(run, {}, 30, print, scripts=("learned", "guard"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": "tldr", "options": {}}, "can be played as arrays"),
        ({"agents": {"agent_9": {"plays": "random"}}}, "agent_9"),
        ({"agents": {"agent_1": {"plays": ["guard", "nobody"]}}}, r"agent_1\.plays=nobody: "),
        ({"agents": {f"agent_{n}": {"plays": "random"} for n in range(4)}}, "must learn"),
        ({"agents": {"agent_1": {"plays": "self"}}, "ppo": {"policies": "own"}}, "one policy"),
        ({"ppo": {"steps": "10X"}}, "10M"),
        ({"ppo": {"device": "cuda"}}, "not available"),
        ({"ppo": {"games": 1, "horizon": 1}}, "at least 2 steps"),
        ({"ppo": {"hidden": [64, 0]}}, r"ppo\.hidden\.1' is 0: give a number >= 1"),
        ({"ppo": {"learning_rate": float("inf")}}, "learning_rate"),
        ({"ppo": {"value_clip": 1e39}}, "value_clip"),
        ({"ppo": {"hidden": [-3]}}, r"ppo\.hidden\.0' is -3: give a number >= 1"),
        ({"episodes": 5, "judge": {"enabled": True}}, r"not read episodes, judge\.enabled"),
        ({"agents": {"agent_1": {"goal": "x"}}}, r"not read agents\.agent_1\.goal"),
    ],
)
def test_what_cannot_be_played_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train({**_config(), **changes}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_begins_as_what_another_learned_and_keeps_a_copy(tmp_path: Path) -> None:
    import torch

    first = train(_config(), tmp_path / "first").folder
    learned, config = _last(first), _config({"agent_3": "self"}, steps=128, keep=9)
    config |= {"options": {"scenario": "easy"}}
    config["ppo"]["from"] = str(first)
    run = train(config, tmp_path / "second").folder
    begun = torch.load(run / "checkpoints" / "000001.pt", weights_only=True)
    for name in ("weights", "seen"):
        assert _equal(begun["team"][name], learned["team"][name])
        assert _equal(begun["others"][0]["versions"][0][name], learned["team"][name])
    assert begun["scale"]["mean"] == learned["scale"]["mean"]
    assert begun["steps"] == begun["adam"]["steps"] == 0
    shutil.rmtree(first)
    resume(run, {"ppo": {"steps": 256}})
    assert [row["steps"] for row in _rows(run)] == [128, 256]
    assert not _equal(_last(run)["team"]["weights"], learned["team"]["weights"])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[key], other[key]) for key in one)
    return bool((one == other).all())


def test_a_critic_of_values_in_other_units_begins_anew(tmp_path: Path) -> None:
    import torch

    first, actor = train(_config(steps=128), tmp_path / "first").folder, 42 * 64 + 64 + 65 * 78
    config = _config(steps=128, keep=9, scale=False)
    config["ppo"]["from"] = str(first)
    run = train(config, tmp_path / "second").folder
    begun = torch.load(run / "checkpoints" / "000001.pt", weights_only=True)["team"]["weights"]
    learned = _last(first)["team"]["weights"]
    assert _equal(begun[:, :actor], learned[:, :actor])
    assert not _equal(begun[:, actor:], learned[:, actor:])


def test_one_agent_begins_as_its_own_policy_with_another_critic(tmp_path: Path) -> None:
    import torch

    first = train(_config(policies="own", steps=256, critic="central"), tmp_path / "first").folder
    config = _config({f"agent_{n}": "guard" for n in (0, 1, 3)}, steps=128, keep=9)
    config["ppo"]["from"] = str(first / "checkpoints" / "000001.pt")
    run = train(config, tmp_path / "second").folder
    begun = torch.load(run / "checkpoints" / "000001.pt", weights_only=True)["team"]["weights"]
    mine, actor = _last(first)["team"]["weights"][2], 42 * 64 + 64 + 64 * 64 + 64 + 64 * 14 + 14
    assert _equal(begun[0, :actor], mine[:actor])
    assert begun[0].shape != mine.shape


@pytest.mark.parametrize(
    ("ppo", "said"),
    [
        ({"hidden": [8]}, r"ppo\.hidden=\[64, 64\] and ppo\.normalise=true: set the same"),
        ({"normalise": False}, "set the same"),
        ({"policies": "shared"}, "4 agents share one: set ppo.policies=own"),
        ({"from": "nowhere/run"}, "nowhere/run"),
    ],
)
def test_a_start_that_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, ppo: dict[str, Any], said: str
) -> None:
    first = train(_config(policies="own", steps=128), tmp_path / "first").folder
    config = _config(policies="own", steps=128)
    config["ppo"] |= {"from": str(first), **ppo}
    with pytest.raises(OrchestryError, match=said):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resume_takes_no_fewer_steps_than_were_played(tmp_path: Path) -> None:
    run = train(_config(steps=300), tmp_path / "run").folder  # three batches of 128
    resume(run, {"ppo": {"steps": 257}})
    with pytest.raises(ConfigError, match=r"ppo.steps is 256, and this run has played 384"):
        resume(run, {"ppo": {"steps": 256}})
    assert load_run(run).config["ppo"]["steps"] == 257


def test_a_checkpoint_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = train(_config(), tmp_path / "run")
    for file in (run.folder / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match="was changed"):
        measure(run, {}, 4, print)
    with pytest.raises(StoreError, match="was changed"):
        resume(run.folder, {"ppo": {"steps": 3000}})


@pytest.mark.parametrize(
    "content", [b"", b"text", pickle.dumps(Path, 2), checkpoint.packed({"team": 0})]
)
def test_a_file_that_is_no_learners_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "000001.pt"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"000001\.pt can't be read \(it is no learner's"):
        checkpoint.read(file)


def test_a_full_disk_names_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(StoreError, match=r"checkpoints/1\.pt can't be written"):
        checkpoint.save(tmp_path / "checkpoints" / "1.pt", {})


def _steps(said: object) -> int:
    return validate({"ppo": {"steps": said}}).ppo.steps


class _Notes(Silent):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.said = list[str]()

    def note(self, text: str) -> None:
        self.said.append(text)


def _came_back(tmp_path: Path) -> tuple[Path, Path]:
    """A run beside a learned opponent as a host played it, and as `remote sync` copied it from
    there: here is neither the host's folder nor the opponent's run."""
    there, sent = tmp_path / "host" / "runs" / "run", tmp_path / "host/runs/run/remote/sent"
    train(_config(), sent / "0-first")
    plays = {"agent_1": [str(sent / "0-first"), "guard"], "agent_3": str(sent / "0-first")}
    train(_config(plays), there)
    here = tmp_path / "runs" / "run"
    shutil.copytree(there, here)
    return there, here


@pytest.mark.slow
def test_a_copy_from_a_host_is_evaluated_and_resumed_with_its_opponents(tmp_path: Path) -> None:
    there, here = _came_back(tmp_path)
    measured, notes = measure(load_run(there), {}, 20, print), _Notes()
    whole = resume(there, {"ppo": {"steps": 3000}}).folder
    whole.parent.rename(tmp_path / "elsewhere")
    assert measure(load_run(here), {}, 20, notes.note) == measured
    assert any(f"{here}/remote/sent/0-first plays" in said for said in notes.said)
    resume(here, {"ppo": {"steps": 3000}})
    assert _rows(here) == _rows(tmp_path / "elsewhere" / "run")
    here.rename(tmp_path / "again")  # config.yaml has the copy's path now
    assert len(measure(load_run(tmp_path / "again"), {}, 4, print)["learned"]) == 4


def test_an_opponent_that_moved_is_named_anew_and_another_one_is_refused(tmp_path: Path) -> None:
    first = train(_config(), tmp_path / "first").folder
    other = train({**_config(), "seed": 1}, tmp_path / "other").folder
    run = train(_config({"agent_3": str(first)}), tmp_path / "run").folder
    first.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"first: no run lies there.*a resume takes agents"):
        resume(run, {"ppo": {"steps": 3000}})
    for name, fault in ((str(other), "agents.agent_3.plays.0"), ("guard", "agents")):
        changes = {"agents": {"agent_3": {"plays": name}}, "ppo": {"steps": 3000}}
        with pytest.raises(ConfigError, match=f"other contents of {fault}"):
            resume(run, changes)
    changes = {"agents": {"agent_3": {"plays": str(tmp_path / "moved")}}, "ppo": {"steps": 3000}}
    assert resume(run, changes).summary.learning["steps"] == 3072


@pytest.mark.slow
def test_an_opponent_that_learned_on_is_told_and_its_checkpoint_stays(tmp_path: Path) -> None:
    first = train(_config(keep=4), tmp_path / "first").folder
    file = max((first / "checkpoints").iterdir())
    frozen = train(_config({"agent_3": str(file)}), tmp_path / "frozen")
    newest = train(_config({"agent_3": str(first)}), tmp_path / "newest")
    before = measure(frozen, {}, 20, print)
    resume(first, {"ppo": {"steps": 1700}})
    assert file.exists()
    notes = _Notes()
    assert measure(frozen, {}, 20, notes.note) == before
    assert not notes.said
    measure(newest, {}, 20, notes.note)
    (said,) = notes.said
    assert "other contents of agents.agent_3.plays.0" in said
    with pytest.raises(ConfigError, match=r"other contents of agents\.agent_3\.plays\.0"):
        resume(newest.folder, {"ppo": {"steps": 3000}})
    resume(frozen.folder, {"ppo": {"steps": 3000}})


def test_policies_of_a_run_that_learns_on_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes its old checkpoints meanwhile."""
    live = train(_config(), tmp_path / "live").folder

    def read(run: Run) -> tuple[PpoConfig, dict[str, Any]]:
        found = games.learned_state(run)
        shutil.rmtree(run.folder / "checkpoints")
        return found

    monkeypatch.setattr(neural, "learned_state", read)
    assert len(measure(load_run(live), {}, 4, print)["likeliest"]) == 4


def test_an_opponent_that_learns_on_plays_as_it_was(tmp_path: Path) -> None:
    live = train(_config(), tmp_path / "live").folder
    found = arena(validate(_config({"agent_3": str(live)})), print)
    shutil.rmtree(live / "checkpoints")
    assert found.player(str(live), (3,), 4, 0)


def test_a_scenarios_file_that_changed_is_told(tmp_path: Path) -> None:
    numbers = json.loads(Path("tasks/bucket_brigade/scenarios.json").read_text())["hard"]
    file, notes = tmp_path / "own.json", _Notes()
    file.write_text(json.dumps(numbers))
    own = {"options": {"scenario": str(file)}}
    run = train({**_config(), **own}, tmp_path / "run")
    measure(run, {}, 4, notes.note)
    assert not notes.said
    file.write_text(json.dumps({**numbers, "prob_house_catches_fire": 0.5}))
    measure(run, {}, 4, notes.note)
    assert notes.said == [
        "the run learned with other contents of options.scenario: these are other games"
    ]
    measure(run, own, 4, notes.note)  # named by the call itself
    assert len(notes.said) == 1


def test_a_file_that_the_run_did_not_write_is_no_player(tmp_path: Path) -> None:
    first = train(_config(), tmp_path / "first").folder
    stray = first / "checkpoints" / "000099.pt"
    shutil.copy(max((first / "checkpoints").iterdir()), stray)
    with pytest.raises(ConfigError, match=r"000099\.pt is no checkpoint that .*first wrote"):
        train(_config({"agent_3": str(stray)}), tmp_path / "run")


def test_a_run_goes_on_on_another_kind_of_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's generator has a state of 16 bytes; no GPU is needed to write one."""
    import torch

    from orchestry.backends.ppo.learner import Learner

    state = Learner.state
    foreign = torch.arange(16, dtype=torch.uint8)
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "state", lambda own: {**state(own), "random": foreign})
        run = train(_config(), tmp_path / "run").folder
    shutil.copytree(run, tmp_path / "twin")
    notes = _Notes()
    resume(run, {"ppo": {"steps": 3000}}, notes)
    assert any("another kind of device than cpu" in said for said in notes.said)
    assert len(_last(run)["random"]) > 16
    resume(tmp_path / "twin", {"ppo": {"steps": 3000}})
    assert _rows(run) == _rows(tmp_path / "twin")
    notes.said.clear()
    resume(run, {"ppo": {"steps": 3300}}, notes)
    assert not any("device" in said for said in notes.said)


def test_steps_are_written_with_units() -> None:
    ways = {"500k": 500_000, "10M": 10_000_000, "1.5m": 1_500_000, "1_000": 1000, 7: 7}
    ways |= {"1.001M": 1_001_000, "1,500k": 1_500_000, "1e6": 1_000_000, "2 g": 2_000_000_000}
    for said, number in ways.items():
        assert _steps(said) == number
    wrong = ("10X", "1.5", "", "-3", "nan", "1,5M", "1,0000", "1,000_000", "1kk", "5gm", "1.0001k")
    for said in wrong:
        with pytest.raises(ConfigError, match=r"whole number such as 500k, 1\.5M or 10M"):
            _steps(said)


@given(st.integers(1, 10**14), st.sampled_from([("", 0), ("k", 3), ("M", 6), ("g", 9)]))
def test_every_way_of_writing_steps_is_the_same_number(steps: int, unit: tuple[str, int]) -> None:
    name, zeros = unit
    whole, part = divmod(steps, 10**zeros)
    assert _steps(f"{whole}.{part:0{zeros}}{name}" if zeros else f"{whole}") == steps
    assert _steps(f"{steps:,}") == _steps(f"{steps:_}") == steps
    for broken in (f"{steps}{name or 'k'}k", f"{steps:,},1", f"{steps}.5", f"-{steps}{name}"):
        with pytest.raises(ConfigError, match="whole number"):
            _steps(broken)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_tensorboard_shows_the_names_that_the_docs_name(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    config = {**_config(), "trackers": {"tensorboard": True}}
    run = train(config, tmp_path / "run")
    (file,) = (run.folder / "tensorboard").glob("events*")
    tags = {
        value.tag: event.step
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    wanted = ("episode/reward", "episode/length", "train/avg_reward_100ep")
    for name in (*wanted, "train/steps_per_sec", "train/total_episodes"):
        assert tags[name] == 1536
    assert "episode/own_reward" not in tags


def _said(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "orchestry", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_other_commands_say_that_they_do_not_take_such_a_run(tmp_path: Path) -> None:
    folder = str(train(_config(), tmp_path / "run").folder)
    for words in (["ask", folder, "x"], ["export", folder], ["distil", folder]):
        code, said = _said(*words)
        assert code in (1, 2), words
        assert "unforeseen" not in said, words
    code, said = _said("evaluate", folder, "--split", "dev")
    assert code == 2
    assert "new games" in said
    code, said = _said("evaluate", folder, "--episodes", "20", "--against", "guard", "--json")
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if line.startswith("{"))  # stdout; notes follow
    teams = json.loads(line)["teams"]
    assert teams.keys() == {"learned", "likeliest", "untrained", "guard"}
    assert len(teams["guard"]["by_agent"]) == 4


@pytest.mark.slow
def test_flags_of_the_learner_are_refused_elsewhere(tmp_path: Path) -> None:
    for flag in (["--steps", "1k"], ["--epochs", "2"]):
        code, said = _said("run", "--task", "bucket_brigade", *flag)
        assert code == 2
        assert "backend ppo" in said
    run = ["run", "--backend", "ppo", "--task", "bucket_brigade", "--run-name"]
    assert "is no name" in _said(*run, "a/b")[1]
    assert "give one" in _said(*run, "a", "--run-dir", str(tmp_path / "b"))[1]
    assert not [*tmp_path.iterdir()]


def test_a_policy_loads_in_three_lines(tmp_path: Path) -> None:
    import numpy as np

    import orchestry

    train(_config({"agent_2": "guard"}), tmp_path / "run")
    policy = orchestry.load_run(tmp_path / "run").policy(likeliest=True)
    actions = policy.act(np.zeros((5, 3, 42), np.float32), np.ones(5, np.bool_))
    assert actions.shape == (5, 3, 3)
    assert (actions == actions[:1]).all()
    double = np.random.RandomState(0).random_sample((5, 3, 42))
    single = double.astype(np.float32)
    begun = np.ones(5, np.bool_)
    assert (policy.act(double, begun) == policy.act(single, begun)).all()  # type: ignore[arg-type]
    for wrong in (single[..., 1:], single[0]):
        shapes = rf"shape {re.escape(str(wrong.shape))}, expected \(games, seats, 42\)"
        with pytest.raises(ConfigError, match=shapes):
            policy.act(wrong, begun)


def test_a_policy_per_agent_plays_just_its_seats(tmp_path: Path) -> None:
    import numpy as np

    import orchestry

    train(_config({"agent_2": "guard"}, policies="own"), tmp_path / "run")
    policy = orchestry.load_run(tmp_path / "run").policy()
    with pytest.raises(ConfigError, match=r"shape \(5, 4, 42\), expected \(games, 3, 42\)"):
        policy.act(np.zeros((5, 4, 42), np.float32), np.ones(5, np.bool_))


def test_one_agent_alone_learns_with_a_central_critic_of_its_own(tmp_path: Path) -> None:
    others = {f"agent_{n}": "guard" for n in range(1, 4)}
    run = train(_config(others, policies="own", critic="central"), tmp_path / "run")
    assert run.summary.stopped == "done"


def test_numbers_that_are_no_longer_finite_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match=r"lower ppo\.learning_rate, .* finite numbers$"):
        train(_config(learning_rate=1e30, steps=20_000), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_so_do_weights_after_the_last_update_and_none_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestry.backends.ppo.learner import Learner

    whole = train(_config(steps=128), tmp_path / "whole").folder
    iterate = Learner.iterate

    def spoiled(self: Learner, whole: int | None = None) -> Any:
        found = iterate(self, whole)
        self.team.flat_PW[0, 3] = float("nan")
        return found

    monkeypatch.setattr(Learner, "iterate", spoiled)
    with pytest.raises(LearnError, match="step 128: weights are no longer finite"):
        train(_config(steps=128), tmp_path / "run")
    settings, state = games.learned_state(load_run(whole))
    shape = arena(validate(_config()), print)
    state["team"]["weights"][0, 3] = float("nan")
    with pytest.raises(ConfigError, match="weights are no finite numbers"):
        games.policy_from(settings, state, shape.games(1, "shape"), shape.roles, 0)


def test_observations_of_another_number_are_no_chance_to_fit(tmp_path: Path) -> None:
    """Sizes of weights may agree where shapes do not."""
    run = train(_config(steps=128), tmp_path / "run").folder
    settings, state = games.learned_state(load_run(run))
    state["observed"] -= 1
    shape = arena(validate(_config()), print)
    with pytest.raises(ConfigError, match="learned from 41 numbers per observation"):
        games.policy_from(settings, state, shape.games(1, "shape"), shape.roles, 0)
